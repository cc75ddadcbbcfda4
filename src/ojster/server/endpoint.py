"""Endpoints: from an ASGI call to a handler and back.

Every endpoint is a plain ASGI callable with the same four steps: read, check, run, respond. The headers that every
response carries and the error bodies are made only here.

Spec: ojs-http-binding 4, 6, 16, 19
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from ojster.audit.entries import AccessEvent, AuditEvent
from ojster.core.errors import BackendError, Forbidden, OjsterError, Unauthenticated
from ojster.handlers import tracing
from ojster.jobs.new_job import SPEC_VERSION
from ojster.server import sdk_answers
from ojster.server.answer import MEDIA_TYPE, PLAIN_JSON, Answer, Header, UnchangedAnswer, encode
from ojster.server.audit_trail import AuditTrail, shown_object, shown_request
from ojster.server.audit_words import in_words
from ojster.server.authentication import Authenticator
from ojster.server.metrics import Metrics
from ojster.server.paths import path_parameters
from ojster.server.request import Handler, HttpRequest, Services
from ojster.server.route import Route
from ojster.server.streaming import send_stream
from ojster.service import Service

log = logging.getLogger(__name__)

COMMON_HEADERS: Final = ((b"ojs-version", SPEC_VERSION.encode()), (b"x-content-type-options", b"nosniff"))


class Endpoint:
    """An endpoint, as an ASGI application.

    Parameters
    ----------
    route:
        The declaration: what it asks of its callers.
    handler:
        Returns the response, or raises an ``OjsterError``.
    service:
        The service that the handler uses.
    metrics:
        Counts the requests.
    max_body_bytes:
        Maximum size of a request body, in bytes.
    services:
        What endpoints need beside the service.
    """

    def __init__(
        self,
        route: Route,
        handler: Handler,
        service: Service,
        metrics: Metrics,
        max_body_bytes: int,
        services: Services,
    ) -> None:
        self._handler = handler
        self._query = route.known_query
        self._is_reading = route.method == "GET"
        self._needs = route.needs
        self._is_audited = route.is_audited
        self._authenticator = services.authenticator
        self._guard = services.guard
        self._trail = services.trail
        self._is_for_tenants = route.is_for_tenants
        self._services = services
        self._service = service
        self._metrics = metrics
        self.max_body_bytes = max_body_bytes
        self._name = handler.__name__

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        request = self.request_of(scope["headers"], scope["query_string"], path_parameters(scope), receive)
        request.address = (scope.get("client") or ("",))[0]
        answer = await self.answer(request)
        headers = [*COMMON_HEADERS, *answer.all_headers(request.request_id)]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if answer.stream is not None and scope["method"] == "HEAD":
            await answer.stream.aclose()
            await send({"type": "http.response.body", "body": b""})
        elif answer.stream is None:
            await send({"type": "http.response.body", "body": answer.body})
        else:
            await send_stream(answer.stream, request.gone(), send, self._watch(request), may_stop=answer.may_stop)

    def _watch(self, request: HttpRequest) -> AbstractContextManager[object]:
        """Return a context that ends when the caller's token is revoked or expires."""
        if self._authenticator is None or not self._needs:
            return nullcontext()
        return self._authenticator.watch(request.credentials())

    def request_of(
        self, headers: Sequence[Header], query_string: bytes, path: Mapping[str, str], receive: Receive
    ) -> HttpRequest:
        """Create the ``HttpRequest`` of a request to this endpoint."""
        request = HttpRequest(self._service, self.max_body_bytes, headers, query_string, path, receive, self._services)
        request.is_reading = self._is_reading
        return request

    async def answer(self, request: HttpRequest) -> Answer:
        """Handle a request, and count it."""
        started = time.perf_counter()
        with tracing.serving(self._name, request.trace_headers):
            answer = await self._answer(request)
        if request.warnings:
            answer.warn(request.warnings)
        if request.prefers_plain_json and answer.content_type is MEDIA_TYPE:
            answer.content_type = PLAIN_JSON
        if request.version:  # ``is_from_sdk`` without the call, which every request would pay for
            sdk_answers.adapt(answer)
        self._metrics.count_request(self._name, answer.status, time.perf_counter() - started)
        return answer

    async def _answer(self, request: HttpRequest) -> Answer:
        try:
            if self._guard is not None:
                self._guard.check(request.headers)
            if request.version:
                request.check_version()
            if request.required:
                request.check_extensions()
            if self._query is not None:
                request.check_query(self._query)
            if self._authenticator is not None and self._needs:
                return await self._guarded(self._authenticator, request)
            if request.tenant is not None:
                request.confine(self._is_for_tenants)
            if self._trail is None or not self._is_audited:
                return await self._handler(request)
            return await self._audited(self._trail, request)
        except OjsterError as error:
            return refuse(request.shown(error), request.request_id)
        except Exception:
            log.exception("%s failed (request %s)", self._name, request.request_id)
            why = f"Internal server error. Search the server log for {request.request_id}."
            return refuse(BackendError(why), request.request_id)

    async def _guarded(self, authenticator: Authenticator, request: HttpRequest) -> Answer:
        """Authenticate and authorize the caller, and handle the request; write refusals to the audit log."""
        try:
            request.service, access = await authenticator.admit(request.credentials())
            if request.service.scope.tenant is not None and not self._is_for_tenants:
                raise Forbidden("This endpoint concerns all workspaces. Use a global token, and no X-OJS-Tenant.")
            access.need(*self._needs)
            with self._watch(request):
                if self._trail is None or not self._is_audited:
                    return await self._handler(request)
                return await self._audited(self._trail, request)
        except (Unauthenticated, Forbidden) as error:
            await record_refusal(request, error, self._name, *_concerned(request))
            raise

    async def _audited(self, trail: AuditTrail, request: HttpRequest) -> Answer:
        """Handle the request, and write to the audit log what became of it before it is answered."""
        try:
            answer = await self._handler(request)
        except Forbidden:
            raise  # whoever lacks a role is told apart
        except OjsterError as error:
            await self._tell(trail, request, error)
            raise
        if not isinstance(answer, UnchangedAnswer):
            await self._tell(trail, request, answer=answer.body)
        return answer

    async def _tell(
        self, trail: AuditTrail, request: HttpRequest, refusal: OjsterError | None = None, answer: bytes | None = None
    ) -> None:
        object, detail = _concerned(request)
        if (words := in_words(self._name, request.path, request.known_body, answer)) is not None:
            detail["summary"] = words
        await trail.tell(_entry("access.used", "anyone", request, self._name, object, detail, refusal))


def _concerned(request: HttpRequest) -> tuple[str, dict[str, Any]]:
    """Return what a request concerns, for the audit log: a name, and details."""
    detail: dict[str, Any] = dict(request.path)
    object = shown_object(request.path.values())
    if not request.path and request.known_body:  # the path does not tell what the request concerns
        shown = detail["request"] = shown_request(request.known_body)
        if isinstance(name := shown.get("name") if isinstance(shown, dict) else None, str):
            object = shown_object([name])
    return object, detail


async def record_refusal(
    request: HttpRequest, error: OjsterError, operation: str, object: str, detail: dict[str, Any]
) -> None:
    """Write to the audit log that a caller lacks a valid token or a role; other errors are not written."""
    trail = request.services.trail
    if trail is not None and isinstance(error, (Unauthenticated, Forbidden)):
        event: AccessEvent = "auth.refused" if isinstance(error, Unauthenticated) else "access.denied"
        await trail.tell(_entry(event, "unknown", request, operation, object, detail, error))


def _entry(
    event: AccessEvent,
    somebody: str,
    request: HttpRequest,
    operation: str,
    object: str,
    detail: dict[str, Any],
    refusal: OjsterError | None,
) -> AuditEvent:
    """Return an entry of the audit log. ``somebody``: the principal of a request without a token."""
    scope = request.service.scope
    return AuditEvent(
        event=event,
        principal=scope.who or somebody,
        operation=operation,
        object=object,
        outcome="success" if refusal is None else "failure",
        source_ip=request.caller_address(),
        correlation_id=request.request_id,
        tenant=scope.tenant,
        refusal=None if refusal is None else refusal.code,
        detail=detail,
    )


def refuse(error: OjsterError, request_id: str) -> Answer:
    """Return the response for an error.

    Spec: ojs-http-binding 16
    """
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    return Answer(encode({"error": error.to_wire(request_id)}), error.status, headers)
