"""What costs thousands of tests time, and none of them is about: made once, or cheaper, in each test process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ojster.core import access

if TYPE_CHECKING:
    import pytest

HASH_COST: Final = access._SCRYPT_N
"""Cost of the hash of a secret outside of tests."""

CHEAP_HASH_COST: Final = 2
"""Cost of a hash in tests, which make thousands: the least that scrypt allows, not ten milliseconds."""


def hash_cheaply() -> None:
    """Let this process hash secrets at the least cost. All processes that share a database of tests do so."""
    access._SCRYPT_N = CHEAP_HASH_COST  # type: ignore[misc]


def make_cheap(patch: pytest.MonkeyPatch) -> None:
    """Make once what never differs, and leave out what has no effect.

    A context for TLS takes 30 ms, the patterns of all routes 3 ms. Before each request, httpx tries to import Trio's
    ``sniffio``, which is not installed, along the whole path; and it parses the headers of each answer for cookies.
    Together, both are a third of what a request in the process costs.
    """
    import httpx  # here: the processes of tests/forked.py are to have no more modules than commands have
    from starlette.routing import compile_path

    patch.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
    patch.setattr("starlette.routing.compile_path", cache(compile_path))
    patch.setattr("httpx._transports.asgi.is_running_trio", lambda: False)
    extract = httpx.Cookies.extract_cookies

    def extract_cookies(cookies: httpx.Cookies, response: httpx.Response) -> Any:
        return extract(cookies, response) if "set-cookie" in response.headers else None

    patch.setattr(httpx.Cookies, "extract_cookies", extract_cookies)
    hash_cheaply()
