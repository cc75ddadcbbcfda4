"""Defaults and limits of an engine."""

from __future__ import annotations

from typing import Literal

import msgspec

from ojster.core.durations import DAY, MINUTE, SECOND


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Retention of finished jobs, in microseconds since they finished; ``None``: forever."""

    completed: int | None = DAY
    cancelled: int | None = DAY
    discarded: int | None = 7 * DAY
    dead_letter: int | None = 90 * DAY
    most_dead_letters: int | None = 10_000
    """Maximum number of dead letters: beyond it, the oldest are deleted. Spec: ojs-dead-letter 5.2"""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults and limits of an engine. Durations are in microseconds, sizes in bytes.

    Parameters
    ----------
    default_lease:
        Lease of a claimed job if neither the job nor the worker sets one.
    default_timeout:
        Maximum run time of a job that sets none; ``None``: unlimited.
    heartbeat_timeout:
        Maximum silence of a worker that sends heartbeats, before its jobs are given to other workers.
    largest_job:
        Maximum size of a job as JSON.
    schema_mode:
        Handling of arguments that violate a schema registered without a mode: ``strict`` rejects the job, ``warn`` adds
        a warning to the response, ``off`` ignores it.
    largest_batch:
        Maximum number of jobs in one request.
    tenants:
        Whether jobs must name their tenant: ``required`` or ``optional``.
    default_tenant:
        Tenant of jobs that name none; the empty string: no tenant, shown as ``_default``.
    retention:
        Retention of finished jobs.
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
