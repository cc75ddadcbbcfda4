"""Endpoints for the sessions of browsers: log in with a token, see who one is, log out."""

from __future__ import annotations

import re
from typing import Final

from ojster.core.access import Operation
from ojster.core.errors import Forbidden, InvalidRequest, NotFound, Unauthenticated
from ojster.core.tenant import check_tenant, shown_tenant
from ojster.server.answer import Answer, Header, encode
from ojster.server.authentication import Credentials, TooManyTokens
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route
from ojster.server.session import cookie_for, is_from_own_page
from ojster.tenancy.wire import SESSION, SessionAnswer, SessionBody

_TOKEN: Final = re.compile(r"[!#-+\--:<-\[\]-~]+")
"""Characters that a cookie can have. Tokens have no others."""


async def show_session(request: HttpRequest) -> Answer:
    """Show who the caller is, and what it may do. Callers that nobody knows may ask, too."""
    return await _session(request, request.credentials())


async def log_in(request: HttpRequest) -> Answer:
    """Begin a session of a browser: keep a token in a cookie that scripts cannot read."""
    _check_origin(request)
    body = await request.read(SESSION)
    token = body.token.strip()
    if not _TOKEN.fullmatch(token):
        raise InvalidRequest("'token' has characters that no token has.", field="token")
    tenant = None if request.tenant is None else request.tenant.decode("latin-1")
    credentials = Credentials(f"Bearer {token}", tenant, request.caller_address)
    if request.services.authenticator is None:
        return await _session(request, credentials)
    await request.services.authenticator.identify(credentials)
    return await _session(request, credentials, [cookie_for(token, is_secure=_is_secure(request))])


async def log_out(request: HttpRequest) -> Answer:
    """End the session of a browser. A token with which it has logged in stays valid; one made for it is revoked."""
    _check_origin(request)
    if request.services.authenticator is not None:
        try:
            token = await request.services.authenticator.identify(request.credentials())
            if token.session_of is not None:
                await request.service.tokens.revoke(token.id)
        except (Unauthenticated, TooManyTokens, NotFound):
            pass  # its session is over already
    cookie = cookie_for("", is_secure=_is_secure(request))
    return await _session(request, Credentials(None, None, request.caller_address), [cookie])


async def _session(request: HttpRequest, credentials: Credentials, headers: list[Header] | None = None) -> Answer:
    headers = [*(headers or ()), (b"cache-control", b"no-store")]
    if request.services.authenticator is None:
        everything = sorted(operation.value for operation in Operation)
        return Answer(encode(SessionAnswer(False, True, None, everything, None, True, [])), headers=headers)
    provider = None if request.services.login is None else request.services.login.host
    try:
        token = await request.services.authenticator.identify(credentials)
    except Unauthenticated:
        return Answer(encode(SessionAnswer(True, False, None, [], [], False, [], provider)), headers=headers)
    tenants = sorted({shown_tenant(grant.tenant) for grant in token.grants if grant.tenant is not None})
    named = None if request.tenant is None else check_tenant(request.tenant.decode("latin-1"))
    place = named if named is not None else (None if token.is_global else token.only_tenant)
    operations = await request.services.authenticator.operations_of(token, place)
    may = sorted(operation.value for operation in operations)
    is_global = token.is_global and (not token.queues or Operation.ADMIN in token.operations(None))
    queues = list(token.queues)
    shown = SessionAnswer(
        True, True, token.name, may, None if token.is_global else tenants, is_global, queues, provider
    )
    return Answer(encode(shown), headers=headers)


def _check_origin(request: HttpRequest) -> None:
    if not is_from_own_page(request.headers):
        raise Forbidden("Only pages of this server can log in or out. Open its dashboard.")


def _is_secure(request: HttpRequest) -> bool:
    if request.services.login is not None:
        return request.services.login.client.is_secure
    return (request.header(b"origin") or "").startswith("https:")


_PATH: Final = f"{BASE}/session"
_TAG: Final = "Server"

ROUTES: Final = (
    Route("GET", _PATH, show_session, _TAG, answer=SessionAnswer, is_public=True),
    Route("POST", _PATH, log_in, _TAG, SessionBody, SessionAnswer, is_public=True),
    Route("DELETE", _PATH, log_out, _TAG, answer=SessionAnswer, is_public=True),
)
