"""HTTP requests, as the handlers of endpoints see them.

Spec: ojs-http-binding 4, 6, 16, 19
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive

from ojster.core.calls import Arguments
from ojster.core.errors import (
    BackendUnavailable,
    Forbidden,
    InvalidPayload,
    InvalidRequest,
    OjsterError,
    PayloadTooLarge,
    Unsupported,
)
from ojster.core.ids import canonical_job_id, new_id
from ojster.core.json_objects import Members, read_members
from ojster.core.parsing import (
    meant_by,
    misspelt_members,
    refuse_misspelt,
    unknown_members,
    use_canonical_job_ids,
    without_nulls,
)
from ojster.core.refusals import ExtensionNotSupported, size_details
from ojster.core.tenant import check_tenant
from ojster.core.turns import read_aside
from ojster.core.wire import FromWorker
from ojster.handlers import tracing
from ojster.insight.wire import EXPERIMENTAL, EXTENSIONS
from ojster.jobs.new_job import SPEC_VERSION
from ojster.jobs.scope import Caller
from ojster.server import session
from ojster.server.answer import MEDIA_TYPE, PLAIN_JSON, Answer, Header
from ojster.server.audit_trail import AuditTrail
from ojster.server.authentication import Authenticator, Credentials
from ojster.server.browser_guard import BrowserGuard
from ojster.server.compression import decompress
from ojster.server.delivery.webhook import WebhookSender
from ojster.server.event_streams import Feed
from ojster.server.oidc_login import OidcLogin
from ojster.server.proxies import TrustedProxies
from ojster.server.triggers import Triggers
from ojster.service import Service

T = TypeVar("T")

_FORM: Final = b"application/x-www-form-urlencoded"
_OF_BROWSERS: Final = frozenset({b"origin", b"referer", b"sec-fetch-site"})
_ACCEPTED_TYPES: Final = frozenset({MEDIA_TYPE, PLAIN_JSON, b""})

_ANYTHING: Final = frozenset({b"", b"*/*"})

_COMMAND_LINE: Final = b"Go-http-client/"
"""The ``User-Agent`` of a program in Go that names none, such as the command line of Open Job Spec."""

_ITS_VERSION: Final = SPEC_VERSION.encode()

_EXTENSIONS: Final = frozenset(extension.uri for extension in (*EXTENSIONS, *EXPERIMENTAL))

_MAX_REQUEST_ID_LENGTH: Final = 200

MAX_COMPLAINTS: Final = 10
"""Maximum number of unknown or repeated query parameters that an answer names."""

_REPEATED: Final = (
    "The query parameter {!r} occurs with several values. Send it once; if it takes several, with commas."
)

_TRACE_HEADERS: Final = frozenset(name.encode() for name in tracing.CARRIED)

_REQUEST_PREFIX: Final = f"req_{new_id()}-"

_request_numbers: Final = itertools.count(1)


log = logging.getLogger(__name__)

OUTAGE: Final = "The database cannot be used at the moment. Try again later; the log of the server says why."
"""What callers learn of an outage where they need a token."""


class Services(NamedTuple):
    """What endpoints need beside the service: the webhook sender, the event feed, authentication, and a guard.

    ``authenticator`` is ``None`` if callers need no token, ``guard`` if any browser may call, ``trail`` if nothing is
    audited. ``proxies`` are those whose word about addresses counts. ``login`` sends browsers to an identity provider,
    and ``triggers`` make jobs of CloudEvents.
    """

    sender: WebhookSender
    feed: Feed
    authenticator: Authenticator | None = None
    guard: BrowserGuard | None = None
    trail: AuditTrail | None = None
    proxies: TrustedProxies = TrustedProxies()
    login: OidcLogin | None = None
    triggers: Triggers = Triggers()


class HttpRequest:
    """One request, as a handler sees it.

    Attributes
    ----------
    services:
        What endpoints need beside the service.
    query_string:
        The query of the request's address, as it was sent.
    path:
        The path parameters.
    address:
        The address that the connection comes from; empty if unknown.
    sent:
        The body as it was sent, of a size that is allowed; ``None``: it is still to be received.
    known_body:
        The body, if it was read; empty otherwise.
    warnings:
        What the caller learns about members of its request that have no effect.
    is_reading:
        Whether the endpoint changes nothing.
    prefers_plain_json:
        Whether the answer must be ``application/json``: the client accepts that and not the media type of Open Job
        Spec, or accepts anything and sends that.
    """

    __slots__ = (
        "_receive",
        "address",
        "content_encoding",
        "content_length",
        "content_type",
        "headers",
        "is_reading",
        "known_body",
        "max_body_bytes",
        "path",
        "prefers_plain_json",
        "query_string",
        "request_id",
        "required",
        "sent",
        "service",
        "services",
        "tenant",
        "version",
        "warnings",
    )

    def __init__(
        self,
        service: Service,
        max_body_bytes: int,
        headers: Sequence[Header],
        query_string: bytes,
        path: Mapping[str, str],
        receive: Receive,
        services: Services,
    ) -> None:
        self.service = service
        self.warnings: Sequence[str] = ()
        self.is_reading = False
        self.services = services
        self.address = ""
        self.sent: bytes | None = None
        self.known_body = b""
        self.max_body_bytes = max_body_bytes
        self.path = path
        self.headers = headers
        self.query_string = query_string
        self._receive = receive
        self.content_type = b""
        self.content_length = b""
        self.content_encoding = b""
        self.required = self.version = b""
        self.tenant: bytes | None = None
        request_id = accept = agent = b""
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
            elif name == b"user-agent":
                agent = value
            elif name == b"ojs-requires-extension":
                self.required = value
        if accept == MEDIA_TYPE and agent.startswith(_COMMAND_LINE) and not self.version:
            self.version = _ITS_VERSION
        self.prefers_plain_json = (
            PLAIN_JSON in accept and MEDIA_TYPE not in accept
            if accept not in _ANYTHING
            else self.content_type.startswith(PLAIN_JSON)
        )
        usable = (
            0 < len(request_id) <= _MAX_REQUEST_ID_LENGTH and request_id.isascii() and request_id.decode().isprintable()
        )
        self.request_id = request_id.decode() if usable else f"{_REQUEST_PREFIX}{next(_request_numbers):x}"

    @property
    def is_from_sdk(self) -> bool:
        """Whether an official SDK, or the official command line, has sent it.

        Each SDK, and nothing else that is known, says ``OJS-Version``. The command line reads the same answers. It says
        no more than that it is written in Go and accepts the media type of the specification alone.
        """
        return bool(self.version)

    def check_query(self, known: Collection[str]) -> None:
        """Refuse query parameters that the endpoint does not have, or of which one value would have no effect.

        With a misspelt filter, it would show everything. Those of an SDK are no mistakes of its user, who cannot change
        them: they only bring warnings if it reads.
        """
        if not self.query_string:
            return
        sent = sorted(set(self._pairs()))
        complaints = {name: _unknown_parameter(name, known) for name, _ in sent if name not in known}
        times = Counter(name for name, value in sent if value)
        complaints |= {name: _REPEATED.format(name) for name in times if times[name] > 1 and name in known}
        if complaints and not (self.is_from_sdk and self.is_reading):
            name, message = next(iter(complaints.items()))
            raise InvalidRequest(message, field=name)
        self.warnings = list(complaints.values())[:MAX_COMPLAINTS]

    @property
    def query(self) -> dict[str, str]:
        """The query parameters. ``job_id`` is in lower case.

        An empty one of an endpoint that only reads counts as left out: forms send all their fields, and a first page
        has an empty cursor. Elsewhere it may be a variable without a value, and is refused by whoever reads it.
        """
        parameters = dict(self._pairs())
        if self.is_reading:
            parameters = {name: value for name, value in parameters.items() if value}
        return parameters | {"job_id": canonical_job_id(parameters["job_id"])} if "job_id" in parameters else parameters

    def _pairs(self) -> list[tuple[str, str]]:
        return parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True)

    def shown_outage(self, reason: str) -> str:
        """Return what a caller may learn of why the database cannot be used.

        The reason names its user, host, path and schema. Where callers need a token, it is only in the log: those who
        have none may ask for the health of the server, and without the database no token can be checked.
        """
        if self.services.authenticator is None:
            return reason
        log.warning("request %s: %s", self.request_id, reason)
        return OUTAGE

    def shown(self, error: OjsterError) -> OjsterError:
        """Return an error as the caller may see it: see ``shown_outage``."""
        return BackendUnavailable(self.shown_outage(error.message)) if isinstance(error, BackendUnavailable) else error

    def warn(self, *warnings: str) -> None:
        """Add warnings to those in the answer."""
        self.warnings = [*self.warnings, *warnings]

    def check_extensions(self) -> None:
        """Reject a request that depends on an extension that the manifest does not list.

        Spec: ojs-extension-lifecycle 8.3
        """
        for uri in self.required.decode("latin-1").split(","):
            if (wanted := uri.strip()) not in _EXTENSIONS:
                raise ExtensionNotSupported(
                    f"The extension {wanted[:200]!r} is not supported. GET /ojs/manifest lists those that are.",
                    extension=wanted[:200],
                )

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
            self.service = self.service.as_(Caller(tenant))

    async def body(self, *, may_be_missing: bool = False, also: bytes = b"") -> bytes:
        """Return the request body, decompressed. ``also``: a content type that is accepted beside JSON.

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
        if kind not in _ACCEPTED_TYPES:
            self._check_type(kind.partition(b";")[0].strip().lower(), also)
        if (body := self.sent) is None:
            if self.content_length.isdigit() and int(self.content_length) > self.max_body_bytes:
                raise self._too_large(int(self.content_length))
            body = await self._whole_body()
        if self.content_encoding:
            body = decompress(body, self.content_encoding.decode("latin-1"), self.max_body_bytes)
        self.known_body = body
        return body

    def _check_type(self, kind: bytes, also: bytes) -> None:
        """Accept JSON, and what ``curl -d`` says unless a browser says it: a page may send a form anywhere."""
        if kind in (*_ACCEPTED_TYPES, also) or (
            kind == _FORM and not any(name in _OF_BROWSERS for name, _ in self.headers)
        ):
            return
        raise InvalidRequest(
            f"The content type {self.content_type.decode('latin-1')[:80]!r} is not supported. Send JSON with the "
            "header Content-Type: application/json."
        )

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
        body = await self.body()
        return await read_aside(len(body), read_members, body)

    async def read(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Return the body, decoded into the decoder's type.

        Raises
        ------
        InvalidPayload
            The body is not a JSON object.
        InvalidRequest
            A member is missing, has the wrong type, or is unknown and looks like a misspelt one.
        """
        body = await self.body()
        return await read_aside(len(body), self.decode, body, decoder)

    def decode(self, raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        """Return a body that was already read, decoded into the decoder's type. Raises as ``read`` does."""
        members = read_members(raw)
        kind = decoder.type
        is_from_worker = isinstance(kind, type) and issubclass(kind, FromWorker)
        if not is_from_worker:
            is_call = isinstance(kind, type) and issubclass(kind, Arguments)
            refuse_misspelt(members, kind, inside=is_call)  # in jobs, misspelt options bring warnings
        body = self._decode(raw, decoder)
        if is_from_worker:
            report: Any = body
            self.warnings = misspelt_members(members, kind) + report.idle()
        elif is_call:
            self.warnings = unknown_members(members, kind)[:MAX_COMPLAINTS]
        use_canonical_job_ids(body)
        return body

    def _decode(self, raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError as error:
            problem = error
        try:
            if b"null" in raw and (without := without_nulls(raw, decoder.type)) != raw:
                return decoder.decode(without)
        except msgspec.ValidationError as error:
            problem = error
        raise InvalidRequest(f"{problem}.")

    def header(self, name: bytes) -> str | None:
        """Return a request header by its lower-case name; ``None`` if it is missing."""
        for known, value in self.headers:  # a generator would take three times as long
            if known == name:
                return value.decode("latin-1")
        return None

    def credentials(self) -> Credentials:
        """Return who calls, by its own word: a header or, from pages of the server, the cookie of a session."""
        tenant = None if self.tenant is None else self.tenant.decode("latin-1")
        authorization = self.header(b"authorization")
        if authorization is None:
            is_secure = self.services.login is not None and self.services.login.client.is_secure
            if (token := session.token_of(self.headers, is_secure=is_secure)) is not None:
                authorization = f"Bearer {token}"
        return Credentials(authorization, tenant, self.caller_address)

    def caller_address(self) -> str:
        """The address of the caller, as trusted proxies have passed it on; empty if unknown."""
        forwarded = b",".join(value for name, value in self.headers if name == b"x-forwarded-for")
        return self.services.proxies.address_of(self.address, forwarded.decode("latin-1") or None)

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
        return PayloadTooLarge(message, **size_details(largest, size, "body"))


def _unknown_parameter(name: str, known: Collection[str]) -> str:
    """Return the sentence that says which query parameters an endpoint has instead of an unknown one."""
    hint = "" if (meant := meant_by(name, known)) is None else f" Did you mean {meant!r}?"
    has = f"It has {', '.join(sorted(known))}." if known else "It has none."
    return f"This endpoint has no query parameter {name[:60]!r}.{hint} {has}"


Handler = Callable[[HttpRequest], Awaitable[Answer]]
