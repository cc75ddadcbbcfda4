"""Defaults and limits of an engine, in microseconds. Applications set them with ``ojster.settings``."""

from __future__ import annotations

from typing import Literal

import msgspec

from ojster.core.durations import DAY, MINUTE, SECOND


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Retention of finished jobs, in microseconds since they finished; ``None``: forever.

    Parameters
    ----------
    completed, cancelled:
        Retention of completed and of cancelled jobs; 1 day by default.
    discarded:
        Retention of discarded jobs that are not dead letters; 7 days by default.
    dead_letter:
        Retention of dead letters; 90 days by default.
    most_dead_letters:
        Maximum number of dead letters; 10,000 by default.
    """

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
        Lease of a claimed job if neither the job nor the worker sets one; 30 minutes by default.
    default_timeout:
        Maximum run time of a job that sets none; 30 minutes by default; ``None``: unlimited.
    heartbeat_timeout:
        Maximum silence of a worker that sends heartbeats, before its jobs are given to other workers; 30 seconds by
        default.
    largest_job:
        Maximum size of a job as JSON; 1 MiB by default.
    largest_batch:
        Maximum number of jobs in one request; 1,000 by default.
    tenants:
        Whether jobs must name their tenant: ``required``, or ``optional``, the default.
    default_tenant:
        Tenant of jobs that name none; the empty string, the default: no tenant, shown as ``_default``.
    schema_mode:
        Handling of arguments that violate a schema registered without a mode: ``strict`` rejects the job; ``warn``, the
        default, adds a warning to the response; ``off`` ignores it.
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
