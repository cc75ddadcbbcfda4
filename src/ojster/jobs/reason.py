"""A reason why a job waits, and a limit that it is under."""

from __future__ import annotations

from typing import Literal

import msgspec


class LimitUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit that a job is under, and how much of it is used.

    Parameters
    ----------
    key:
        The key of the jobs that share it; ``None``: it is a limit of the queue, or of the tenant.
    tenant:
        The tenant whose jobs share it; ``None``: it is no limit of a tenant.
    kind:
        ``concurrency`` (jobs at a time), ``rate`` (starts in a period), ``throttle`` (starts, evenly spaced); of
        tenants also ``pushes`` (in a period), ``depth`` (jobs that wait) and ``scheduled`` (jobs for later).
    limit, used:
        What is allowed, and what is used of it now.
    period:
        Period of a rate, a throttle or pushes, ISO 8601.
    """

    kind: Literal["concurrency", "rate", "throttle", "pushes", "depth", "scheduled"]
    limit: int
    used: int
    key: str | None = None
    period: str | None = None
    tenant: str | None = None


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason why a job waits.

    Parameters
    ----------
    code:
        The kind of reason: ``scheduled``, ``retry``, ``pending``, ``suspended``, ``active``, ``finished``,
        ``maintenance``, ``paused``, ``limit``, ``tenant``, ``no_worker``, ``exclusive``, ``turn`` or ``next``.
    message:
        The reason in words.
    until:
        When it is over, if that is known.
    """

    code: str
    message: str
    until: str | None = None
