"""Defaults and limits of a database, as an application sets them: durations are seconds or ``timedelta``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import msgspec

from ojster.core import settings
from ojster.core.declared_options import (
    MOST_BYTES,
    CheckedOptions,
    NonNegativeCount,
    NonNegativeSpan,
    PositiveCount,
    PositiveSpan,
)
from ojster.core.durations import SECOND
from ojster.core.tenant import DEFAULT_TENANT, check_tenant
from ojster.core.values import to_seconds

Size = Annotated[int, msgspec.Meta(ge=1024, le=MOST_BYTES)]
"""A size in bytes, at least 1 KiB."""

JobSize = Annotated[int, msgspec.Meta(ge=1024, le=1_000_000_000)]
"""A size of a job in bytes; no database stores a larger value."""

BatchSize = Annotated[int, msgspec.Meta(ge=100, le=1_000_000)]
"""A number of jobs in one transaction, which leaves room for the batches that clients and workers send."""


class Retention(CheckedOptions, frozen=True, kw_only=True):
    """Retention of finished jobs, in seconds or as a ``timedelta`` since they finished; ``None``: forever.

    Parameters
    ----------
    completed:
        Retention of completed jobs; 1 day by default.
    cancelled:
        Retention of cancelled jobs; 1 day by default.
    discarded:
        Retention of discarded jobs that are not dead letters; 7 days by default.
    dead_letter:
        Retention of dead letters; 90 days by default.
    most_dead_letters:
        Maximum number of dead letters; 10,000 by default. The oldest are deleted first.
    audit:
        Retention of entries of the audit log; 365 days by default.
    logs:
        Retention of the lines that the handlers of finished jobs have logged; 7 days by default. They are deleted with
        their job, if that is earlier.

    Raises
    ------
    TypeError, ValueError
        A duration is negative or no duration, or the number is not from 1 to 1,000,000,000.

    Examples
    --------
    >>> from datetime import timedelta
    >>> from ojster import App, Retention, Settings
    >>> settings = Settings(retention=Retention(completed=timedelta(hours=1), dead_letter=None))
    >>> app = App("sqlite:///:memory:", settings=settings)
    >>> app.close()
    """

    completed: NonNegativeSpan | None = timedelta(days=1)
    cancelled: NonNegativeSpan | None = timedelta(days=1)
    discarded: NonNegativeSpan | None = timedelta(days=7)
    dead_letter: NonNegativeSpan | None = timedelta(days=90)
    most_dead_letters: PositiveCount | None = 10_000
    """Spec: ojs-dead-letter 5.2"""
    audit: NonNegativeSpan | None = timedelta(days=365)
    logs: NonNegativeSpan | None = timedelta(days=7)


class Settings(CheckedOptions, frozen=True, kw_only=True):
    """The defaults and limits of a database. Durations are in seconds or ``timedelta``, sizes in bytes.

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
    largest_workflow:
        Maximum size of the jobs of a workflow in which references were replaced by values, all together; 256 MiB by
        default.
    largest_storage:
        Maximum size of all files of a workspace that has no limit of its own; 100 GiB by default.
    largest_batch:
        Maximum number of jobs in one request; 1,000 by default.
    most_generations:
        Maximum number of jobs and workflows that create each other by reactions, one after the other; 100 by default.
    most_losses:
        Maximum number of times that the worker of a job may die before the job is given up; 10 by default. These
        attempts do not count towards ``max_attempts``.
    on_exhaustion:
        What becomes of a job that is not retried any more, if its retry policy does not say it; ``discard`` by default,
        or ``dead_letter``.
    contributors_cancel:
        What tokens without the operation ``admin`` may cancel, hold, replace and fail; ``all`` by default, or only jobs
        and workflows of their ``own``.
    tenants:
        Whether jobs must name their tenant; ``optional`` by default, or ``required``.
    default_tenant:
        Tenant of jobs that name none; ``_default`` by default, which is no tenant.
    schema_mode:
        Handling of arguments that violate a schema registered without a mode; ``warn`` by default, which adds a warning
        to the response; ``strict`` rejects the job; ``off`` ignores it.
    retention:
        Retention of finished jobs.

    Raises
    ------
    TypeError, ValueError
        A setting has another type or is out of bounds: durations are at least a millisecond, ``largest_job``,
        ``largest_workflow`` and ``largest_storage`` at least 1,024, ``largest_batch`` at least 100. ``largest_job`` is
        at most 1,000,000,000, ``largest_batch`` at most 1,000,000.
    InvalidRequest
        The name of the tenant is malformed.

    Examples
    --------
    >>> from ojster import App, Settings
    >>> app = App("sqlite:///:memory:", settings=Settings(default_timeout=90, largest_job=65_536))
    >>> app.settings.largest_batch
    1000
    >>> app.close()
    """

    default_lease: PositiveSpan = timedelta(minutes=30)
    default_timeout: PositiveSpan | None = timedelta(minutes=30)
    heartbeat_timeout: PositiveSpan = timedelta(seconds=30)
    largest_job: JobSize = 1_048_576
    largest_workflow: Size = 268_435_456
    largest_storage: Size = 107_374_182_400
    largest_batch: BatchSize = 1_000
    most_generations: PositiveCount = 100
    most_losses: NonNegativeCount = 10
    on_exhaustion: Literal["discard", "dead_letter"] = "discard"
    contributors_cancel: Literal["all", "own"] = "all"
    tenants: Literal["optional", "required"] = "optional"
    default_tenant: str = DEFAULT_TENANT
    schema_mode: Literal["strict", "warn", "off"] = "warn"
    retention: Retention = Retention()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tenant(self.default_tenant)


def in_microseconds(public: Settings) -> settings.ServiceSettings:
    """Return the same settings for the service, which counts in microseconds."""
    retention = settings.ServiceRetention(**_with_microseconds(public.retention))
    tenant = check_tenant(public.default_tenant)
    return settings.ServiceSettings(**_with_microseconds(public) | {"retention": retention, "default_tenant": tenant})


_SPANS: Final = frozenset(
    {
        "audit",
        "completed",
        "cancelled",
        "discarded",
        "dead_letter",
        "default_lease",
        "default_timeout",
        "heartbeat_timeout",
        "logs",
    }
)


def _with_microseconds(public: Retention | Settings) -> dict[str, Any]:
    values = {name: getattr(public, name) for name in public.__struct_fields__}
    spans = {name: values[name] for name in _SPANS & values.keys() if values[name] is not None}
    return values | {name: round(to_seconds(span) * SECOND) for name, span in spans.items()}
