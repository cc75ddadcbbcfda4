"""What is known of earlier runs of a task? By its type, what it was about, and where it ran. (seed 003: task history)

A task is the jobs of one type with one ``subject`` and one ``context``: the tests of a package, on an architecture. Of
each, the last success, the last failure and the last few runs are kept, and counts of all.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.outcome import Outcome

NEWEST: Final = 5
"""How many of the last runs of a task are kept, beside the last success and the last failure."""

LONGEST_KEY: Final = 255
"""How many characters a subject or a context may have."""

MOST_SHOWN: Final = 1_000


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A kind of job, what it is about, and where it runs."""

    type: str
    subject: str = ""
    context: str = ""


class TaskRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that has ended, as it is remembered. Times are RFC 3339, durations seconds.

    Parameters
    ----------
    duration:
        How long its last attempt ran.
    waited:
        How long it had waited before that.
    error:
        Why it failed.
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
    """How a task has done so far. Durations are seconds, of runs that succeeded or failed.

    Parameters
    ----------
    success_rate:
        The part of those that ran that have succeeded, from 0 to 1; ``None``: none has run.
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


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks are meant; what is left out matches all.

    Parameters
    ----------
    tenant:
        Whose; ``None``: everybody's.
    outcome:
        Of runs: only those that ended so.
    """

    type: str | None = None
    subject: str | None = None
    context: str | None = None
    outcome: Outcome | None = None
    limit: int = 100
    tenant: str | None = None


class Record(msgspec.Struct, frozen=True, tag_field="action", tag="record", forbid_unknown_fields=True):
    """Of ``on_success`` and ``on_failure``: remember how the job has ended.

    Parameters
    ----------
    subject, context:
        What it was about, and where it ran; what stands in braces leads to the job: ``{job.args.0}``.
    """

    subject: str = ""
    context: str = ""


class SkipIfUnchanged(
    msgspec.Struct, frozen=True, tag_field="action", tag="skip-if-unchanged", forbid_unknown_fields=True
):
    """Of ``on_assignment``: do not run if the inputs are those of the last success that was recorded.

    The job is then completed with the result of that, and has the same artifacts.

    Parameters
    ----------
    inputs:
        Any JSON, in which references lead to the job (``job.args.0``) and lookups to collections; by default its
        arguments.
    subject, context:
        Those of ``record``.
    """

    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    subject: str = ""
    context: str = ""


class SkipIfChanged(msgspec.Struct, frozen=True, tag_field="action", tag="skip-if-changed", forbid_unknown_fields=True):
    """Of ``on_assignment``: do not run if a lookup finds another item than it did: somebody else was faster.

    Parameters
    ----------
    lookup:
        ``COLLECTION/NAME``.
    item:
        The ``id`` of the item that it found before; ``None``: none.
    provides:
        Under which name what is found now is put into the workflow's collection, in the place of the promise.
    """

    lookup: str
    item: int | None = None
    provides: str | None = None


Skip = SkipIfUnchanged | SkipIfChanged


def check_key(value: str, name: str) -> str:
    """Return a subject or a context.

    Raises
    ------
    InvalidRequest
        It is too long, or not printable.
    """
    if len(value) > LONGEST_KEY or not (value.isprintable() or not value):
        raise InvalidRequest(f"The {name} must have at most {LONGEST_KEY} printable characters.", field=name)
    return value
