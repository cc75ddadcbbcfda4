"""Sessions of browsers: a token in a cookie that no script can read.

The cookie counts only for requests of the server's own pages, which a page of another origin cannot make: browsers send
it to no other site (``SameSite=Strict``), and say where a request comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from ojster.server.answer import Header

COOKIE: Final = "ojster_session"
"""Name of the cookie."""

SECURE_COOKIE: Final = f"__Host-{COOKIE}"
"""Its name where connections are encrypted: browsers take one of that name from the host itself alone."""

SESSION_SECONDS: Final = 12 * 3600
"""Time after which a browser forgets the cookie, in seconds; its token may expire before."""

ATTEMPT_COOKIE: Final = "ojster_login"
"""Name of the cookie of a browser that is at the identity provider."""

SECURE_ATTEMPT_COOKIE: Final = f"__Host-{ATTEMPT_COOKIE}"
"""Its name where connections are encrypted."""

ATTEMPT_SECONDS: Final = 600
"""Time within which a browser has to come back from the identity provider, in seconds."""

_LONGEST: Final = 8_192
"""Maximum length of the value of a cookie, which browsers limit to half of it."""


def token_of(headers: Sequence[Header], *, is_secure: bool = False) -> str | None:
    """Return the token in the session cookie of a request; ``None`` if it has none, or comes from elsewhere.

    Parameters
    ----------
    is_secure:
        Whether browsers are known to reach the server over encrypted connections. Otherwise, a cookie counts that a
        neighbouring name may have planted.
    """
    token = _cookie(headers, (SECURE_COOKIE,) if is_secure else (COOKIE, SECURE_COOKIE))
    return token if token is not None and is_from_own_page(headers) else None


def attempt_of(headers: Sequence[Header], *, is_secure: bool) -> str | None:
    """Return what a browser remembers of a login that it has begun; ``None``: nothing."""
    return _cookie(headers, (SECURE_ATTEMPT_COOKIE if is_secure else ATTEMPT_COOKIE,))


def _cookie(headers: Sequence[Header], names: Sequence[str]) -> str | None:
    """Return the value of a cookie with one of these names.

    Returns
    -------
    str | None
        ``None``: there is none, or there are two different ones: somebody may have planted one from a neighbouring
        name.
    """
    cookies = b";".join(value for name, value in headers if name == b"cookie").decode("latin-1")
    pairs = (part.strip().partition("=") for part in cookies.split(";"))
    tokens = {value for name, _, value in pairs if name in names and 0 < len(value) <= _LONGEST}
    return tokens.pop() if len(tokens) == 1 else None


def is_from_own_page(headers: Sequence[Header]) -> bool:
    """Return whether a request comes from a page of this server, or from no page at all.

    Browsers name the site of a request only where connections are secure; elsewhere, requests that change something
    name their origin.
    """
    known = {name: value.decode("latin-1") for name, value in headers if name in _SAY_WHERE_FROM}
    if (site := known.get(b"sec-fetch-site")) is not None:
        return site in ("same-origin", "none")
    origin = known.get(b"origin")
    return origin is None or host_of(origin) == known.get(b"host", "").lower() != ""


def host_of(origin: str) -> str:
    """Return the host and port in an ``Origin`` header; the empty string if it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as "http://["
        return ""


_SAY_WHERE_FROM: Final = frozenset({b"host", b"origin", b"sec-fetch-site"})


def cookie_for(token: str, *, is_secure: bool) -> Header:
    """Return the header that begins a session; an empty ``token`` ends it.

    Parameters
    ----------
    is_secure:
        Whether the browser may send it over encrypted connections alone.
    """
    name = SECURE_COOKIE if is_secure else COOKIE
    return _set_cookie(name, token, SESSION_SECONDS, "Strict", is_secure=is_secure)


def attempt_cookie(packed: str, *, is_secure: bool) -> Header:
    """Return the header that lets a browser remember a login; an empty ``packed`` lets it forget.

    The browser sends it when another site leads it back, which it does not do with the cookie of a session.
    """
    name = SECURE_ATTEMPT_COOKIE if is_secure else ATTEMPT_COOKIE
    return _set_cookie(name, packed, ATTEMPT_SECONDS, "Lax", is_secure=is_secure)


def _set_cookie(name: str, value: str, seconds: int, same_site: str, *, is_secure: bool) -> Header:
    age, secure = seconds if value else 0, "; Secure" if is_secure else ""
    return b"set-cookie", f"{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite={same_site}{secure}".encode()
