"""Declarations of endpoints: method, path, handler, and the types that document them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ojster.core.access import Operation
from ojster.server.answer import Header
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


class Route(msgspec.Struct, frozen=True, dict=True):
    """The declaration of an endpoint. What follows from it is derived once, for all applications of a process."""

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
    recent: bool = False
    """Whether callers that accept it get an answer of the last second (``server/recent_answers.py``): for what many
    open dashboards read again and again. The answer must depend on the rights of the caller alone, not on its name."""

    streams: bool = False
    """Whether the response is an endless stream."""

    exports: bool = False
    """Whether the response is a file in CSV or JSON, which is written while it is read."""

    any_query: bool = False
    """Whether others choose query parameters, such as an identity provider."""

    for_all: bool = False
    """Whether it concerns all tenants, although its path does not say so."""

    configures: bool = False
    """Whether it changes the configuration, although producers may call it: such calls are in the audit log."""

    is_public: bool = False
    """Whether it needs no token."""

    needs: tuple[Operation, ...] = ()
    """Operations of which the caller needs one: by default ``inspect`` for a GET for one workspace, and ``admin``
    otherwise, so that a new endpoint is restricted. Empty if it is public.

    Spec: ojs-security 7.2
    """

    def __post_init__(self) -> None:
        """Restrict an endpoint that does not say who may call it."""
        if not self.needs and not self.is_public:
            is_read = self.method == "GET" and self.is_for_tenants
            msgspec.structs.force_setattr(self, "needs", (Operation.INSPECT if is_read else Operation.ADMIN,))

    @cached_property
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

    @cached_property
    def is_for_tenants(self) -> bool:
        """Whether a request for one tenant is accepted. It is rejected if the endpoint concerns all tenants."""
        return not self.for_all and not self.path.startswith(FOR_ALL)

    @cached_property
    def known_query(self) -> frozenset[str] | None:
        """Names of its query parameters; requests with others are refused. ``None``: any."""
        return frozenset(self.query) if self.path.startswith(BASE) and not self.any_query else None
