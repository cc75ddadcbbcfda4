"""Tenants, and names that belong to a tenant.

A tenant's name ``stripe`` is stored as ``/tenant/acme/stripe``: for rate limits, cron jobs, workers, schemas, and the
job counts of queues. Nothing without a tenant is stored under such a name, so nobody can name what belongs to others
but callers that are limited to no tenant.

Spec: ojs-multi-tenancy 5
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ojster.core.errors import InvalidRequest

DEFAULT_TENANT: Final = "_default"
"""Public name of the tenant of jobs that name none. It is stored as the empty string."""

NOBODY: Final = ""

LONGEST_TENANT: Final = 128

_PATTERN: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]*")
_PREFIX: Final = "/tenant/"


@lru_cache(maxsize=4096)
def check_tenant(name: str) -> str:
    """Return the stored form of a tenant's name.

    Raises
    ------
    InvalidRequest
        The name is not valid.
    """
    if name == DEFAULT_TENANT:
        return NOBODY
    if len(name) > LONGEST_TENANT or not _PATTERN.fullmatch(name):
        raise InvalidRequest(
            f"The tenant id {name[:80]!r} is invalid: it must be letters, digits, '.', '_', ':' and '-', begin with a "
            f"letter or a digit, and be at most {LONGEST_TENANT} characters long.",
            field="meta.tenant_id",
        )
    return name


def shown_tenant(tenant: str) -> str:
    """Return the public name of a tenant; the inverse of ``check_tenant``."""
    return tenant or DEFAULT_TENANT


def tenants_around(tenant: str) -> list[str]:
    """Return the workspaces that a workspace is a part of, the nearest first: ``acme`` for ``acme:web``."""
    parts = tenant.split(":")
    return [around for end in range(len(parts) - 1, 0, -1) if (around := ":".join(parts[:end]))]


def qualify(tenant: str, name: str) -> str:
    """Return the stored form of a tenant's name for something.

    What ``NOBODY`` calls by the stored name of another tenant's is nothing.
    """
    return f"{_PREFIX}{tenant}/{name}" if tenant or name.startswith(_PREFIX) else name


def split(qualified: str) -> tuple[str, str]:
    """Return the tenant and the name that it uses, from a stored name; the inverse of ``qualify``."""
    if not qualified.startswith(_PREFIX):
        return NOBODY, qualified
    tenant, _, name = qualified.removeprefix(_PREFIX).partition("/")
    return tenant, name


def called(qualified: str) -> str:
    """Return the name that its tenant uses, from a stored name."""
    return split(qualified)[1]


def names_of(tenant: str) -> tuple[str, str]:
    """Return the range, end excluded, of the stored names of a tenant, which must not be ``NOBODY``."""
    return qualify(tenant, ""), f"{_PREFIX}{tenant}0"  # "0" is the character after "/"


TENANT_NAMES_RANGE: Final = (_PREFIX, "/tenant0")
"""Range, end excluded, of the stored names that belong to any tenant."""

ALL_TENANTS: Final = "*"
"""All tenants, in place of the name of one."""

NO_TENANT_START: Final = "0"
"""Start of the range of stored names without a tenant: they begin with a letter or a digit."""

NO_TENANT_END: Final = "{"
"""End of that range, excluded."""
