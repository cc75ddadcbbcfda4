"""Task history: how earlier jobs of a type ended, by subject and context.

A task is all jobs of one type with one ``subject`` and one ``context``, for example the tests of a package on an
architecture. For each task, the last success, the last failure and the last few runs are kept, and counts of all runs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.outcome import Outcome
from ojster.core.parsing import Bounded, PageLimit

KEPT_RUNS: Final = 5
"""Number of last runs kept for a task, in addition to the last success and the last failure."""

LONGEST_KEY: Final = 255
"""Maximum length of a subject or a context, in characters."""

MOST_SHOWN: Final = 1_000


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job type, a subject (what the jobs process), and a context (where they run)."""

    type: str
    subject: str = ""
    context: str = ""


class TaskRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished job in the task history. Times are RFC 3339, durations in seconds.

    Parameters
    ----------
    duration:
        Duration of its last attempt.
    waited:
        Time between its enqueueing and that attempt.
    error:
        Error of a failed job.
    """

    id: int
    task: Task
    outcome: Outcome
    job_id: str
    finished_at: str
    duration: float
    attempts: int
    waited: float = 0.0
    workflow_id: str | None = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class TaskStatistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Statistics of a task. Durations are in seconds, and cover runs that succeeded or failed.

    Parameters
    ----------
    success_rate:
        Share of successes among runs that were not skipped, from 0 to 1; ``None`` if there are none.
    """

    task: Task
    runs: int
    successes: int
    failures: int
    errors: int
    skipped: int
    changed_at: str
    success_rate: float | None = None
    average_duration: float | None = None
    shortest_duration: float | None = None
    longest_duration: float | None = None
    last_success_at: str | None = None
    last_failure_at: str | None = None


class TaskFilter(Bounded, frozen=True):
    """Which tasks to select; ``None`` matches all.

    Parameters
    ----------
    tenant:
        Their tenant; ``None``: all tenants.
    outcome:
        For runs: only those with this outcome.
    """

    type: str | None = None
    subject: str | None = None
    context: str | None = None
    outcome: Outcome | None = None
    limit: PageLimit = 100
    tenant: str | None = None


class Record(msgspec.Struct, frozen=True, tag_field="action", tag="record", forbid_unknown_fields=True):
    """For ``on_success`` and ``on_failure``: record in the task history how the job ended.

    Parameters
    ----------
    subject, context:
        What the job processed, and where it ran. Braces refer to the job: ``{job.args.0}``.
    """

    subject: str = ""
    context: str = ""


class SkipIfUnchanged(
    msgspec.Struct, frozen=True, tag_field="action", tag="skip-if-unchanged", forbid_unknown_fields=True
):
    """For ``on_assignment``: skip the job if its inputs equal those of the last recorded success.

    The job is then completed with the result and the artifacts of that success.

    Parameters
    ----------
    inputs:
        Any JSON, in which references lead to the job (``job.args.0``) and lookups to collections. Default: its
        arguments.
    subject, context:
        Those of ``record``.
    """

    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    subject: str = ""
    context: str = ""


class SkipIfChanged(msgspec.Struct, frozen=True, tag_field="action", tag="skip-if-changed", forbid_unknown_fields=True):
    """For ``on_assignment``: skip the job if a lookup finds another item than before, because another job was faster.

    Parameters
    ----------
    lookup:
        ``COLLECTION/NAME``.
    item:
        The ``id`` of the item that it found before; ``None``: none.
    provides:
        Name under which the new item is put into the workflow's collection, in place of the promise.
    """

    lookup: str
    item: int | None = None
    provides: str | None = None


Skip = SkipIfUnchanged | SkipIfChanged


def check_key(value: str, name: str) -> str:
    """Return a valid subject or context; ``name`` says which it is in errors.

    Raises
    ------
    InvalidRequest
        It is too long, or not printable.
    """
    if len(value) > LONGEST_KEY or not (value.isprintable() or not value):
        raise InvalidRequest(f"The {name} must have at most {LONGEST_KEY} printable characters.", field=name)
    return value
