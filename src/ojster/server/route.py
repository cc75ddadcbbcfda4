"""What is an endpoint? Where it is, what it does, and the types that document it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.server.permissions import operations_for
from ojster.server.request import Handler
from ojster.tenancy.access import Operation

BASE: Final = "/ojs/v1"

PAGE: Final = ("limit", "cursor", "offset")
"""The parameters of lists."""

NUMBERED_PAGE: Final = ("page", "per_page")
"""The parameters of an operator's lists."""


FOR_ALL: Final = (f"{BASE}/admin/", "/metrics")
"""How the paths of endpoints begin that concern all tenants."""


class Route(msgspec.Struct, frozen=True):
    """An endpoint: where it is, what it does, and the types that document it."""

    method: str
    path: str
    handler: Handler
    tag: str
    body: Any = None
    answer: Any = None
    status: int = 200
    query: tuple[str, ...] = ()
    large: bool = False
    """Whether its body may be that of many jobs."""
    may_be_empty: bool = False
    """Whether its body may be left out."""
    streams: bool = False
    """Whether its answer has no end."""

    @property
    def needs(self) -> tuple[Operation, ...]:
        """Any of these operations must be allowed to who calls it; none: everybody may."""
        return operations_for(self.method, self.path.removeprefix(BASE), for_all=not self.is_for_tenants)

    @property
    def is_audited(self) -> bool:
        """Whether it stands in the audit log that it was done (ojs-security.md section 11.1)."""
        return self.method != "GET" and bool({Operation.ADMIN, Operation.CANCEL}.intersection(self.needs))

    @property
    def is_for_tenants(self) -> bool:
        """Whether a request for a tenant is answered; else it is refused, as it concerns all of them."""
        return not self.path.startswith(FOR_ALL)
