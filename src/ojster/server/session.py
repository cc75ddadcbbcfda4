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

_LONGEST: Final = 8_192
"""Maximum length of a token in a cookie, which browsers limit to half of it."""


def token_of(headers: Sequence[Header]) -> str | None:
    """Return the token in the session cookie of a request; ``None`` if it has none, or comes from elsewhere."""
    cookies = b";".join(value for name, value in headers if name == b"cookie").decode("latin-1")
    found = dict.fromkeys(
        token for part in cookies.split(";") if (token := _token_in(part.strip())) and len(token) <= _LONGEST
    )
    # Of two different ones, somebody may have planted one from a neighbouring name.
    return next(iter(found)) if len(found) == 1 and is_from_own_page(headers) else None


def _token_in(part: str) -> str:
    key, _, token = part.partition("=")
    return token if key in (COOKIE, SECURE_COOKIE) else ""


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
    age = SESSION_SECONDS if token else 0
    name, secure = (SECURE_COOKIE, "; Secure") if is_secure else (COOKIE, "")
    return b"set-cookie", f"{name}={token}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}".encode()
