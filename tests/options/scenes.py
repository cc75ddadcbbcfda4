"""Scenes of the walk through requests: a server in memory, what it knows beforehand, and what is compared."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import httpx

from ojster.capabilities import all_extensions
from ojster.core.settings import ServiceSettings
from ojster.files.open import open_store
from ojster.jobs.extension import install
from ojster.server.application import Application
from ojster.service import Service
from ojster.storage.open import open_database
from tests.conftest import Bench, Clock, Http

BASE: Final = "/ojs/v1"

JOB: Final = "01900000-0000-7000-8000-000000000001"
OTHER: Final = "01900000-0000-7000-8000-000000000002"
THIRD: Final = "01900000-0000-7000-8000-000000000003"
"""Ids of jobs that scenes push."""

UNKNOWN: Final = "01900000-0000-7000-8000-00000000000f"
"""The id of no job."""

STEP: Final = "STEP-ID"
"""Stands for the id of the job that was fetched last."""

MADE: Final = "{made}"
"""Stands for the id in the last answer that has one at its top."""

Call = tuple[str, str] | tuple[str, str, Any]
"""Method, path below ``BASE``, and body. ``advance`` with seconds moves the clock, and does what is then due."""

_VARIES: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|req_[0-9a-z_]+|evt_[0-9a-z]+|whsec_[\w+/=-]+"
    r"|ojs_[\w-]+|[0-9a-f]{64}|\"(?:avg_wait_ms|execution_ms|duration_ms|response_time_ms|elapsed_ms)\":\s*[0-9.]+"
)
"""What differs from one run to the next."""


class Scene(NamedTuple):
    """A request without the members that are tried.

    Parameters
    ----------
    call:
        Method, path and body of the request.
    before:
        Calls that it needs.
    after:
        Calls whose answers show what the request has done, in addition to its own answer.
    members:
        A value for each member; or its value, and other members that the request has with it and without it.
    inside:
        The place of the object that has the members, if it is not the body itself, and what it has besides.
    """

    call: tuple[str, str, dict[str, Any]]
    members: Mapping[str, Any]
    before: Sequence[Call] = ()
    after: Sequence[Call] = ()
    inside: tuple[str, dict[str, Any]] = ("", {})

    def body(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with members; ``None`` takes one away."""
        place, base = self.inside
        whole = {**(base if place else self.call[2]), **members}
        inner: Any = {name: value for name, value in whole.items() if value is not None}
        for name in reversed(place.split(".") if place else ()):
            inner = [inner] if name == "0" else {name: inner}
        return {**self.call[2], **inner} if place else inner


class With(NamedTuple):
    """The value of a member that means something only beside others, or after other calls."""

    value: Any
    others: Mapping[str, Any] = {}
    before: Sequence[Call] = ()
    after: Sequence[Call] = ()


class ShownBy(NamedTuple):
    """A member whose effect another test shows: its file below ``tests``, and its name."""

    file: str
    test: str


class Outcome(NamedTuple):
    """The answer to a request, with its warnings, and the state that the scene looks at afterwards."""

    status: int
    warnings: tuple[str, ...]
    seen: tuple[str, ...]
    message: str = ""


@asynccontextmanager
async def server() -> AsyncIterator[tuple[Http, Bench]]:
    """A server of an empty database in memory, which has files, and its bench."""
    clock = Clock()
    database = open_database("sqlite:///:memory:", ServiceSettings(), clock)
    install(database.memory, all_extensions())
    database.records_events = True
    with TemporaryDirectory() as folder:
        service = Service(database, store=open_store(folder))
        transport = httpx.ASGITransport(app=Application(service, trusting=True))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                yield Http(client), Bench(service, clock)
        finally:
            await service.maintenance.stop()
            database.close()


_known: Final[dict[str, Outcome]] = {}


async def outcome(scene: Scene, body: Any, more: With) -> Outcome:
    """Play a scene with a body, on a server of its own; a scene that was played in the same way ends as before.

    Most members of a request are compared with the same plain request.
    """
    played = repr((scene.call[:2], scene.before, scene.after, body, more.before, more.after))
    if played not in _known:
        _known[played] = await _play(scene, body, more)
    return _known[played]


async def _play(scene: Scene, body: Any, more: With) -> Outcome:
    method = scene.call[0]
    async with server() as (http, bench):
        stage = _Stage(http, bench)
        for call in (*scene.before, *more.before):
            prepared = await stage.make(call)
            assert prepared is None or prepared.status_code < 300, f"{call}: {prepared.text}"
        answer = await stage.make((method, scene.call[1], body))
        assert answer is not None
        seen = [answer.text]
        if answer.status_code < 400:
            for call in (*scene.after, *more.after):
                looked = await stage.make(call)
                seen.append("" if looked is None else looked.text)
        said = answer.json() if answer.content else {}
        message = said.get("error", {}).get("message", "") if isinstance(said, dict) else ""
        warnings = tuple(said.get("warnings", ())) if isinstance(said, dict) else ()
        return Outcome(answer.status_code, warnings, tuple(_VARIES.sub("…", text) for text in seen), message)


class _Stage:
    """A server on which calls are made; ``STEP`` in them stands for the id of the job that was fetched last."""

    def __init__(self, http: Http, bench: Bench) -> None:
        self._http = http
        self._bench = bench
        self._fetched = self._made = ""

    async def make(self, call: Call) -> httpx.Response | None:
        method, path, *body = call
        if method == "advance":
            self._bench.clock.advance(float(path))
            await self._bench.run_all_due()
            return None
        path, sent = map(self._with_ids, (path, json.dumps(body[0] if body else None)))
        answer = await self._http(method, BASE + path, json.loads(sent))
        if path == "/workers/fetch" and answer.status_code == 200:
            self._fetched = next((job["id"] for job in answer.json()["jobs"]), "")
        elif answer.status_code == 201:
            self._made = answer.json().get("id", "")
        return answer

    def _with_ids(self, text: str) -> str:
        return text.replace(STEP, self._fetched).replace(MADE, self._made)


def push(**members: Any) -> Call:
    """Push the job ``JOB``."""
    return "POST", "/jobs", {"type": "a", "args": [], "id": JOB} | members


FETCH: Final[Call] = ("POST", "/workers/fetch", {"queues": ["default"], "worker_id": "w"})
ACTIVE: Final[tuple[Call, ...]] = (push(), FETCH)
SHOWN: Final[tuple[Call, ...]] = (("GET", f"/jobs/{JOB}"),)


def step(type: str = "a", **members: Any) -> dict[str, Any]:
    """A step that is a job."""
    return {"type": type, "args": []} | members


def workflow(*steps: dict[str, Any], **members: Any) -> Call:
    """Create the workflow ``w1``, a chain of steps, of the job ``JOB`` by default."""
    chain = {"id": "w1", "type": "chain", "steps": list(steps) or [step(id="first")]}
    return "POST", "/workflows", chain | members
