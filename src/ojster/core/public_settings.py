"""Defaults and limits of a database, as an application sets them: durations are seconds or ``timedelta``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Literal

import msgspec

from ojster.core import settings
from ojster.core.durations import SECOND
from ojster.core.values import Seconds, to_seconds


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Retention of finished jobs, in seconds or as a ``timedelta`` since they finished; ``None``: forever.

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
    audit:
        Retention of entries of the audit log; 365 days by default.

    Examples
    --------
    >>> from datetime import timedelta
    >>> from ojster import App, Retention, Settings
    >>> settings = Settings(retention=Retention(completed=timedelta(hours=1), dead_letter=None))
    >>> app = App("sqlite:///:memory:", settings=settings)
    >>> app.close()
    """

    completed: Seconds | None = timedelta(days=1)
    cancelled: Seconds | None = timedelta(days=1)
    discarded: Seconds | None = timedelta(days=7)
    dead_letter: Seconds | None = timedelta(days=90)
    most_dead_letters: int | None = 10_000
    """Maximum number of dead letters: beyond it, the oldest are deleted. Spec: ojs-dead-letter 5.2"""
    audit: Seconds | None = timedelta(days=365)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
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
        What becomes of a job that is not retried any more, if its retry policy does not say it: ``discard``, the
        default, or ``dead_letter``.
    contributors_cancel:
        What tokens without the operation ``admin`` may cancel: ``all``, the default, or only jobs and workflows of
        their ``own``.
    tenants:
        Whether jobs must name their tenant: ``required``, or ``optional``, the default.
    default_tenant:
        Tenant of jobs that name none; the empty string, the default: no tenant, shown as ``_default``.
    schema_mode:
        Handling of arguments that violate a schema registered without a mode: ``strict`` rejects the job; ``warn``, the
        default, adds a warning to the response; ``off`` ignores it.
    retention:
        Retention of finished jobs.

    Examples
    --------
    >>> from ojster import App, Settings
    >>> app = App("sqlite:///:memory:", settings=Settings(default_timeout=90, largest_job=65_536))
    >>> app.settings.largest_batch
    1000
    >>> app.close()
    """

    default_lease: Seconds = timedelta(minutes=30)
    default_timeout: Seconds | None = timedelta(minutes=30)
    heartbeat_timeout: Seconds = timedelta(seconds=30)
    largest_job: int = 1_048_576
    largest_workflow: int = 268_435_456
    largest_storage: int = 107_374_182_400
    largest_batch: int = 1_000
    most_generations: int = 100
    most_losses: int = 10
    on_exhaustion: Literal["discard", "dead_letter"] = "discard"
    contributors_cancel: Literal["all", "own"] = "all"
    tenants: Literal["optional", "required"] = "optional"
    default_tenant: str = ""
    schema_mode: Literal["strict", "warn", "off"] = "warn"
    retention: Retention = Retention()


def in_microseconds(public: Settings) -> settings.ServiceSettings:
    """Return the same settings for the service, which counts in microseconds."""
    retention = settings.ServiceRetention(**_with_microseconds(public.retention))
    return settings.ServiceSettings(**_with_microseconds(public) | {"retention": retention})


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
    }
)


def _with_microseconds(public: Retention | Settings) -> dict[str, Any]:
    values = {name: getattr(public, name) for name in public.__struct_fields__}
    spans = {name: values[name] for name in _SPANS & values.keys() if values[name] is not None}
    return values | {name: round(to_seconds(span) * SECOND) for name, span in spans.items()}
