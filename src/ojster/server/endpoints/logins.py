"""Endpoints that browsers pass when they log in at an identity provider: the way there, and the way back."""

from __future__ import annotations

from html import escape
from typing import Final

from ojster.audit.entries import AuditEvent
from ojster.core.access import Token
from ojster.core.errors import BackendUnavailable, Forbidden, NotFound, OjsterError, Unauthenticated
from ojster.server.answer import Answer
from ojster.server.oidc_login import LoginAttempt, OidcLogin, TooManyLogins, checked_destination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route
from ojster.server.session import SESSION_SECONDS, attempt_cookie, attempt_of, cookie_for

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Not logged in · Ojster</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 36rem; margin: 4rem auto; padding: 0 1rem }}
</style>
<h1>Not logged in</h1>
<p>{why}</p>
<p><a href="{dashboard}">Back to the dashboard</a></p>
</html>
"""


async def begin_login(request: HttpRequest) -> Answer:
    """Send a browser to the identity provider. ``then``: the page of the dashboard to show after the login."""
    login = _login_of(request)
    try:
        url, attempt = await login.begin(request.query.get("then", ""))
    except BackendUnavailable as error:
        return _failed(login, error)
    cookie = attempt_cookie(attempt.pack(), is_secure=login.client.is_secure)
    return Answer(status=303, headers=[(b"location", url.encode()), cookie, _NOT_STORED], content_type=b"text/plain")


async def finish_login(request: HttpRequest) -> Answer:
    """Begin the session of a browser that the identity provider has sent back."""
    login = _login_of(request)
    packed = attempt_of(request.headers, is_secure=login.client.is_secure)
    attempt = None if packed is None else LoginAttempt.unpack(packed)
    try:
        caller = await login.finish(request.query_string, attempt, request.caller_address())
    except (Unauthenticated, Forbidden, BackendUnavailable, TooManyLogins) as error:
        await _tell(request, None, error)
        return _failed(login, error)
    token, shown = await request.service.tokens.begin_session(caller, SESSION_SECONDS)
    await _tell(request, token)
    destination = "" if attempt is None else checked_destination(attempt.destination)  # the cookie may be made up
    page = f"{login.client.public_url.rstrip('/')}/dashboard/{destination}"
    is_secure = login.client.is_secure
    cookies = [cookie_for(shown, is_secure=is_secure), attempt_cookie("", is_secure=is_secure)]
    return Answer(status=303, headers=[(b"location", page.encode()), *cookies, _NOT_STORED], content_type=b"text/plain")


def _login_of(request: HttpRequest) -> OidcLogin:
    if request.services.login is None:
        raise NotFound(
            "This server has no identity provider to log in at. Start it with --oidc-client-id.", resource_type="path"
        )
    return request.services.login


def _failed(login: OidcLogin, error: OjsterError) -> Answer:
    """Return a page that says why there is no session: browsers come here by links, and show what they get."""
    dashboard = f"{login.client.public_url.rstrip('/')}/dashboard/"
    page = _PAGE.format(why=escape(error.message), dashboard=escape(dashboard))
    headers = [_NOT_STORED, attempt_cookie("", is_secure=login.client.is_secure)]
    return Answer(page.encode(), error.status, headers, b"text/html; charset=utf-8")


async def _tell(request: HttpRequest, token: Token | None, refusal: OjsterError | None = None) -> None:
    """Write to the audit log who has logged in, or that nobody has."""
    if request.services.trail is not None:
        await request.services.trail.tell(
            AuditEvent(
                event="access.used" if refusal is None else "auth.refused",
                principal="unknown" if token is None else token.name,
                operation="finish_login",
                object="" if token is None else token.id,
                outcome="success" if refusal is None else "failure",
                source_ip=request.caller_address(),
                correlation_id=request.request_id,
                refusal=None if refusal is None else refusal.code,
            )
        )


_NOT_STORED: Final = (b"cache-control", b"no-store")
_PATH: Final = f"{BASE}/session"
_TAG: Final = "Server"

ROUTES: Final = (
    Route("GET", f"{_PATH}/login", begin_login, _TAG, status=303, query=("then",), is_public=True),
    Route("GET", f"{_PATH}/return", finish_login, _TAG, status=303, any_query=True, is_public=True),
)
