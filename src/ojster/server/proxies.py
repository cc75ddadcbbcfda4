"""The addresses of callers behind trusted proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from ojster.core.errors import InvalidRequest

IPV6_PREFIX: Final = 64
"""Length of the prefix that one customer of a provider has at least."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def address_group(address: str) -> str:
    """Return the address, or of an IPv6 address the network that one customer of a provider has."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    return address if known.version == 4 else str(ipaddress.ip_network((known, IPV6_PREFIX), strict=False))


class TrustedProxies:
    """Proxies whose word about the address of a caller counts.

    Parameters
    ----------
    networks:
        Addresses and networks of proxies, such as ``10.0.0.5`` or ``10.0.0.0/8``; ``*`` is everybody.

    Raises
    ------
    InvalidRequest
        One of them is neither.
    """

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._trusts_all = "*" in networks
        self._networks: list[Network] = []
        for network in networks:
            if network != "*":
                try:
                    self._networks.append(ipaddress.ip_network(network, strict=False))
                except ValueError:
                    message = (
                        f"{network[:60]!r} is no address of a proxy. Use an address, a network (10.0.0.0/8), or *."
                    )
                    raise InvalidRequest(message) from None

    def address_of(self, peer: str, forwarded: str | None) -> str:
        """Return the address of a caller.

        Parameters
        ----------
        peer:
            The address that the connection comes from.
        forwarded:
            The header ``X-Forwarded-For``: each proxy has appended the address that its own caller has.

        Returns
        -------
        str
            The last address that no trusted proxy has.
        """
        address = peer
        hops = [] if forwarded is None else [hop.strip() for hop in forwarded.split(",")]
        while hops and self._trusts(address):
            hop = hops.pop()
            try:
                address = str(ipaddress.ip_address(hop))
            except ValueError:
                break  # made up, or a name: the proxy that has passed it on is all that is known
        return address

    def _trusts(self, address: str) -> bool:
        if self._trusts_all:
            return True
        if not self._networks:
            return False
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(known in network for network in self._networks)
