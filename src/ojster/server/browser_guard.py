"""A guard against web pages that let a visitor's browser call a server which asks for no token.

Such a server trusts everybody who can reach it, and a browser on the same machine can. A page of another origin is
refused by the headers that browsers add, and a name that leads here by a trick of its DNS server (rebinding) by its
``Host``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from ojster.core.errors import Forbidden
from ojster.server.answer import Header
from ojster.server.session import host_of

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""Names by which programs on the same machine call a server."""

MAX_USUAL: Final = 100
"""Maximum number of ``Host`` headers that are remembered as accepted."""

_LOOKED_AT: Final = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode"))


class BrowserGuard:
    """Refuses requests by their ``Host``, ``Origin`` and ``Sec-Fetch-Site``.

    Parameters
    ----------
    hosts:
        The names by which the server may be called, without ports; ``None``: any.
    origins:
        Origins whose pages may call it, beside its own; ``*``: all.
    """

    def __init__(self, hosts: Collection[str] | None, origins: Collection[str] = ()) -> None:
        self._hosts = None if hosts is None else frozenset(host.lower().strip("[]") for host in hosts)
        self._origins = frozenset(origins)
        self._usual: set[Header] = set()
        """The ``Host`` headers of requests that were accepted, and that no browser has sent."""

    def check(self, headers: Iterable[Header]) -> None:
        """Check the headers of a request.

        Raises
        ------
        Forbidden
            The name of the server is not one of its own, or a page of another origin sends the request.
        """
        looked_at = [header for header in headers if header[0] in _LOOKED_AT]
        if len(looked_at) == 1 and looked_at[0] in self._usual:
            return
        values = {name: value.decode("latin-1") for name, value in looked_at}
        host = values.get(b"host", "")
        is_named = b"host" in values  # each browser names the server; probes that speak HTTP/1.0 do not
        if is_named and self._hosts is not None and _name_of(host) not in self._hosts:
            raise Forbidden(
                f"This server is not called {host[:80]!r}. Call it by one of its names "
                f"({', '.join(sorted(self._hosts))}), or start it with --allowed-host."
            )
        origin = values.get(b"origin")
        if origin is not None:
            if not self._may(origin, host):
                raise Forbidden(
                    f"Pages of {origin[:80]!r} may not call this server. Start it with --cors to allow this origin."
                )
        elif values.get(b"sec-fetch-site") == "cross-site" and values.get(b"sec-fetch-mode") != "navigate":
            raise Forbidden("Pages of another site may not call this server. Start it with --cors to allow them.")
        elif is_named and len(values) == 1 and len(self._usual) < MAX_USUAL:
            self._usual.add((b"host", host.encode("latin-1")))

    def _may(self, origin: str, host: str) -> bool:
        return origin in self._origins or "*" in self._origins or host_of(origin) == host.lower() != ""


def _name_of(host: str) -> str:
    """Return the name in a ``Host`` header, without its port and brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "") if host.isprintable() and "/" not in host else ""
    except ValueError:  # such as "["
        return ""
