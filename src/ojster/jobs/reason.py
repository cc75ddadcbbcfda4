"""A reason why a job waits."""

from __future__ import annotations

import msgspec


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
