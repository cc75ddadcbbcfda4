"""How do the routes become an ASGI application? One table for all; the hot ones are found in it without a search."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from ojster.core.errors import MethodNotAllowed, NotFound, OjsterError
from ojster.events.mail import Smtp
from ojster.events.streams import Feed
from ojster.events.webhook_sender import Deliverer, Sender
from ojster.events.websocket import follow_by_socket
from ojster.insight import overview
from ojster.insight.status_routes import STARTED
from ojster.queues.backpressure import bounded_pressures
from ojster.server import openapi
from ojster.server.authentication import Doorkeeper
from ojster.server.metrics import Metrics, Seen
from ojster.server.request import Answer, Endpoint, Exchange, Services, encode, refuse
from ojster.server.route import BASE, Route
from ojster.server.routes import ROUTES
from ojster.service import Engine
from ojster.tenancy.tenants import TenantChange, introduce_tenants, list_tenants
from ojster.worker.worker import Worker

EXPOSED_HEADERS: Final = (
    "X-Request-Id",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "OJS-Version",
    "Retry-After",
    "Location",
)


ROOM_FOR_OPTIONS: Final = 65_536
"""How many bytes a request may take beside a job or result of the largest size."""


LAST_WORD: Final = 5.0
"""How many seconds an orchestrator that runs has to finish when the server stops."""


log = logging.getLogger("ojster")


class _Methods(dict[str, Endpoint]):
    """The endpoints of one path, by method."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self["GET" if scope["method"] == "HEAD" else scope["method"]](scope, receive, send)


class Application:
    """The HTTP server's ASGI application.

    Parameters
    ----------
    engine:
        What it serves; the application starts and stops its chores, and closes it.
    cors_origins:
        From which origins browsers may use it; none by default (ojs-http-binding.md section 20).
    trusting:
        Whether events may be delivered over plain HTTP, and to addresses that are not public.
    largest_body:
        The most bytes that the body of a batch may have; by default room for 32 of the largest jobs. Other bodies may
        have as many as the largest job, and a little more.
    tenants:
        What tenants may do of whom nothing is said yet; it is said when the application starts.
    guarded:
        Whether only who has a token is let in (``ojster.server.authentication``).
    smtp:
        Who takes the e-mail that jobs want to be sent.
    worker:
        Works as long as the application serves: it runs orchestrators.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        cors_origins: Sequence[str] = (),
        trusting: bool = False,
        largest_body: int | None = None,
        tenants: Sequence[TenantChange] = (),
        guarded: bool = False,
        smtp: Smtp | None = None,
        worker: Worker | None = None,
    ) -> None:
        self.engine = engine
        self._worker = worker
        self._cors_origins = cors_origins
        self._tenants = tenants
        self.metrics = Metrics()
        engine.database.on_events = self.metrics.count_events
        self.deliverer = Deliverer(engine, Sender(trusting=trusting), smtp)
        self._services = Services(self.deliverer.sender, Feed(engine), Doorkeeper(engine) if guarded else None)
        self._largest_body = largest_body or max(
            32 * engine.database.settings.largest_job, engine.database.settings.largest_batch * 1024
        )
        self._described = openapi.document(ROUTES)
        engine.database.records_events = True
        routes = [*ROUTES, *self._plain_routes()]
        endpoints = {(route.method, route.path): self._endpoint(route) for route in routes}
        by_path: dict[str, _Methods] = {}
        for (method, path), endpoint in endpoints.items():
            by_path.setdefault(path, _Methods())[method] = endpoint
        # Paths without parameters are looked up at once; Starlette searches for the others.
        streams = {(route.method, route.path) for route in routes if route.streams}
        self._direct = {
            key: endpoint for key, endpoint in endpoints.items() if "{" not in key[1] and key not in streams
        }
        starlette = Starlette(
            routes=[
                *(StarletteRoute(path, methods, methods=list(methods)) for path, methods in by_path.items()),
                WebSocketRoute(f"{BASE}/ws", self._follow_by_socket),
            ],
            exception_handlers={HTTPException: self._refuse_path},
            lifespan=self._lifespan,
        )
        starlette.router.redirect_slashes = False
        app: ASGIApp = starlette
        if cors_origins:
            app = CORSMiddleware(
                app,
                allow_origins=list(cors_origins),
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
                allow_headers=[
                    "Content-Type",
                    "Accept",
                    "Authorization",
                    "X-Request-Id",
                    "OJS-Version",
                    "X-OJS-Tenant",
                    "Idempotency-Key",
                    "Last-Event-ID",
                    "OJS-Block-Timeout",
                ],
                expose_headers=list(EXPOSED_HEADERS),
                max_age=86_400,
            )
            self._direct = {}
        self._app = app
        self.direct = {(method.encode(), path.encode()): endpoint for (method, path), endpoint in self._direct.items()}
        """The endpoints that a protocol may call by itself, by method and path, without middleware in between."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            endpoint = self._direct.get((scope["method"], scope["path"]))
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def drain(self) -> None:
        """Answer those who wait, and tell those who follow that the server stops. The first step of a shutdown."""
        self.engine.drain()
        await self._services.feed.farewell()

    def _endpoint(self, route: Route) -> Endpoint:
        single = self.engine.database.settings.largest_job + ROOM_FOR_OPTIONS
        largest = self._largest_body if route.large else min(single, self._largest_body)
        return Endpoint(
            route.handler,
            self.engine,
            self.metrics,
            largest,
            self._services,
            is_for_tenants=route.is_for_tenants,
            needs=route.needs,
            is_audited=route.is_audited,
        )

    def _plain_routes(self) -> list[Route]:
        """What is served beside the specification's endpoints."""
        return [
            Route("GET", "/metrics", self._show_metrics, "Server"),
            Route("GET", "/openapi.json", self._show_openapi, "Server"),
            Route("GET", "/docs", self._show_docs, "Server"),
            Route("GET", "/", self._show_docs, "Server"),
        ]

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        for tenant in self._tenants:
            await self.engine.do(introduce_tenants, tenant)
        if self._services.doorkeeper is not None and not await self.engine.tokens():
            log.warning("callers need a token, and there is none yet: ojster tokens create NAME --role owner")
        self.engine.start_chores()
        self.deliverer.start()
        working = None if self._worker is None else asyncio.create_task(self._run(self._worker))
        try:
            yield
        finally:
            if self._worker is not None and working is not None:
                self._worker.stop(grace=LAST_WORD)
                await working
            await self.deliverer.stop()
            await self.engine.close()

    async def _run(self, worker: Worker) -> None:
        try:
            await worker.run()
        except Exception:
            log.exception("the worker of this server has failed: it runs no orchestrators any more")

    async def _refuse_path(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal: OjsterError
        if error.status_code == 405:
            refusal = MethodNotAllowed(f"{request.url.path} cannot be used with {request.method}.")
        else:
            refusal = NotFound(f"There is nothing at {request.url.path}.", resource_type="path")
        exchange = Exchange(self.engine, self._largest_body, request.headers.raw, b"", {}, request.receive)
        answer = refuse(refusal, exchange.request_id)
        headers = {"OJS-Version": "1.0", "X-Request-Id": exchange.request_id, **dict(error.headers or {})}
        return Response(answer.body, answer.status, headers, "application/openjobspec+json")

    async def _follow_by_socket(self, socket: WebSocket) -> None:
        await follow_by_socket(socket, self.engine, self._services, self._cors_origins)

    async def _show_metrics(self, exchange: Exchange) -> Answer:
        engine = self.engine
        counts, workers, workflows, tenants, pressures, state = await asyncio.gather(
            engine.count_jobs(),
            engine.workers(),
            engine.count_workflows(),
            engine.look(list_tenants, None),
            engine.look(bounded_pressures, None),
            engine.look(overview.state_of_extensions, None),
        )
        queues = await engine.queues()
        statistics = await asyncio.gather(*(engine.queue_statistics(queue.name) for queue in queues))
        by_state: dict[str, int] = {}
        for worker in workers:
            by_state[worker.state] = by_state.get(worker.state, 0) + 1
        uptime = time.monotonic() - STARTED
        seen = Seen(counts, statistics, by_state, workflows, tenants, pressures, state, uptime)
        return Answer(self.metrics.render(seen), content_type=b"text/plain")

    async def _show_openapi(self, exchange: Exchange) -> Answer:
        return Answer(encode(self._described), content_type=b"application/json")

    async def _show_docs(self, exchange: Exchange) -> Answer:
        return Answer(openapi.page(self._described), content_type=b"text/html; charset=utf-8")
