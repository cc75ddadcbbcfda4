"""Whose is it? Tenants, and names that are theirs (ojs-multi-tenancy.md section 5).

What a tenant calls ``stripe`` is kept as ``/tenant/acme/stripe``: rate limits, cron jobs, workers, schemas, and the
counts of its jobs in a queue. No name that belongs to nobody begins with a slash, so no tenant can name what is
another's.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ojster.core.errors import InvalidRequest

DEFAULT_TENANT: Final = "_default"
"""What the tenant of jobs that name none is called. It is kept as the empty string."""

NOBODY: Final = ""

LONGEST_TENANT: Final = 128

_PATTERN: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]*")
_PREFIX: Final = "/tenant/"


@lru_cache(maxsize=4096)
def check_tenant(name: str) -> str:
    """Return the tenant of this name as it is kept.

    Raises
    ------
    InvalidRequest
        It is no name of a tenant.
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
    """Return a tenant as it is shown; the inverse of ``check_tenant``."""
    return tenant or DEFAULT_TENANT


def qualify(tenant: str, name: str) -> str:
    """Return under which name something of a tenant is kept."""
    return f"{_PREFIX}{tenant}/{name}" if tenant else name


def split(qualified: str) -> tuple[str, str]:
    """Return whose something is that is kept under a name, and what they call it; the inverse of ``qualify``."""
    if not qualified.startswith(_PREFIX):
        return NOBODY, qualified
    tenant, _, name = qualified.removeprefix(_PREFIX).partition("/")
    return tenant, name


def called(qualified: str) -> str:
    """Return what the one whose it is calls something."""
    return split(qualified)[1]


def names_of(tenant: str) -> tuple[str, str]:
    """Return between which names, the end excluded, all is kept that is a tenant's, which must not be ``NOBODY``."""
    return qualify(tenant, ""), f"{_PREFIX}{tenant}0"  # the character behind the slash


ALL_NAMES: Final = (_PREFIX, "/tenant0")
"""Between which names, the end excluded, all is kept that is some tenant's."""

EVERYBODY: Final = "*"
"""No tenant, but all of them."""

NOBODYS: Final = "0"
"""From here on are the names of what belongs to nobody, where these begin with a letter or a digit, …"""

BEYOND: Final = "{"
"""… and up to here."""
