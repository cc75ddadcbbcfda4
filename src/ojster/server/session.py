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

SESSION_SECONDS: Final = 12 * 3600
"""Time after which a browser forgets the cookie, in seconds; its token may expire before."""

_LONGEST: Final = 8_192
"""Maximum length of a token in a cookie, which browsers limit to half of it."""


def token_of(headers: Sequence[Header]) -> str | None:
    """Return the token in the session cookie of a request; ``None`` if it has none, or comes from elsewhere."""
    found = None
    for name, value in headers:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, token = part.strip().partition("=")
                if key == COOKIE and 0 < len(token) <= _LONGEST:
                    found = token
    return found if found is not None and is_from_own_page(headers) else None


def is_from_own_page(headers: Sequence[Header]) -> bool:
    """Return whether a request comes from a page of this server, or from no page at all.

    Browsers name the site of a request only where connections are secure; elsewhere, requests that change something
    name their origin.
    """
    known = {name: value.decode("latin-1") for name, value in headers if name in _SAY_WHERE_FROM}
    if (site := known.get(b"sec-fetch-site")) is not None:
        return site in ("same-origin", "none")
    origin = known.get(b"origin")
    return origin is None or urlsplit(origin).netloc.lower() == known.get(b"host", "").lower() != ""


_SAY_WHERE_FROM: Final = frozenset({b"host", b"origin", b"sec-fetch-site"})


def cookie_for(token: str, *, is_secure: bool) -> Header:
    """Return the header that begins a session; an empty ``token`` ends it.

    Parameters
    ----------
    is_secure:
        Whether the browser may send it over encrypted connections alone.
    """
    age = SESSION_SECONDS if token else 0
    secure = "; Secure" if is_secure else ""
    return b"set-cookie", f"{COOKIE}={token}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}".encode()
