"""HTTP requests and responses: from an ASGI call to an endpoint's handler and back.

Every endpoint is a plain ASGI callable with the same four steps: read, check, run, respond. The headers that every
response carries, the error bodies and the request ids are made only here.

Spec: ojs-http-binding 4, 6, 16, 19
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from ojster import tracing
from ojster.core.access import Operation
from ojster.core.errors import (
    BackendError,
    Forbidden,
    InvalidPayload,
    InvalidRequest,
    OjsterError,
    PayloadTooLarge,
    Unauthenticated,
    Unsupported,
)
from ojster.core.ids import new_id
from ojster.core.json_objects import Members, read_members
from ojster.core.parsing import refuse_misspelt
from ojster.core.tenant import check_tenant
from ojster.events.streams import Feed
from ojster.events.webhook_sender import WebhookSender
from ojster.jobs.new_job import SPEC_VERSION
from ojster.jobs.scope import Caller
from ojster.server.answer import MEDIA_TYPE, PLAIN_JSON, Answer, Header, encode
from ojster.server.authentication import Authenticator, audit
from ojster.server.browser_guard import BrowserGuard
from ojster.server.compression import decompress
from ojster.server.metrics import Metrics
from ojster.server.paths import path_parameters
from ojster.server.streaming import send_stream
from ojster.service import Service

log = logging.getLogger(__name__)


T = TypeVar("T")


_ACCEPTED_TYPES: Final = frozenset({MEDIA_TYPE, PLAIN_JSON, b""})


_ANYTHING: Final = frozenset({b"", b"*/*"})


COMMON_HEADERS: Final = ((b"ojs-version", SPEC_VERSION.encode()), (b"x-content-type-options", b"nosniff"))

_MAX_REQUEST_ID_LENGTH: Final = 200

_TRACE_HEADERS: Final = frozenset(name.encode() for name in tracing.CARRIED)

_REQUEST_PREFIX: Final = f"req_{new_id()}-"


_request_numbers: Final = itertools.count(1)


class Services(NamedTuple):
    """What endpoints need beside the engine: the webhook sender, the event feed, authentication, and a guard.

    ``authenticator`` is ``None`` if callers need no token, ``guard`` if any browser may call.
    """

    sender: WebhookSender
    feed: Feed
    authenticator: Authenticator | None = None
    guard: BrowserGuard | None = None


class HttpRequest:
    """One request, as a handler sees it.

    Attributes
    ----------
    path:
        The path parameters.
    address:
        The client's address; empty if unknown.
    prefers_plain_json:
        Whether the answer must be ``application/json``: the client accepts that and not the media type of Open Job
        Spec, or accepts anything and sends that.
    """

    __slots__ = (
        "_query_string",
        "_receive",
        "_services",
        "address",
        "content_encoding",
        "content_length",
        "content_type",
        "engine",
        "headers",
        "max_body_bytes",
        "path",
        "prefers_plain_json",
        "request_id",
        "tenant",
        "version",
    )

    def __init__(
        self,
        engine: Service,
        max_body_bytes: int,
        headers: Sequence[Header],
        query_string: bytes,
        path: Mapping[str, str],
        receive: Receive,
        services: Services | None = None,
    ) -> None:
        self.engine = engine
        self._services = services
        self.address = ""
        self.max_body_bytes = max_body_bytes
        self.path = path
        self.headers = headers
        self._query_string = query_string
        self._receive = receive
        self.content_type = b""
        self.content_length = b""
        self.content_encoding = b""
        self.version = b""
        self.tenant: bytes | None = None
        request_id = accept = b""
        for name, value in headers:
            if name == b"content-type":
                self.content_type = value
            elif name == b"content-length":
                self.content_length = value
            elif name == b"x-request-id":
                request_id = value
            elif name == b"ojs-version":
                self.version = value
            elif name == b"x-ojs-tenant":
                self.tenant = value
            elif name == b"accept":
                accept = value
            elif name == b"content-encoding":
                self.content_encoding = value
        self.prefers_plain_json = (
            PLAIN_JSON in accept and MEDIA_TYPE not in accept
            if accept not in _ANYTHING
            else self.content_type.startswith(PLAIN_JSON)
        )
        usable = (
            0 < len(request_id) <= _MAX_REQUEST_ID_LENGTH and request_id.isascii() and request_id.decode().isprintable()
        )
        self.request_id = request_id.decode() if usable else f"{_REQUEST_PREFIX}{next(_request_numbers):x}"

    def check_query(self, known: Collection[str]) -> None:
        """Refuse query parameters that the endpoint does not have: a misspelt filter would show everything."""
        if self._query_string and (unknown := sorted(self.query.keys() - known)):
            has = f"It has {', '.join(sorted(known))}." if known else "It has none."
            raise InvalidRequest(f"This endpoint has no query parameter {unknown[0][:60]!r}. {has}", field=unknown[0])

    @property
    def query(self) -> dict[str, str]:
        """The query parameters. If one occurs several times, the last value counts."""
        return dict(parse_qsl(self._query_string.decode("latin-1"), keep_blank_values=True))

    @property
    def sender(self) -> WebhookSender:
        """The webhook sender."""
        assert self._services is not None, "the request belongs to no endpoint"
        return self._services.sender

    @property
    def feed(self) -> Feed:
        """The event feed."""
        assert self._services is not None, "the request belongs to no endpoint"
        return self._services.feed

    def check_version(self) -> None:
        """Reject a request for a specification version that this server does not support.

        Spec: ojs-http-binding 3.2
        """
        if self.version and self.version != b"1.0" and not self.version.startswith(b"1.0."):
            raise Unsupported(
                f"OJS-Version {self.version.decode('latin-1')[:32]!r} is not supported; this server speaks "
                f"{SPEC_VERSION!r}."
            )

    def confine(self, is_for_tenants: bool) -> None:
        """Limit the request to the tenant that it names.

        Raises
        ------
        InvalidRequest
            The tenant name is malformed.
        Forbidden
            The endpoint concerns all tenants.

        Spec: ojs-multi-tenancy 5.3
        """
        if self.tenant is not None:
            tenant = check_tenant(self.tenant.decode("latin-1"))
            if not is_for_tenants:
                raise Forbidden("This endpoint concerns all tenants. Remove the header X-OJS-Tenant.")
            self.engine = self.engine.as_(Caller(tenant))

    async def optional_body(self) -> bytes:
        """Return the request body, which may be missing. Raises as ``body`` does."""
        return await self.body(may_be_missing=True)

    async def body(self, *, may_be_missing: bool = False) -> bytes:
        """Return the request body, decompressed.

        Raises
        ------
        InvalidRequest
            The content type is not JSON, or its compression is not supported.
        PayloadTooLarge
            The body is longer than ``max_body_bytes`` bytes.
        InvalidPayload
            The client closed the connection before the body was complete.
        """
        kind = self.content_type or (b"application/json" if may_be_missing else b"")
        if kind not in _ACCEPTED_TYPES and kind.partition(b";")[0].strip().lower() not in _ACCEPTED_TYPES:
            raise InvalidRequest(
                f"The content type {self.content_type.decode('latin-1')[:80]!r} is not supported; "
                "use 'application/openjobspec+json' or 'application/json'."
            )
        if self.content_length.isdigit() and int(self.content_length) > self.max_body_bytes:
            raise self._too_large(int(self.content_length))
        body = await self._whole_body()
        if not self.content_encoding:
            return body
        return decompress(body, self.content_encoding.decode("latin-1"), self.max_body_bytes)

    async def _whole_body(self) -> bytes:
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if len(body) > self.max_body_bytes:
                raise self._too_large(len(body))
            return body
        parts, size = [body], len(body)
        while message.get("more_body"):
            message = await self._receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.max_body_bytes:
                raise self._too_large(size)
        if message["type"] == "http.disconnect":
            raise InvalidPayload("The connection was closed before the request body was complete.")
        return b"".join(parts)

    async def pieces(self) -> AsyncGenerator[bytes | None, None]:
        """Yield the request body in chunks, with any content type and size; finally ``None`` if it is cut off."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                yield None
                return
            if body := message.get("body", b""):
                yield body
            more = message.get("more_body", False)

    async def members(self) -> Members:
        """Return the undecoded members of the JSON object in the body."""
        return read_members(await self.body())

    async def read(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Return the body, decoded into the decoder's type.

        Raises
        ------
        InvalidPayload
            The body is not a JSON object.
        InvalidRequest
            A member is missing, has the wrong type, or is unknown and looks like a misspelt one.
        """
        return self.decode(await self.body(), decoder)

    def decode(self, raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        """Return a body that was already read, decoded into the decoder's type. Raises as ``read`` does."""
        members = read_members(raw)
        refuse_misspelt(members, decoder.type)
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{error}.") from None

    def header(self, name: bytes) -> str | None:
        """Return a request header by its lower-case name; ``None`` if it is missing."""
        return next((value.decode("latin-1") for known, value in self.headers if known == name), None)

    def credentials(self) -> tuple[str | None, str | None]:
        """Return the ``Authorization`` header, and the workspace that the request names."""
        return self.header(b"authorization"), None if self.tenant is None else self.tenant.decode("latin-1")

    def trace_headers(self) -> dict[str, str]:
        """Return the request headers that carry the trace context."""
        return {name.decode(): value.decode("latin-1") for name, value in self.headers if name in _TRACE_HEADERS}

    async def gone(self) -> None:
        """Wait until the client closes the connection. The body must have been read before."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _too_large(self, size: int) -> PayloadTooLarge:
        largest = self.max_body_bytes
        message = f"The request body takes {size} bytes; at most {largest} are allowed."
        return PayloadTooLarge(message, limit=largest, max_bytes=largest, actual_bytes=size, field="body")


Handler = Callable[[HttpRequest], Awaitable[Answer]]


class Terms(msgspec.Struct, frozen=True):
    """What an endpoint asks of its callers.

    Parameters
    ----------
    is_for_tenants:
        Whether it accepts requests for one tenant.
    needs:
        Accepted operations: the caller needs at least one. Empty: callers need no token.
    is_audited:
        Whether calls are written to the audit log.
    query:
        Names of its query parameters; requests with others are refused. ``None``: any.
    """

    is_for_tenants: bool = True
    needs: Collection[Operation] = ()
    is_audited: bool = False
    query: frozenset[str] | None = None


class Endpoint:
    """An endpoint, as an ASGI application.

    Parameters
    ----------
    handler:
        Returns the response, or raises an ``OjsterError``.
    engine:
        The engine that the handler uses.
    metrics:
        Counts the requests.
    max_body_bytes:
        Maximum size of a request body, in bytes.
    services:
        What endpoints need beside the engine.
    terms:
        What it asks of its callers.
    """

    def __init__(
        self,
        handler: Handler,
        engine: Service,
        metrics: Metrics,
        max_body_bytes: int,
        services: Services | None = None,
        terms: Terms = Terms(),  # noqa: B008  (it is frozen)
    ) -> None:
        self._handler = handler
        self._query = terms.query
        self._needs = terms.needs
        self._is_audited = terms.is_audited
        self._doorkeeper = None if services is None else services.authenticator
        self._guard = None if services is None else services.guard
        self._is_for_tenants = terms.is_for_tenants
        self._services = services
        self._engine = engine
        self._metrics = metrics
        self.max_body_bytes = max_body_bytes
        self._name = handler.__name__

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self.exchange(scope["headers"], scope["query_string"], path_parameters(scope), receive)
        exchange.address = (scope.get("client") or ("",))[0]
        answer = await self.answer(exchange)
        headers = [*COMMON_HEADERS, *answer.all_headers(exchange.request_id)]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if answer.stream is not None and scope["method"] == "HEAD":
            await answer.stream.aclose()
            await send({"type": "http.response.body", "body": b""})
        elif answer.stream is None:
            await send({"type": "http.response.body", "body": answer.body})
        else:
            await send_stream(answer.stream, exchange.gone(), send, self._watch(exchange))

    def _watch(self, exchange: HttpRequest) -> AbstractContextManager[object]:
        """Return a context that ends when the caller's token is revoked or expires."""
        if self._doorkeeper is None or not self._needs:
            return nullcontext()
        return self._doorkeeper.watch(*exchange.credentials())

    def exchange(
        self, headers: Sequence[Header], query_string: bytes, path: Mapping[str, str], receive: Receive
    ) -> HttpRequest:
        """Create the ``HttpRequest`` of a request to this endpoint."""
        return HttpRequest(self._engine, self.max_body_bytes, headers, query_string, path, receive, self._services)

    async def answer(self, exchange: HttpRequest) -> Answer:
        """Handle a request, and count it."""
        started = time.perf_counter()
        with tracing.serving(self._name, exchange.trace_headers()) if tracing.ENABLED else nullcontext():
            answer = await self._answer(exchange)
        if exchange.prefers_plain_json and answer.content_type is MEDIA_TYPE:
            answer.content_type = PLAIN_JSON
        self._metrics.count_request(self._name, answer.status, time.perf_counter() - started)
        return answer

    async def _answer(self, exchange: HttpRequest) -> Answer:
        try:
            if self._guard is not None:
                self._guard.check(exchange.headers)
            if exchange.version:
                exchange.check_version()
            if self._query is not None:
                exchange.check_query(self._query)
            if self._doorkeeper is not None and self._needs:
                return await self._guarded(self._doorkeeper, exchange)
            if exchange.tenant is not None:
                exchange.confine(self._is_for_tenants)
            return await self._handler(exchange)
        except OjsterError as error:
            return refuse(error, exchange.request_id)
        except Exception:
            log.exception("%s failed (request %s)", self._name, exchange.request_id)
            why = f"Internal server error. Search the server log for {exchange.request_id}."
            return refuse(BackendError(why), exchange.request_id)

    async def _guarded(self, authenticator: Authenticator, exchange: HttpRequest) -> Answer:
        """Authenticate and authorize the caller, handle the request, and write to the audit log where required."""
        try:
            exchange.engine, access = await authenticator.admit(*exchange.credentials())
            if exchange.engine.scope.tenant is not None and not self._is_for_tenants:
                raise Forbidden("This endpoint concerns all workspaces. Use a global token, and no X-OJS-Tenant.")
            access.need(*self._needs)
            with self._watch(exchange):
                answer = await self._handler(exchange)
        except (Unauthenticated, Forbidden) as error:
            self._audit("auth.refused" if isinstance(error, Unauthenticated) else "access.denied", exchange, error)
            raise
        except OjsterError as error:
            if self._is_audited:
                self._audit("access.used", exchange, error)
            raise
        if self._is_audited:
            self._audit("access.used", exchange)
        return answer

    def _audit(self, event_type: str, exchange: HttpRequest, refusal: OjsterError | None = None) -> None:
        audit(
            event_type,
            exchange.engine,
            address=exchange.address,
            request_id=exchange.request_id,
            refusal=refusal,
            operation=self._name,
            **exchange.path,
        )


def refuse(error: OjsterError, request_id: str) -> Answer:
    """Return the response for an error.

    Spec: ojs-http-binding 16
    """
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    return Answer(encode({"error": error.to_wire(request_id)}), error.status, headers)
