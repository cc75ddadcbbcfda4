"""The ASGI application of the HTTP server.

Paths without parameters are looked up in a table; Starlette routes the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
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

from ojster.capabilities import CAPABILITIES, Capability
from ojster.core.errors import MethodNotAllowed, NotFound, OjsterError
from ojster.handlers.tracing import CARRIED
from ojster.metering import observed_depth
from ojster.server import api_page, dashboard_page, openapi
from ojster.server.answer import Answer, encode
from ojster.server.audit_trail import AuditTrail
from ojster.server.authentication import Authenticator
from ojster.server.browser_guard import BrowserGuard
from ojster.server.counts import SharedCounts
from ojster.server.delivery.mail import Smtp
from ojster.server.delivery.push import PushWorker
from ojster.server.delivery.sender import Sender
from ojster.server.delivery.webhook import WebhookSender
from ojster.server.delivery.worker import WebhookWorker
from ojster.server.endpoint import COMMON_HEADERS, Endpoint, refuse
from ojster.server.endpoints import routes_of
from ojster.server.event_streams import Feed
from ojster.server.known_heads import KnownHeads
from ojster.server.metrics import Metrics
from ojster.server.oidc import OidcSettings, OidcVerifier
from ojster.server.oidc_login import OidcLogin
from ojster.server.pages import numbered
from ojster.server.paths import with_encoded_slashes
from ojster.server.proxies import TrustedProxies
from ojster.server.recent_answers import RecentAnswers
from ojster.server.request import HttpRequest, Services
from ojster.server.route import BASE, Route
from ojster.server.triggers import Triggers
from ojster.server.websocket import serve_websocket
from ojster.service import Service
from ojster.tenancy.tenants import TenantChange, introduce_tenants
from ojster.worker.worker import Worker

EXPOSED_HEADERS: Final = (
    "X-Request-Id",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "OJS-Version",
    "Retry-After",
    "Location",
    "Content-Disposition",
    "Content-Range",
    "ETag",
    "Repr-Digest",
    "Upload-Length",
    "Upload-Offset",
    "X-OJS-Batch-Size",
    "X-OJS-Limit-Clamped",
    "X-OJS-Progress",
)
"""Response headers that browsers may read across origins."""

READ_HEADERS: Final = (
    "Content-Type",
    "Accept",
    "Authorization",
    "X-Request-Id",
    "OJS-Version",
    "OJS-Requires-Extension",
    "X-OJS-Tenant",
    "Idempotency-Key",
    "Last-Event-ID",
    "OJS-Block-Timeout",
    "Cache-Control",
    "Content-Encoding",
    "If-None-Match",
    "If-Range",
    "Range",
    "Upload-Offset",
    *CARRIED,
)
"""Request headers that browsers may send across origins: those that the server reads."""

MAX_REQUEST_OVERHEAD_BYTES: Final = 65_536
"""Size allowed for a request in addition to the largest job or result, in bytes."""

ORCHESTRATOR_GRACE_SECONDS: Final = 5.0
"""Time that running orchestrators get to finish when the server stops, in seconds."""

log = logging.getLogger("ojster")


class _Methods(dict[str, Endpoint]):
    """The endpoints of one path, by method."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self["GET" if scope["method"] == "HEAD" else scope["method"]](scope, receive, send)


class Application:
    """The HTTP server's ASGI application.

    Parameters
    ----------
    service:
        The service to serve. The application starts and stops its maintenance tasks, and closes it.
    cors_origins:
        Origins from which browsers may use the server. Default: none.
    trusting:
        Whether webhooks and push endpoints may use plain HTTP, and addresses that are not public.
    max_body_bytes:
        Maximum size of a batch request body, in bytes. Default: 32 times the largest job, or 1 KiB for each job of the
        largest batch if that is more. Other bodies may have the size of the largest job plus
        ``MAX_REQUEST_OVERHEAD_BYTES``, but
        no more than ``max_body_bytes``.
    tenants:
        Initial configuration of tenants, applied at startup to tenants without one.
    guarded:
        Whether every caller needs a token (``ojster.server.authentication``).
    guard:
        Refuses requests that web pages of others cause; ``None``: none is refused, except for WebSocket.
    smtp:
        Mail server for e-mail notifications.
    worker:
        A worker that runs orchestrators while the application serves.
    proxies:
        Proxies whose word about the addresses of callers counts; by default none.
    oidc:
        The OpenID Connect provider whose tokens are accepted, too, if ``guarded``; ``None``: there is none.
    capabilities:
        The capabilities that the application serves; those of the service, unless some are to be left out.
    shared_counts:
        What the processes that share its port count together; ``None``: it is the only one.
    triggers:
        What makes jobs of CloudEvents.

    Spec: ojs-http-binding 20
    """

    def __init__(
        self,
        service: Service,
        *,
        cors_origins: Sequence[str] = (),
        trusting: bool = False,
        max_body_bytes: int | None = None,
        tenants: Sequence[TenantChange] = (),
        guarded: bool = False,
        guard: BrowserGuard | None = None,
        smtp: Smtp | None = None,
        worker: Worker | None = None,
        proxies: TrustedProxies | None = None,
        oidc: OidcSettings | None = None,
        capabilities: Sequence[Capability] = CAPABILITIES,
        shared_counts: SharedCounts | None = None,
        triggers: Triggers = Triggers(),  # noqa: B008  (it is frozen)
    ) -> None:
        self.service = service
        self._worker = worker
        self._socket_guard = guard or BrowserGuard(None, cors_origins)
        self._tenants = tenants
        self.metrics = Metrics(capabilities, shared_counts)
        service.database.on_events.append(self.metrics.count_events)
        self.deliverer = WebhookWorker(service, WebhookSender(trusting=trusting), smtp)
        self.pusher = _pusher(service, Sender(trusting=trusting), capabilities)
        self._has_provider = oidc is not None
        authenticator, login = _doors(service, oidc) if guarded else (None, None)
        trail, proxies = AuditTrail(service), proxies or TrustedProxies()
        sender, feed = self.deliverer.sender, Feed(service)
        self._services = Services(sender, feed, authenticator, guard, trail, proxies, login, triggers)
        self._largest_body = max_body_bytes or max(
            32 * service.database.settings.largest_job, service.database.settings.largest_batch * 1024
        )
        self._specified = routes_of(capabilities)
        self._recent = RecentAnswers()
        service.database.records_events = True
        routes = [*self._specified, *self._plain_routes()]
        endpoints = {(route.method, route.path): self._endpoint(route) for route in routes}
        # Paths without parameters are looked up at once; Starlette searches for the others.
        streams = {(route.method, route.path) for route in routes if route.streams or route.exports}
        self._direct = {key: made for key, made in endpoints.items() if "{" not in key[1] and key not in streams}
        by_path = _by_path(endpoints).items()
        starlette = Starlette(
            routes=[
                *(StarletteRoute(path, methods, methods=list(methods)) for path, methods in by_path),
                WebSocketRoute(f"{BASE}/ws", self._follow_by_socket),
            ],
            exception_handlers={HTTPException: self._refuse_path},
            lifespan=self._lifespan,
        )
        starlette.router.redirect_slashes = False
        self._app: ASGIApp = _with_cors(starlette, cors_origins) if cors_origins else starlette
        if cors_origins:
            self._direct = {}
        self.direct = {(method.encode(), path.encode()): endpoint for (method, path), endpoint in self._direct.items()}
        """Endpoints that the protocol may call directly, without middleware, by method and path."""
        self.known_heads = KnownHeads()
        """What the protocol remembers of the heads of requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = with_encoded_slashes(scope)  # first: ``/ojs%2Fv1/jobs`` is another path than ``/ojs/v1/jobs``
        if scope["type"] == "http":
            endpoint = self._direct.get((scope["method"], scope["path"]))
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def drain(self) -> None:
        """Answer parked fetches and announce the shutdown to event streams. This is the first step of a shutdown."""
        self.service.drain()
        await self._services.feed.announce_shutdown()

    def _endpoint(self, route: Route) -> Endpoint:
        single = self.service.database.settings.largest_job + MAX_REQUEST_OVERHEAD_BYTES
        largest = self._largest_body if route.large else min(single, self._largest_body)
        handler = numbered(route.handler) if "page" in route.query else route.handler
        if route.recent:
            handler = self._recent.shared(handler)
        return Endpoint(route, handler, self.service, self.metrics, largest, self._services)

    def _plain_routes(self) -> list[Route]:
        """Return the routes that the specification does not define."""
        return [
            Route("GET", "/metrics", self._show_metrics, "Server"),
            Route("GET", "/openapi.json", self._show_openapi, "Server", is_public=True),
            Route("GET", "/docs", self._show_docs, "Server", is_public=True),
            Route("GET", "/", dashboard_page.show_root, "Server", is_public=True),
            Route("GET", "/dashboard", dashboard_page.show_dashboard, "Server", is_public=True),
            Route("GET", "/dashboard/{path:path}", dashboard_page.show_dashboard, "Server", is_public=True),
            Route("GET", "/docs/start.js", self._start_docs, "Server", is_public=True),
            *(Route("GET", f"/docs/{name}", self._asset(name), "Server", is_public=True) for name in self._assets()),
        ]

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        for tenant in self._tenants:
            await self.service.scope.do(introduce_tenants, tenant)
        needs_token = self._services.authenticator is not None and not self._has_provider
        if needs_token and not await self.service.tokens.all():
            log.warning("callers need a token, but none exists; create one: ojster tokens create NAME --role owner")
        try:
            held = await self.service.fleet.give_time_to_report()
            log.debug("%d jobs are with workers, which have 10 s to report before a lease ends", held)
        except OjsterError as error:  # /ready says it, too
            log.warning("cannot give workers time to report: %s", error)
        self.service.maintenance.start()
        self.deliverer.start()
        if self.pusher is not None:
            self.pusher.start()
        working = None if self._worker is None else asyncio.create_task(self._run(self._worker))
        try:
            async with self.metrics.shared():
                with observed_depth(self.service.database):
                    yield
        finally:
            if self._worker is not None and working is not None:
                self._worker.stop(grace=ORCHESTRATOR_GRACE_SECONDS)
                await working
            if self.pusher is not None:
                await self.pusher.stop()
            await self.deliverer.stop()
            await self.service.close()

    async def _run(self, worker: Worker) -> None:
        try:
            await worker.run()
        except Exception:
            log.exception("the server's worker has failed; this server runs no orchestrators until it is restarted")

    async def _refuse_path(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal: OjsterError
        if error.status_code == 405:
            refusal = MethodNotAllowed(f"{request.url.path} does not support {request.method}.")
        else:
            refusal = NotFound(f"The path {request.url.path} does not exist.", resource_type="path")
        raw, services = request.headers.raw, self._services
        refused = HttpRequest(self.service, self._largest_body, raw, b"", {}, request.receive, services)
        answer = refuse(refusal, refused.request_id)
        common = {name.decode(): value.decode() for name, value in COMMON_HEADERS}
        headers = {**common, "X-Request-Id": refused.request_id, **dict(error.headers or {})}
        return Response(answer.body, answer.status, headers, answer.content_type.decode())

    async def _follow_by_socket(self, socket: WebSocket) -> None:
        await serve_websocket(socket, self.service, self._services, self._socket_guard.check)

    async def _show_metrics(self, request: HttpRequest) -> Answer:
        return Answer(await self.metrics.render(self.service), content_type=b"text/plain")

    @cached_property
    def _openapi(self) -> bytes:
        # Made when somebody asks: it takes longer than everything else that a start of the server does.
        return encode(openapi.document(self._specified))

    async def _show_openapi(self, request: HttpRequest) -> Answer:
        return Answer(self._openapi, content_type=b"application/json")

    async def _show_docs(self, request: HttpRequest) -> Answer:
        return api_page.page()

    async def _start_docs(self, request: HttpRequest) -> Answer:
        return api_page.start_script()

    def _asset(self, name: str) -> Callable[[HttpRequest], Awaitable[Answer]]:
        async def show(request: HttpRequest) -> Answer:
            return api_page.asset(name)

        return show

    @staticmethod
    def _assets() -> Sequence[str]:
        return tuple(api_page.FILES) if api_page.has_viewer() else ()


def _doors(service: Service, oidc: OidcSettings | None) -> tuple[Authenticator, OidcLogin | None]:
    """Return what checks the tokens of callers, and what lets browsers log in at a provider, if they may."""
    if oidc is None:
        return Authenticator(service), None
    verifier = OidcVerifier(oidc)
    return Authenticator(service, verifier), None if oidc.client is None else OidcLogin(oidc, verifier)


def _pusher(service: Service, sender: Sender, capabilities: Sequence[Capability]) -> PushWorker | None:
    """Return what sends jobs to push endpoints, unless that is left out."""
    return PushWorker(service, sender) if any(known.name == "push" for known in capabilities) else None


def _by_path(endpoints: Mapping[tuple[str, str], Endpoint]) -> dict[str, _Methods]:
    methods: dict[str, _Methods] = {}
    for (method, path), endpoint in endpoints.items():
        methods.setdefault(path, _Methods())[method] = endpoint
    return methods


def _with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return an application that browsers on other origins may call."""
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
        allow_headers=READ_HEADERS,
        expose_headers=list(EXPOSED_HEADERS),
        max_age=86_400,
    )
