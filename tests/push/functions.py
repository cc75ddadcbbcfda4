"""Functions that answer pushed jobs, on a real HTTP server, and what tests wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ojster import verify_signature
from ojster.push.wire import PushConfigBody, PushEndpointBody, PushEndpointInfo
from ojster.service import Service
from tests.serving import listening
from tests.waiting import PATIENCE

SECRET = "whsec_of_the_tests"


def completed(result: Any = None) -> Response:
    return JSONResponse({"status": "completed", "result": result})


def failed(message: str = "no", **error: Any) -> Response:
    return JSONResponse({"status": "failed", "error": {"code": "handler_error", "message": message} | error})


class Function:
    """A function that records the jobs that it gets, and answers with ``answers`` in order, then repeats the last.

    Attributes
    ----------
    busy, busiest:
        How many calls are under way, and the most that were.
    gate:
        Answers wait for it.
    """

    def __init__(self) -> None:
        self.answers: list[Response | Callable[[Request], Awaitable[Response]]] = [completed()]
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.busy = self.busiest = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""

    async def answer(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        self.seen.append(verify_signature(SECRET, request.headers, await request.body()))
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        try:
            await self.gate.wait()
            return answer if isinstance(answer, Response) else await answer(request)
        finally:
            self.busy -= 1

    @property
    def jobs(self) -> list[str]:
        return [pushed["job"]["id"] for pushed in self.seen]


@asynccontextmanager
async def running(function: Function) -> AsyncIterator[Function]:
    app = Starlette(routes=[Route("/{path:path}", function.answer, methods=["POST"])])
    async with listening(app) as url:
        function.url = f"{url}/run"
        try:
            yield function
        finally:
            function.gate.set()


async def put(service: Service, url: str, id: str = "fn", **members: Any) -> PushEndpointInfo:
    """Create an endpoint; keywords are members of its configuration, except ``queues`` and ``job_types``."""
    places = {name: tuple(members.pop(name)) for name in ("queues", "job_types") if name in members}
    config = PushConfigBody(**({"signing_secret": SECRET} | members))
    return await service.push.put(id, PushEndpointBody(url, config=config, **places))


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.01)
