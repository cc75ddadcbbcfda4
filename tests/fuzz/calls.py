"""Random calls: by the server's own description, and by changes of the calls of other tests."""

from __future__ import annotations

import importlib
import json
import random
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlencode

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase

from tests.fuzz.mutation import encode, mutate, mutate_value
from tests.fuzz.targets import CORPUS

MEDIA_TYPE: Final = "application/openjobspec+json"
STREAMS: Final = ("/events", "/progress/stream", "/events/stream", "/events/changes", "/ws")
"""Ends of the paths of endless answers."""

WAITS: Final = ("wait_ms", "wait", "timeout")
"""Members and query parameters that make an answer wait."""

POOL: Final = 40
_USUAL: Final = ("default", "a", "1", "019a0000-0000-7000-8000-000000000000", "a/b", "\x00", "é", "x" * 300)
_ODD_HEADERS: Final = (
    ("Content-Type", "text/plain"),
    ("Content-Type", "application/json; charset=latin-1"),
    ("Content-Encoding", "gzip"),
    ("OJS-Version", "2.0"),
    ("Accept", "text/html"),
    ("X-OJS-Tenant", "acme"),
    ("X-OJS-Tenant", "/"),
    ("Idempotency-Key", "k" * 300),
    ("X-Request-Id", "a\tb"),
    ("If-None-Match", "*"),
    ("Range", "bytes=5-1"),
)


class Call(msgspec.Struct):
    """A call.

    Parameters
    ----------
    route:
        Its path in the description, with parameters in braces.
    may_succeed:
        Whether it can be valid; otherwise its acceptance is a finding.
    """

    method: str
    route: str
    path: str
    query: str = ""
    body: bytes | None = None
    headers: dict[str, str] = {}
    may_succeed: bool = True

    @property
    def shown(self) -> bytes:
        """The call, for a report."""
        target = self.path + (f"?{self.query}" if self.query else "")
        more = "".join(f"\n{name}: {value}" for name, value in self.headers.items() if name != "Authorization")
        return f"{self.method} {target}{more}\n".encode("utf-8", "replace") + (self.body or b"")


class Names:
    """Ids and names that the server has told, by what they are of, so that later calls can use them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._known: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, name: str) -> None:
        """Remember a name; forget an old one if there are many."""
        known = self._known[_singular(kind)]
        if name not in known:
            known.append(name)
            if len(known) > POOL:
                del known[self._rng.randrange(len(known))]

    def learn(self, value: Any, kind: str = "") -> None:
        """Remember the names in an answer or a request."""
        if isinstance(value, list):
            for one in value[:20]:
                self.learn(one, kind)
        if not isinstance(value, dict):
            return
        for name, member in value.items():
            if name in ("id", "name", "key") and kind and isinstance(member, str | int):
                self.add(kind, str(member))
            elif name in ("queue", "job_id", "worker_id", "workflow_id", "job_type") and isinstance(member, str):
                self.add(name.removesuffix("_id").removeprefix("job_"), member)
            elif isinstance(member, dict | list):
                self.learn(member, name if name not in ("items", "results") else kind)

    def one(self, kind: str) -> str:
        """Return a known name, mostly of the kind asked for."""
        known = self._known.get(_singular(kind), [])
        if known and self._rng.random() < 0.85:
            return self._rng.choice(known)
        others = [*self._known.values(), list(_USUAL)]
        return self._rng.choice(self._rng.choice(others) or list(_USUAL))


def _singular(kind: str) -> str:
    kind = {"dead-letter": "jobs", "worker-rules": "workers", "crons": "cron", "cron_jobs": "cron"}.get(kind, kind)
    kind = {"schemas": "type", "job-types": "type", "job_types": "type"}.get(kind, kind)
    return kind[:-3] + "y" if kind.endswith("ies") else kind.removesuffix("s")


class Calls:
    """Makes random calls.

    Parameters
    ----------
    described:
        The server's OpenAPI document.
    only:
        Part of the paths to call; ``None``: all.
    """

    def __init__(self, described: dict[str, Any], names: Names, rng: random.Random, only: str | None) -> None:
        self._names = names
        self._rng = rng
        self._seeds = [json.loads(line) for line in (CORPUS / "http" / "calls.jsonl").read_text().splitlines()]
        self._seeds = [seed for seed in self._seeds if only is None or only in seed["path"]]
        self._bodies = [encode(seed["body"]) for seed in self._seeds if "body" in seed]
        self._rich = {
            f"/ojs/v1/{path}": [one.read_bytes() for one in (CORPUS / path.rstrip("s")).iterdir()]
            for path in ("jobs", "workflows", "definitions")
        }
        schemathesis = importlib.import_module("schemathesis")
        found = schemathesis.openapi.from_dict(described).get_all_operations()
        operations = [one.ok() for one in found if hasattr(one, "ok")]
        self._operations = [one for one in operations if not one.path.endswith(STREAMS[1:])]
        self._operations = [one for one in self._operations if only is None or only in one.path]
        self._modes = importlib.import_module("schemathesis").GenerationMode

    def forever(self) -> Iterator[Call]:
        """Yield calls without end: described ones, and changed ones of other tests."""
        while True:
            if self._operations and self._rng.random() < 0.15:
                yield from self._described(self._rng.choice(self._operations))
            elif self._seeds:
                for _ in range(20):
                    yield self._changed(self._rng.choice(self._seeds))

    def _described(self, operation: Any) -> list[Call]:
        """Return some calls that the description allows, or that it forbids."""
        is_valid = self._rng.random() < 0.7
        mode = self._modes.POSITIVE if is_valid else self._modes.NEGATIVE
        cases: list[Any] = []

        @hypothesis.seed(self._rng.randrange(10**9))
        @hypothesis.settings(
            max_examples=12,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def collect(case: Any) -> None:
            cases.append(case)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                collect()
            except hypothesis.errors.Unsatisfiable:
                pass  # the description forbids nothing
            except Exception as error:
                print(f"no calls of {operation.label}: {type(error).__name__}: {error!s:.100}")
        return [one for case in cases if (one := self._of_case(case, is_valid)) is not None]

    def _of_case(self, case: Any, is_valid: bool) -> Call | None:
        if self._rng.random() < 0.7:
            case.path_parameters = {
                name: self._names.one(_kind_of(case.path, name)) for name in case.path_parameters or {}
            }
        try:
            request = importlib.import_module("requests").Request(**case.as_transport_kwargs(base_url="http://x"))
            sent = request.prepare()
        except Exception:
            return None
        target = sent.url.removeprefix("http://x")
        path, _, query = target.partition("?")
        body = sent.body.encode() if isinstance(sent.body, str) else sent.body
        if body is not None and b'"wait_ms"' in body:
            return None  # its answer waits
        headers = {} if body is None else {"Content-Type": MEDIA_TYPE}
        return Call(case.method, case.path, path, query, body, headers, is_valid)

    def _changed(self, seed: dict[str, Any]) -> Call:
        rng, route = self._rng, seed["path"]
        path = route
        for name in [part[1:-1] for part in route.split("/") if part.startswith("{")]:
            path = path.replace(f"{{{name}}}", quote(self._names.one(_kind_of(route, name)), safe=""), 1)
        query = seed.get("query", "")
        if query and rng.random() < 0.4:
            query = self._changed_query(query)
        body = self._changed_body(seed)
        headers = {} if body is None else {"Content-Type": MEDIA_TYPE}
        if rng.random() < 0.05:
            name, value = rng.choice(_ODD_HEADERS)
            headers[name] = value
        return Call(seed["method"], route, path, query, body, headers)

    def _changed_query(self, query: str) -> str:
        if self._rng.random() < 0.3:
            return quote(mutate(query.encode(), (), self._rng), safe="=&%+")
        pairs = dict(pair.partition("=")[::2] for pair in query.split("&"))
        name = self._rng.choice(sorted(pairs))
        changed = mutate_value([pairs[name]], self._rng)
        value = changed[0] if isinstance(changed, list) and changed else changed
        return urlencode(pairs | {name: str(value)}, errors="replace")

    def _changed_body(self, seed: dict[str, Any]) -> bytes | None:
        rng = self._rng
        if "body" not in seed:
            return None if rng.random() < 0.9 else b"{}"
        body = json.loads(json.dumps(seed["body"]))
        if (more := self._rich.get(seed["path"])) and rng.random() < 0.5:
            body = json.loads(rng.choice(more))
        if isinstance(body, dict):
            self._put_names(body)
        if rng.random() < 0.05:
            return mutate(encode(body), self._bodies, rng)
        return encode(without_waits(mutate_value(body, rng) if rng.random() < 0.75 else body))

    def _put_names(self, body: dict[str, Any]) -> None:
        """Put known names into the places of names in a request."""
        for name, value in body.items():
            if name in ("job_id", "worker_id", "file_id") and isinstance(value, str):
                body[name] = self._names.one(name.removesuffix("_id"))
            elif name in ("job_ids", "ids", "active_jobs") and isinstance(value, list):
                body[name] = [self._names.one("jobs") for _ in value]
            elif name in ("acks", "nacks", "releases") and isinstance(value, list):
                for one in value:
                    if isinstance(one, dict):
                        self._put_names(one)


def _kind_of(route: str, parameter: str) -> str:
    """Return what a parameter of a path is the name of: the segment before it."""
    if parameter in ("type", "version"):
        return parameter
    before = route.partition(f"/{{{parameter}}}")[0]
    return before.rpartition("/")[2]


def without_waits(body: Any) -> Any:
    """Return a request body that makes no answer wait."""
    if isinstance(body, dict):
        return {name: value for name, value in body.items() if name not in WAITS}
    return body
