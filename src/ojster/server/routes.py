"""The HTTP endpoints of capabilities."""

from __future__ import annotations

from collections.abc import Iterable

from ojster.capabilities import CAPABILITIES, Capability
from ojster.server.route import Route


def routes_of(capabilities: Iterable[Capability] = CAPABILITIES) -> tuple[Route, ...]:
    """Return the endpoints of capabilities."""
    return tuple(route for one in capabilities for name in one.routes for route in one.module(name).ROUTES)
