"""Which defaults and limits does an engine work with?"""

from __future__ import annotations

from typing import Literal

import msgspec

from ojster.core.durations import DAY, MINUTE, SECOND


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long finished jobs are kept, in microseconds since they finished; ``None`` keeps them for ever."""

    completed: int | None = DAY
    cancelled: int | None = DAY
    discarded: int | None = 7 * DAY
    dead_letter: int | None = 90 * DAY
    most_dead_letters: int | None = 10_000
    """How many dead letters are kept; of more, the oldest are deleted (ojs-dead-letter.md section 5.2)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults and limits of an engine. Durations are in microseconds, sizes in bytes.

    Parameters
    ----------
    default_lease:
        How long a fetched job belongs to its worker when neither job nor worker says so.
    default_timeout:
        How long a job may run when it does not say so; ``None``: for ever.
    heartbeat_timeout:
        How long a worker that sends heartbeats may be silent before its jobs are given to others.
    largest_job:
        The most bytes that a job may take as JSON.
    schema_mode:
        What becomes of jobs whose arguments violate a schema that was registered without a word on it: ``strict``
        refuses them, ``warn`` tells of it in the answer, ``off`` does nothing.
    largest_batch:
        About how many jobs one request may be.
    tenants:
        Whether jobs must say whose they are: ``required``, or ``optional``.
    default_tenant:
        Whose jobs are that do not say so; the empty string: nobody's, as ``_default`` is kept.
    retention:
        How long finished jobs are kept.
    """

    default_lease: int = 30 * MINUTE
    default_timeout: int | None = 30 * MINUTE
    heartbeat_timeout: int = 30 * SECOND
    largest_job: int = 1_048_576
    largest_batch: int = 1_000
    tenants: Literal["optional", "required"] = "optional"
    default_tenant: str = ""
    schema_mode: Literal["strict", "warn", "off"] = "warn"
    retention: Retention = Retention()
