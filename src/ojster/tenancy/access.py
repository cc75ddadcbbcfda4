"""Who may do what? Tokens, the roles that they have, and where. (ojs-security.md sections 6, 7 and 12.3; seed 003)

What a caller does is one of five operations; a role allows some of them; a grant gives a role everywhere, or in a
workspace. A workspace is named like a tenant, or is one of a tenant: ``acme:web`` is a workspace of ``acme``, and who
has a role in ``acme`` has it there too.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from ojster.core.errors import Forbidden
from ojster.core.tenant import check_tenant, shown_tenant
from ojster.core.timestamps import format_timestamp, parse_timestamp


class Operation(StrEnum):
    """What a caller may be allowed to do (ojs-security.md section 7.2)."""

    ENQUEUE = "enqueue"
    """Push jobs, start workflows, register cron jobs."""
    DEQUEUE = "dequeue"
    """Get jobs, and report what has become of them."""
    CANCEL = "cancel"
    """Steer single jobs and workflows: cancel them, retry them, let them go on."""
    INSPECT = "inspect"
    ADMIN = "admin"
    """Delete, approve, configure."""


class Role(StrEnum):
    """What somebody is, in a workspace or everywhere."""

    VIEWER = "viewer"
    PRODUCER = "producer"
    WORKER = "worker"
    CONTRIBUTOR = "contributor"
    OWNER = "owner"


OPERATIONS: Final[dict[Role, frozenset[Operation]]] = {
    Role.VIEWER: frozenset({Operation.INSPECT}),
    Role.PRODUCER: frozenset({Operation.ENQUEUE}),
    Role.WORKER: frozenset({Operation.DEQUEUE, Operation.INSPECT}),
    Role.CONTRIBUTOR: frozenset({Operation.ENQUEUE, Operation.CANCEL, Operation.INSPECT}),
    Role.OWNER: frozenset({Operation.ENQUEUE, Operation.CANCEL, Operation.INSPECT, Operation.ADMIN}),
}
"""What each role allows. Nobody who may push jobs may therefore get some, nor the other way round (section 6.2)."""

EVERYTHING: Final = frozenset(Operation)

FOREVER: Final = 2**62

_EVERYWHERE: Final = "*"
_PREFIX: Final = "ojster"
_COST: Final = 2**12
"""That of scrypt. Secrets are 256 random bits, so it is the specification's wish rather than a need."""


class Grant(msgspec.Struct, frozen=True):
    """A role, in a workspace and those inside it, or (``None``) everywhere."""

    role: Role
    tenant: str | None = None

    def covers(self, tenant: str) -> bool:
        """Whether it holds in a workspace."""
        return self.tenant is None or tenant == self.tenant or tenant.startswith(f"{self.tenant}:")


class Token(msgspec.Struct, frozen=True):
    """What a caller shows to be let in. Times are microseconds since the epoch; of the secret there is only a hash.

    Parameters
    ----------
    name:
        Who it is for, as it stands in what they have done.
    queues:
        Only for jobs of these queues, whose names may end in ``*``; none: of all.
    expires_at:
        From when on it is worth nothing; ``None``: never.
    former_hash, former_until:
        The secret before the present one, and until when it is good too.
    """

    id: str
    name: str
    hash: bytes
    grants: tuple[Grant, ...]
    created_at: int
    queues: tuple[str, ...] = ()
    expires_at: int | None = None
    last_used_at: int | None = None
    former_hash: bytes | None = None
    former_until: int = 0

    def operations(self, tenant: str | None) -> frozenset[Operation]:
        """Return what may be done in a workspace, or (``None``) in all together."""
        return frozenset().union(
            *(
                OPERATIONS[grant.role]
                for grant in self.grants
                if (grant.tenant is None if tenant is None else grant.covers(tenant))
            )
        )

    @property
    def is_global(self) -> bool:
        """Whether it has a role everywhere."""
        return any(grant.tenant is None for grant in self.grants)

    @property
    def only_tenant(self) -> str | None:
        """The workspace in which all of its roles are, if there is just one."""
        tenants = {grant.tenant for grant in self.grants}
        return tenants.pop() if len(tenants) == 1 else None

    def good_until(self, secret: str, now: int) -> int | None:
        """Until when a secret is this token's, if it is; it takes milliseconds to tell, so remember the answer."""
        made = hash_secret(self.id, secret)
        if hmac.compare_digest(made, self.hash):
            return self.expires_at if self.expires_at is not None else FOREVER
        if self.former_hash is not None and now < self.former_until and hmac.compare_digest(made, self.former_hash):
            return self.former_until
        return None


class Access(msgspec.Struct, frozen=True):
    """What a caller may do, in the workspace that he has named.

    Parameters
    ----------
    who:
        The name of his token.
    """

    who: str
    operations: frozenset[Operation]
    queues: tuple[str, ...] = ()

    def need(self, *operations: Operation) -> None:
        """Refuse to do something for which one of these operations must be allowed, if none is.

        Raises
        ------
        Forbidden
            None is.
        """
        if not self.operations.intersection(operations):
            names = " or ".join(repr(operation.value) for operation in operations)
            raise Forbidden(f"This needs a role that allows {names}; {self.who!r} has none here.")

    def need_admin(self) -> None:
        """Refuse what only those may do who administer; raises as ``need``."""
        self.need(Operation.ADMIN)

    def check_queue(self, queue: str) -> None:
        """Refuse jobs of a queue that is not among those that the token is for (ojs-security.md section 7.1).

        Raises
        ------
        Forbidden
            It is not.
        """
        if self.queues and not any(_matches(queue, pattern) for pattern in self.queues):
            raise Forbidden(f"{self.who!r} is for jobs of the queues {', '.join(self.queues)}, not of {queue!r}.")

    def need_all_queues(self, what: str) -> None:
        """Refuse to make something whose jobs may be of any queue.

        Raises
        ------
        Forbidden
            The token is only for some.
        """
        if self.queues:
            raise Forbidden(f"{what} can make jobs of any queue; {self.who!r} is for {', '.join(self.queues)} only.")


def _matches(queue: str, pattern: str) -> bool:
    return queue.startswith(pattern[:-1]) if pattern.endswith("*") else queue == pattern


def new_id() -> str:
    """Return an id for a token."""
    return secrets.token_hex(6)


def new_secret() -> str:
    """Return a secret of 256 random bits."""
    return secrets.token_urlsafe(32)


def join_token(id: str, secret: str) -> str:
    """Return a token as it is handed to a caller, once."""
    return f"{_PREFIX}_{id}_{secret}"


def split_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token that a caller has shown; ``None`` if it is none."""
    parts = text.split("_", 2)
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == _PREFIX else None


def hash_secret(id: str, secret: str) -> bytes:
    """Return what is kept of a secret."""
    return hashlib.scrypt(secret.encode(), salt=id.encode(), n=_COST, r=8, p=1, dklen=32)


def shown_grants(grants: Iterable[Grant]) -> list[dict[str, str]]:
    """Return grants as they are shown; everywhere is ``*``."""
    return [
        {"role": grant.role.value, "tenant": _EVERYWHERE if grant.tenant is None else shown_tenant(grant.tenant)}
        for grant in grants
    ]


def read_grant(role: str, tenant: str) -> Grant:
    """Return a grant that is shown so.

    Raises
    ------
    InvalidRequest
        It is no name of a workspace.
    """
    return Grant(Role(role), None if tenant == _EVERYWHERE else check_tenant(tenant))


def shown_token(token: Token) -> dict[str, Any]:
    """Return a token as it is shown: without what lets somebody in."""
    return {
        "id": token.id,
        "name": token.name,
        "grants": shown_grants(token.grants),
        "queues": token.queues,
        "created_at": format_timestamp(token.created_at),
        "expires_at": None if token.expires_at is None else format_timestamp(token.expires_at),
        "last_used_at": None if token.last_used_at is None else format_timestamp(token.last_used_at),
    }


def read_shown_token(shown: Mapping[str, Any]) -> Token:
    """Return a token that is shown so, of which nobody knows the hash."""
    expires_at, last_used_at = (
        None if shown[name] is None else parse_timestamp(shown[name]) for name in ("expires_at", "last_used_at")
    )
    grants = tuple(read_grant(grant["role"], grant["tenant"]) for grant in shown["grants"])
    created_at = parse_timestamp(shown["created_at"])
    return Token(shown["id"], shown["name"], b"", grants, created_at, tuple(shown["queues"]), expires_at, last_used_at)
