"""A random life of a server: callers, workers and operators who do anything at any time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, Final

import httpx
import msgspec

from tests.conftest import Bench, Http
from tests.lives.requests import COLLECTION, DEFINITIONS, QUEUES, TYPES, Request, Requests

WORKERS: Final = ("w1", "w2", "w3")
TENANT: Final = "acme"

RECENT: Final = 40
"""How many of the newest jobs and workflows are acted on."""

Action = Callable[[], Awaitable[object]]


class Holding(msgspec.Struct, frozen=True):
    """An attempt that a worker has begun."""

    job_id: str
    worker_id: str
    attempt: int

    def report(self, **more: Any) -> Request:
        return msgspec.structs.asdict(self) | more


class Life:
    """What happens to a server; each action is made through HTTP, and may be refused."""

    def __init__(self, http: Http, bench: Bench, rng: Random) -> None:
        self._http, self._bench, self._rng = http, bench, rng
        self._requests = Requests(rng)
        self._jobs: list[str] = []
        self._workflows: list[str] = []
        self._held: list[Holding] = []
        self._actions: list[tuple[Action, int]] = [
            (self._push, 15),
            (self._start, 13),
            (self.work, 32),
            (self._pass_time, 8),
            (self._steer_job, 12),
            (self._steer_workflow, 14),
            (self._steer_server, 6),
        ]

    async def begin(self) -> None:
        """Make what others refer to."""
        await self._call("POST", "/collections", {"name": COLLECTION})
        for name in DEFINITIONS:
            await self._call("POST", "/definitions", self._requests.definition(name))

    async def go_on(self) -> None:
        """Do something."""
        actions, weights = zip(*self._actions, strict=True)
        (action,) = self._rng.choices(actions, weights)
        await action()

    async def end(self) -> None:
        """Remove what holds jobs back, and let all that waits for somebody go on."""
        for queue in QUEUES:
            await self._call("POST", f"/queues/{queue}/resume")
            await self._call("PUT", f"/queues/{queue}/config", {"concurrency": None, "max_size": None})
        await self._call("PUT", f"/admin/tenants/{TENANT}/limits", {"max_concurrency": None})
        await self._call("DELETE", "/crons/minutely")

    async def release(self, ids: Iterable[str]) -> None:
        """Release workflows, cancel them, and answer jobs that wait for somebody; each id is of one or the other."""
        for id in ids:
            await self._call("POST", f"/workflows/{id}/release")
            await self._call("POST", f"/workflows/{id}/cancel")
            await self._call("POST", f"/jobs/{id}/activate", {})

    async def forget(self) -> None:
        """Delete what keeps jobs, and let the rest of their retention pass."""
        await self._call("DELETE", f"/collections/{COLLECTION}?force=true")
        for _ in range(8):
            await self.pass_seconds(30 * 86_400)
            await self._call("POST", "/admin/prune")

    async def pass_seconds(self, seconds: float) -> None:
        """Advance the clock, and carry out what is due then."""
        self._bench.clock.advance(seconds)
        await self._bench.run_all_due()

    async def work(self, *, to_the_end: bool = False) -> None:
        """Fetch jobs as a worker, and report how some of them ended; some workers die instead."""
        rng = self._rng
        worker = rng.choice(WORKERS)
        wanted = {"queues": rng.sample(QUEUES, 3), "count": rng.randint(1, 6), "worker_id": worker}
        for job in (await self._call("POST", "/workers/fetch", wanted)).json()["jobs"]:
            self._held.append(Holding(job["id"], worker, job["attempt"]))
            self._jobs.append(job["id"])
        held, self._held = self._held, []
        for holding in held:
            if not await self._report(holding, rng.random() * (0.75 if to_the_end else 1.0)):
                self._held.append(holding)

    async def _report(self, holding: Holding, turn: float) -> bool:
        """Report what has become of an attempt; return ``False`` if it goes on."""
        rng = self._rng
        if turn < 0.5:
            await self._call("POST", "/workers/ack", holding.report(result=rng.choice(({"n": 1}, [1], None))))
        elif turn < 0.75:
            error = {"code": "handler_error", "message": "it failed", "retryable": rng.random() < 0.6}
            await self._call("POST", "/workers/nack", holding.report(error=error))
        elif turn < 0.85:
            then = rng.choice(({}, {"then": "wait"}, {"then": "wait", "wait_ms": 60_000}, {"then": "skip"}))
            await self._call("POST", "/workers/release", holding.report(**then))
        elif turn < 0.90:
            body = holding.report(state={"page": 1})
            await self._call("PUT", f"/jobs/{holding.job_id}/checkpoint", body)
            return False
        return turn < 0.95  # from 0.90 on, the worker has died, or says nothing yet

    async def _push(self) -> None:
        body = {"jobs": [self._requests.job() for _ in range(self._rng.randint(1, 3))]}
        answer = await self._call("POST", "/jobs/batch", body, self._tenant())
        if answer.is_success:
            self._jobs += [job["id"] for job in answer.json()["jobs"] if "id" in job]

    async def _start(self) -> None:
        body = self._requests.workflow()
        if self._rng.random() < 0.15:
            body = {"definition": self._rng.choice(DEFINITIONS), "target": self._rng.choice(("/x", "/y"))}
        self._learn(await self._call("POST", "/workflows", body, self._tenant()))

    def _learn(self, answer: httpx.Response) -> None:
        if answer.is_success and "workflow" in (shown := answer.json()):
            self._workflows.append(shown["workflow"]["id"])

    def _tenant(self) -> dict[str, str]:
        return {"X-OJS-Tenant": TENANT} if self._rng.random() < 0.15 else {}

    async def _pass_time(self) -> None:
        await self.pass_seconds(self._rng.choice((1, 5, 20, 60, 200, 600)))

    async def _steer_job(self) -> None:
        if not self._jobs:
            return
        id = self._rng.choice(self._jobs[-RECENT:])
        calls: tuple[tuple[str, str, Any], ...] = (
            ("DELETE", f"/jobs/{id}", None),
            ("POST", f"/admin/jobs/{id}/retry", None),
            ("POST", "/jobs/batch/delete", {"job_ids": [id]}),
            ("POST", f"/jobs/{id}/activate", self._rng.choice(({}, {"result": 1}, {"error": "no"}))),
            ("PATCH", f"/jobs/{id}", {"priority": self._rng.randint(-9, 9)}),
            ("POST", f"/dead-letter/{id}/retry", None),
            ("DELETE", f"/dead-letter/{id}", None),
            ("POST", f"/jobs/{id}/info", {"note": 1}),
        )
        await self._call(*self._rng.choice(calls))

    async def _steer_workflow(self) -> None:
        if not self._workflows:
            return
        id = self._rng.choice(self._workflows[-RECENT:])
        page = await self._call("GET", f"/workflows/{id}/steps?limit=100")
        path = self._rng.choice([step["path"] for step in page.json().get("steps", ())] or ["0"])
        calls: list[tuple[str, str, Any]] = [
            *(
                ("POST", f"/workflows/{id}/{what}", None)
                for what in ("cancel", "hold", "release", "retry", "terminate")
            ),
            ("POST", f"/workflows/{id}/fork", {"step": path}),
            ("POST", f"/workflows/{id}/resume", {"step": path, "result": {}}),
            ("POST", f"/workflows/{id}/properties", {"set": {"n": 1}}),
            ("POST", "/workflows/delete", {"filter": {"ids": [id]}}),
        ]
        actions = ({"action": "approve"}, {"action": "reject"})
        of_step = [("review", action) for action in actions] * 2 + [("retry", None), ("cancel", None)]
        calls += [("POST", f"/workflows/{id}/steps/{path}/{what}", body) for what, body in of_step]
        self._learn(await self._call(*self._rng.choice(calls)))

    async def _steer_server(self) -> None:
        rng = self._rng
        queue = rng.choice(QUEUES)
        chosen = {"filter": {"type": rng.choice(TYPES)}}
        cron = {
            "name": "minutely",
            "expression": "* * * * *",
            "overlap_policy": rng.choice(("skip", "allow", "enqueue")),
        }
        calls: tuple[tuple[str, str, Any], ...] = (
            ("POST", f"/queues/{queue}/{rng.choice(('pause', 'resume', 'resume'))}", None),
            ("PUT", f"/queues/{queue}/config", {"concurrency": rng.choice((1, 2, None))}),
            (
                "PUT",
                f"/queues/{queue}/config",
                {"max_size": rng.choice((3, 8, None)), "overflow_policy": "drop_oldest"},
            ),
            ("PUT", f"/admin/tenants/{TENANT}/limits", {"max_concurrency": rng.choice((1, None))}),
            ("POST", f"/jobs/batch/{rng.choice(('cancel', 'retry', 'delete'))}", chosen),
            ("POST", f"/workflows/{rng.choice(('retry', 'fork', 'delete', 'hold'))}", {"filter": {"state": "failed"}}),
            (
                "POST",
                "/crons",
                cron | rng.choice(({"type": "a", "args": []}, {"workflow": self._requests.workflow(2)})),
            ),
            ("POST", "/admin/prune", None),
            ("DELETE", f"/workers/{rng.choice(WORKERS)}", None),
        )
        await self._call(*rng.choice(calls))

    async def _call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        answer = await self._http(method, f"/ojs/v1{path}", body, headers=headers or {})
        assert answer.status_code < 500, f"{method} {path} {body}: {answer.text}"
        return answer
