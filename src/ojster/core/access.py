"""Authorization: tokens, grants, roles and operations.

Each request is one of five operations. A role allows some of them. A grant gives a token a role everywhere or in one
workspace. A workspace is a tenant, or a part of one: ``acme:web`` is a workspace of ``acme``, and a role in ``acme``
also holds in ``acme:web``.

Spec: ojs-security 6, 7, 12.3
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from enum import StrEnum
from typing import Final

import msgspec

from ojster.core.errors import Forbidden
from ojster.core.parsing import matches_any
from ojster.core.tenant import check_tenant


class Operation(StrEnum):
    """Operations that a role can allow.

    Spec: ojs-security 7.2
    """

    ENQUEUE = "enqueue"
    """Push jobs, start workflows, register cron jobs."""
    DEQUEUE = "dequeue"
    """Claim jobs and report their results."""
    CANCEL = "cancel"
    """Control single jobs and workflows: cancel, retry, resume."""
    INSPECT = "inspect"
    ADMIN = "admin"
    """Delete, approve, configure."""
    CODE = "code"
    """Push jobs that carry code, which workers run."""


class Role(StrEnum):
    """A named set of operations."""

    VIEWER = "viewer"
    PRODUCER = "producer"
    WORKER = "worker"
    CONTRIBUTOR = "contributor"
    CODER = "coder"
    OWNER = "owner"


OPERATIONS: Final[dict[Role, frozenset[Operation]]] = {
    Role.VIEWER: frozenset({Operation.INSPECT}),
    Role.PRODUCER: frozenset({Operation.ENQUEUE}),
    Role.WORKER: frozenset({Operation.DEQUEUE, Operation.INSPECT}),
    Role.CONTRIBUTOR: frozenset({Operation.ENQUEUE, Operation.CANCEL, Operation.INSPECT}),
    Role.CODER: frozenset({Operation.ENQUEUE, Operation.CODE}),
    Role.OWNER: frozenset({Operation.ENQUEUE, Operation.CANCEL, Operation.INSPECT, Operation.ADMIN, Operation.CODE}),
}
"""Operations of each role. No role allows both ``enqueue`` and ``dequeue``.

Spec: ojs-security 6.2
"""

ENQUEUE: Final = (Operation.ENQUEUE,)
DEQUEUE: Final = (Operation.DEQUEUE,)
CANCEL: Final = (Operation.CANCEL,)
INSPECT: Final = (Operation.INSPECT,)
ADMIN_ONLY: Final = (Operation.ADMIN,)
CANCEL_OR_DEQUEUE: Final = (Operation.CANCEL, Operation.DEQUEUE)
MAKE: Final = (Operation.ENQUEUE, Operation.DEQUEUE, Operation.CANCEL)
"""What a call can need: one of the operations."""

NO_EXPIRY_US: Final = 2**62

EVERYWHERE: Final = "*"
PREFIX: Final = "ojster"
"""How the text of a token begins, up to an underscore."""

_SCRYPT_N: Final = 2**12
"""The scrypt parameter ``n``. The specification asks for scrypt; secrets of 256 random bits would not need it."""


class Grant(msgspec.Struct, frozen=True):
    """A role in a workspace and its sub-workspaces; ``None``: everywhere."""

    role: Role
    tenant: str | None = None

    def covers(self, tenant: str) -> bool:
        """Return whether the grant applies to a workspace."""
        return self.tenant is None or tenant == self.tenant or tenant.startswith(f"{self.tenant}:")


class Token(msgspec.Struct, frozen=True):
    """An access token. Times are microseconds since the epoch. Only a hash of the secret is stored.

    Parameters
    ----------
    name:
        Name of its user, as recorded in logs and events.
    queues:
        Queues that it is limited to; a name may end in ``*``. Empty: all queues.
    expires_at:
        Time at which it expires; ``None``: never.
    former_hash, former_until:
        Hash of the previous secret, and the time until which that remains valid.
    session_of:
        The caller whose browser has it, as its identity provider names it; ``None``: it is no session of a browser.
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
    session_of: str | None = None

    def operations(self, tenant: str | None) -> frozenset[Operation]:
        """Return the operations allowed in a workspace; ``None``: the operations allowed in all workspaces."""
        return frozenset().union(
            *(
                OPERATIONS[grant.role]
                for grant in self.grants
                if (grant.tenant is None if tenant is None else grant.covers(tenant))
            )
        )

    @property
    def is_global(self) -> bool:
        """Whether any grant applies everywhere."""
        return any(grant.tenant is None for grant in self.grants)

    @property
    def only_tenant(self) -> str | None:
        """The workspace of all its grants, if they share one; else ``None``."""
        tenants = {grant.tenant for grant in self.grants}
        return tenants.pop() if len(tenants) == 1 else None

    def valid_until(self, secret: str, now: int) -> int | None:
        """Return the time until which a secret is valid for this token; ``None`` if it is not.

        The check takes milliseconds, so callers should cache the result.
        """
        made = hash_secret(self.id, secret)
        if hmac.compare_digest(made, self.hash):
            return self.expires_at if self.expires_at is not None else NO_EXPIRY_US
        if self.former_hash is not None and now < self.former_until and hmac.compare_digest(made, self.former_hash):
            return self.former_until
        return None


class Access(msgspec.Struct, frozen=True):
    """The operations and queues allowed to a caller in the workspace of its request.

    Parameters
    ----------
    who:
        Name of the caller's token.
    """

    who: str
    operations: frozenset[Operation]
    queues: tuple[str, ...] = ()

    def need(self, *operations: Operation) -> None:
        """Check that at least one of these operations is allowed.

        Raises
        ------
        Forbidden
            None of them is allowed.
        """
        if not self.operations.intersection(operations):
            names = " or ".join(repr(operation.value) for operation in operations)
            raise Forbidden(f"The token {self.who!r} has no role that allows {names} here. Use a token that has one.")

    def may(self, operation: Operation) -> bool:
        """Return whether an operation is allowed."""
        return operation in self.operations

    def covers(self, queue: str) -> bool:
        """Return whether the token covers a queue: whether it is limited to no queues, or to this one among others."""
        return not self.queues or matches_any(queue, self.queues)

    def check_queue(self, queue: str) -> None:
        """Check that the token covers a queue.

        Raises
        ------
        Forbidden
            The token is limited to other queues.

        Spec: ojs-security 7.1
        """
        if not self.covers(queue):
            raise Forbidden(f"The token {self.who!r} is limited to the queues {', '.join(self.queues)}, not {queue!r}.")

    def need_all_queues(self, what: str) -> None:
        """Check that the token is not limited to some queues.

        Parameters
        ----------
        what:
            Subject of the error message: something that concerns jobs of any queue.

        Raises
        ------
        Forbidden
            The token is limited to some queues.
        """
        if self.queues:
            raise Forbidden(
                f"{what} needs a token for all queues; {self.who!r} is limited to {', '.join(self.queues)}."
            )


def covers(pattern: str, other: str) -> bool:
    """Return whether a pattern for queues matches everything that another pattern matches."""
    return other == pattern or (pattern.endswith("*") and other.removesuffix("*").startswith(pattern[:-1]))


def new_id() -> str:
    """Return a new token id."""
    return secrets.token_hex(6)


def new_secret() -> str:
    """Return a new secret of 256 random bits."""
    return secrets.token_urlsafe(32)


def join_token(id: str, secret: str) -> str:
    """Return the token string that the caller sends. It is shown only once."""
    return f"{PREFIX}_{id}_{secret}"


def split_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret in a token string; ``None`` if it is malformed."""
    parts = text.split("_", 2)
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == PREFIX else None


def hash_secret(id: str, secret: str) -> bytes:
    """Return the hash of a secret, as stored."""
    return hashlib.scrypt(secret.encode(), salt=id.encode(), n=_SCRYPT_N, r=8, p=1, dklen=32)


def read_grant(role: str, tenant: str) -> Grant:
    """Return the grant with this JSON form.

    Raises
    ------
    InvalidRequest
        ``tenant`` is not a valid name of a workspace.
    """
    return Grant(Role(role), None if tenant == EVERYWHERE else check_tenant(tenant))
