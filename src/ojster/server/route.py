"""Declarations of endpoints: method, path, handler, and the types that document them."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from ojster.core.access import Operation
from ojster.server.answer import Header
from ojster.server.permissions import operations_for
from ojster.server.request import Handler

BASE: Final = "/ojs/v1"

PAGE: Final = ("limit", "cursor", "offset", "page", "per_page")
"""Query parameters of lists."""

NUMBERED_PAGE: Final = ("page", "per_page", "limit", "offset")
"""Query parameters of admin lists."""

FOR_ALL: Final = (f"{BASE}/admin/", "/metrics")
"""Path prefixes of endpoints that concern all tenants."""


def location(resources: str, name: str) -> Header:
    """Return the header that says where the resource ``name`` is found."""
    return b"location", f"{BASE}/{resources}/{quote(name, safe='')}".encode()


class Route(msgspec.Struct, frozen=True):
    """The declaration of an endpoint."""

    method: str
    path: str
    handler: Handler
    tag: str
    body: Any = None
    answer: Any = None
    status: int = 200
    more: tuple[int, ...] = ()
    """Further statuses with the same answer."""
    query: tuple[str, ...] = ()
    large: bool = False
    """Whether the body may contain many jobs."""
    may_be_empty: bool = False
    """Whether the body may be missing."""
    streams: bool = False
    """Whether the response is an endless stream."""

    any_query: bool = False
    """Whether others choose query parameters, such as an identity provider."""

    for_all: bool = False
    """Whether it concerns all tenants, although its path does not say so."""

    configures: bool = False
    """Whether it changes the configuration, although producers may call it: such calls are in the audit log."""

    @property
    def needs(self) -> tuple[Operation, ...]:
        """Accepted operations: the caller needs at least one. Empty if the endpoint is public."""
        return operations_for(self.method, self.path.removeprefix(BASE), for_all=not self.is_for_tenants)

    @property
    def is_audited(self) -> bool:
        """Whether calls are written to the audit log: those that change the configuration, and those that change
        something and that neither producers nor workers make.

        Spec: ojs-security 11.1
        """
        if self.configures:
            return True
        needs = set(self.needs)
        is_of_workers = bool(needs & {Operation.ENQUEUE, Operation.DEQUEUE})
        return self.method != "GET" and bool(needs & {Operation.ADMIN, Operation.CANCEL}) and not is_of_workers

    @property
    def is_for_tenants(self) -> bool:
        """Whether a request for one tenant is accepted. It is rejected if the endpoint concerns all tenants."""
        return not self.for_all and not self.path.startswith(FOR_ALL)
