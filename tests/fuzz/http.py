"""Random calls of a running server: none may fail, be slow, answer what is not declared, or show data of others."""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import httpx
import jsonschema_rs
import msgspec

from ojster.core.access import OPERATIONS, Operation, Role
from ojster.server.endpoints import routes_of
from tests.fuzz.calls import MEDIA_TYPE, STREAMS, WAITS, Call, Calls, Names
from tests.fuzz.report import Finding, Kind, Report
from tests.fuzz.server import Server, place_in
from tests.postgres import PostgresServer

TIMEOUT: Final = 15.0
SLOW_SECONDS: Final = 1.0
"""Time that the processor may spend on an answer."""

MAX_MEMORY: Final = 700 << 20
MARKER: Final = "hidden-from-others"
"""Text in all data of the workspace ``beta``, which no answer to a caller of ``acme`` may have."""

NEEDS: Final[dict[tuple[str, str], tuple[Operation, ...]]] = {
    (route.method, route.path): route.needs for route in routes_of()
}


class Caller(msgspec.Struct, frozen=True):
    """Who calls: nobody in particular, or the holder of a token in the workspace ``acme``."""

    role: Role | None = None
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that tell who calls."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def may(self, call: Call) -> bool:
        """Whether the role allows a call."""
        needs = NEEDS.get((call.method, call.route), ())
        return self.role is None or not needs or bool(OPERATIONS[self.role].intersection(needs))


class Judge:
    """Says what is wrong with answers, by the server's own description."""

    def __init__(self, described: dict[str, Any]) -> None:
        self._described = described
        self._validators: dict[str, Any] = {}

    def problem_with(self, call: Call, caller: Caller, answer: httpx.Response) -> tuple[Kind, str] | None:
        """Return what is wrong with an answer; ``None`` if nothing is."""
        if answer.status_code >= 500:
            return "server", f"status {answer.status_code}"
        if caller.role is not None and MARKER.encode() in answer.content:
            return "access", f"data of another workspace for the role {caller.role}"
        succeeded = answer.status_code < 400
        if succeeded and not caller.may(call):
            return "access", f"status {answer.status_code} for the role {caller.role}"
        if succeeded and not call.may_succeed:
            return "answer", f"status {answer.status_code} for a call that the description forbids"
        return self._undeclared(call, answer)

    def _undeclared(self, call: Call, answer: httpx.Response) -> tuple[Kind, str] | None:
        operation = self._described["paths"].get(call.route, {}).get(call.method.lower())
        kind = answer.headers.get("content-type", "")
        if operation is None or answer.status_code in (204, 304) or not kind.startswith("application/"):
            return None
        status = str(answer.status_code)
        if answer.status_code < 400 and status not in operation["responses"]:
            return "answer", f"status {status} is not declared"
        declared = operation["responses"].get(status) or operation["responses"]["default"]
        try:
            value = json.loads(answer.content)
        except ValueError as error:
            if kind.endswith("octet-stream"):
                return None
            return "answer", f"the answer is no JSON: {error!s:.100}"
        (content,) = declared["content"].values()
        wrong = next(self._validator(content["schema"]).iter_errors(value), None)
        if wrong is None:
            return None
        where = "/".join(str(part) for part in list(wrong.schema_path)[-4:])
        return "answer", f"{where}: {wrong.message:.200}"

    def _validator(self, schema: dict[str, Any]) -> Any:
        key = json.dumps(schema)
        if key not in self._validators:
            whole = schema | {"components": self._described["components"]}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole)
        return self._validators[key]


class HttpFuzzer:
    """Makes calls of a server, and reports what is wrong."""

    def __init__(self, server: Server, callers: list[Caller], rng: random.Random, report: Report) -> None:
        self.statuses: Counter[int] = Counter()
        self.roles: Counter[str] = Counter()
        self._server = server
        self._callers = callers
        self._rng = rng
        self._report = report
        self.names = Names(rng)
        self.client = httpx.Client(base_url=server.base, timeout=TIMEOUT)
        self.described: dict[str, Any] = self.client.get("/openapi.json").json()
        self._judge = Judge(self.described)

    def run(self, seconds: float, only: str | None) -> None:
        """Make calls for some seconds, or until the server has ended."""
        end = time.monotonic() + seconds
        for call in Calls(self.described, self.names, self._rng, only).forever():
            if time.monotonic() > end or not self._server.is_alive:
                break
            if not call.path.endswith(STREAMS) or call.route.endswith("/v1/events"):
                self._make(call, self._rng.choice(self._callers))
        if not self._server.is_alive:
            self._tell(Call("", "server", ""), "hang", "the server has ended", self._server.news()[-500:])

    def _make(self, call: Call, caller: Caller) -> None:
        given = parse_qsl(call.query, True)
        query = [(name, value) for name, value in given if name not in WAITS]
        call.may_succeed = call.may_succeed or len(query) < len(given)
        headers = caller.headers | call.headers
        if caller.role is not None and self._rng.random() < 0.3:
            headers["X-OJS-Tenant"] = self._rng.choice(("acme", "acme:web", "beta", "*", "_default", "acme:", "beta:x"))
        before = self._server.spent
        try:
            request = self.client.build_request(call.method, call.path, content=call.body, headers=headers)
            request.url = request.url.copy_with(query=urlencode(query, errors="replace").encode() or None)
            answer = self.client.send(request)
        except (httpx.InvalidURL, UnicodeError, httpx.LocalProtocolError):
            return
        except httpx.HTTPError as error:
            self._tell(call, "hang", f"{type(error).__name__}: {error}", self._server.news()[-300:])
            return
        self.statuses[answer.status_code] += 1
        if caller.role is not None and answer.status_code < 300:
            self.roles[caller.role] += 1
        self._look_at(call, caller, answer, self._server.spent - before)

    def _look_at(self, call: Call, caller: Caller, answer: httpx.Response, spent: float) -> None:
        news = self._server.news()
        failed = place_in(news)
        problem = self._judge.problem_with(call, caller, answer)
        if problem is not None:
            kind, text = problem
            self._tell(call, kind, text, failed or text, answer.text[:300])
        elif failed is not None:
            self._tell(call, "server", "a traceback in the log", failed)
        if spent > SLOW_SECONDS:
            self._tell(call, "slow", f"{spent:.1f} s of the processor", f"{call.method} {call.route}")
        if self._server.memory > MAX_MEMORY:
            self._tell(call, "memory", f"{self._server.memory >> 20} MiB", "server")
        if answer.status_code < 300 and answer.headers.get("content-type", "").startswith("application/"):
            with contextlib.suppress(ValueError):
                self.names.learn(json.loads(answer.content))
                self.names.learn(json.loads(call.body or b"null"), call.route.rstrip("/").rpartition("/")[2])

    def _tell(self, call: Call, kind: Kind, text: str, place: str, more: str = "") -> None:
        found = Finding(f"{call.method} {call.route}", kind, place, f"{text} {more}".strip(), call.shown)
        if self._report.add(found) and kind != "answer":
            print(f"  {found.target}: {kind}: {place[:150]}", flush=True)


def fuzz_http(
    seconds: float, database: str | None, *, roles: bool, seed: int, only: str | None, report: Report
) -> None:
    """Start a server, and make random calls of it for some seconds.

    Parameters
    ----------
    database:
        URL of its database; ``None``: a new SQLite file; ``postgres``: a new PostgreSQL server.
    roles:
        Whether it requires tokens, and each call is made with the token of a random role.
    only:
        Part of the paths to call; ``None``: all.
    """
    with tempfile.TemporaryDirectory(prefix="ojster-fuzz-") as folder, _database(database, folder) as url:
        server = Server(url, Path(folder), guarded=roles)
        try:
            fuzzer = HttpFuzzer(server, _callers(server) if roles else [Caller()], random.Random(seed), report)
            if roles:
                _plant(fuzzer, server.token("beta", "owner", "beta"))
            fuzzer.run(seconds, only)
            print(f"{sum(fuzzer.statuses.values())} calls; statuses: {dict(sorted(fuzzer.statuses.items()))}")
            if roles:
                print(f"successful calls by role: {dict(fuzzer.roles)}")
            if server.is_alive:
                print(f"memory of the server: {server.memory >> 20} MiB")
        finally:
            server.stop()


@contextlib.contextmanager
def _database(url: str | None, folder: str) -> Iterator[str]:
    """Yield the URL of a database: a given one, a SQLite file, or a PostgreSQL server that runs for it."""
    if url != "postgres":
        yield url or f"sqlite:///{folder}/jobs.db"
        return
    server = PostgresServer(fsync="off")
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


def _callers(server: Server) -> list[Caller]:
    return [Caller(role, server.token(f"acme-{role}", role, "acme")) for role in Role]


def _plant(fuzzer: HttpFuzzer, token: str) -> None:
    """Put marked data of every kind into the workspace ``beta``, and let the callers know its names."""
    step = {"type": "a", "args": [MARKER]}
    retry = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    planted: list[tuple[str, str, Any]] = [
        ("POST", "/jobs", {**step, "meta": {"note": MARKER}}),
        ("POST", "/jobs", {**step, "options": {"queue": "work", "retry": retry}}),
        ("POST", "/workflows", {"type": "chain", "metadata": {"note": MARKER}, "steps": [{"type": "gate"}, step]}),
        ("POST", "/definitions", {"name": "beta-plan", "type": "chain", "steps": [step]}),
        ("POST", "/collections", {"name": "beta-hoard", "description": MARKER}),
        ("POST", "/collections/beta-hoard/items", {"name": "beta-gem", "data": MARKER}),
        ("POST", "/cron", {"name": "beta-nightly", "expression": "0 0 * * *", **step}),
        ("POST", "/schemas", {"job_type": "beta.typed", "version": 1, "schema": {"type": "array", "title": MARKER}}),
        (
            "PUT",
            "/channels/beta-ops",
            {"method": "email", "from": "a@x.example", "to": ["a@x.example"], "subject": MARKER},
        ),
        (
            "POST",
            "/webhooks/subscriptions",
            {"url": "https://203.0.113.1/x", "events": ["*"], "metadata": {"n": MARKER}},
        ),
        ("PUT", "/job-types/beta.other", {"meta": {"note": MARKER}}),
    ]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": MEDIA_TYPE}
    for method, path, body in planted:
        answer = fuzzer.client.request(method, f"/ojs/v1{path}", json=body, headers=headers)
        if answer.status_code >= 300:
            print(f"not planted: {method} {path}: {answer.text[:200]}")
        else:
            fuzzer.names.learn(answer.json())
            fuzzer.names.learn(body, path.rpartition("/")[2])
