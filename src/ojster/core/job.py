"""A job as it is stored: the row that every capability works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ojster.core.json_objects import raw_list
from ojster.core.outcome import SKIPPED, Outcome, outcome_of
from ojster.core.shared_value import SharedValue
from ojster.core.states import FINISHED, JobState

NODE_BITS: Final = 20
"""Number of bits of a node's id that number it within its workflow; the others are the workflow's ``seq``."""

NOT_LOADED: Final = b"{}"
"""The envelope of a job that was read without it."""


class Job(msgspec.Struct, gc=False):
    """A job as it is stored. Times are microseconds since the epoch, durations microseconds.

    Clients read jobs; ``JobHandle.job`` and ``JobContext.job`` are jobs. Fields that a job does not have are ``None``.
    Most of the internal fields are set only for jobs that are read from a database, not for those from a server.

    Parameters
    ----------
    seq:
        Number of the job in its database.
    id, type, queue:
        Id, job type and queue.
    state:
        State, as in ``JobState``.
    priority:
        Priority, from -100 to 100.
    attempt:
        Number of the current or last attempt, from 1; 0 before the first.
    max_attempts:
        Maximum number of attempts.
    created_at, enqueued_at, started_at, finished_at:
        Times at which it was created, became available, was last started, and finished.
    expires_at:
        Time after which it no longer starts.
    due_at:
        Time of the next change by the service, such as the next attempt or the end of the lease.
    timeout:
        Maximum run time of an attempt.
    lease:
        Lease that the job sets; ``None``: the worker or ``Settings.default_lease`` sets it.
    retry_delay:
        Delay before the next attempt.
    worker_id:
        Worker of the current or last attempt.
    unique_key:
        Uniqueness key.
    cron_name:
        Cron job that created it.
    exclusive_key:
        Key of jobs that never run at the same time, such as the jobs of one cron job.
    dead:
        1 for a dead letter, otherwise 0.
    progress, result, errors:
        Last progress, result, and errors of all attempts, as JSON.
    node:
        Id of the step, for a job of a workflow.
    superseded_by:
        Id of the job that replaces it.
    error_type:
        Type of the last error.
    checkpoint_number:
        Number of saved checkpoints; 0 by default.
    limit_key:
        Key of its rate limit or concurrency limit.
    tenant:
        Tenant; the empty string, the default: no tenant.
    version:
        Version of the arguments, as a number.
    needs:
        Key of its requirements on workers.
    agent:
        State of an agent task, as JSON.
    suspension:
        Effect of resuming it, while it is suspended (``ojster.workflows.run.suspensions``).
    flags:
        Bits of ``ojster.core.job_flags``: which events have reactions, and others; 0 by default.
    losses:
        Number of attempts that ended with the death of their worker; 0 by default.
    trace_id:
        Id of the trace that it belongs to.
    envelope:
        JSON object of the immutable attributes; ``args`` and ``meta`` decode it.
    shared:
        A large value in the envelope that is stored once for its workflow; known while the job is enqueued.
    moved:
        Last state change in this transaction, as (old, new), until an event reports it.
    parent_results, checkpoint, resumed:
        Results of predecessor steps, last checkpoint with its ``state`` and ``sequence``, and data with which it was
        resumed, as JSON; set when it is claimed.
    started_before:
        When the attempt before the present one was started; known while it is claimed.

    Examples
    --------
    >>> from ojster import App
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("email.send")
    ... def send(to: str) -> None: ...
    >>> job = send.enqueue("ada@example.com").job
    >>> job.type, job.queue, job.state, job.args
    ('email.send', 'default', 'available', ['ada@example.com'])
    >>> app.close()
    """

    seq: int
    id: str
    type: str
    queue: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    created_at: int
    enqueued_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    expires_at: int | None = None
    due_at: int | None = None
    timeout: int | None = None
    lease: int | None = None
    retry_delay: int | None = None
    worker_id: str | None = None
    unique_key: str | None = None
    cron_name: str | None = None
    exclusive_key: str | None = None
    dead: int = 0
    progress: bytes | None = None
    result: bytes | None = None
    errors: bytes | None = None
    node: int | None = None
    superseded_by: str | None = None
    error_type: str | None = None
    checkpoint_number: int = 0
    limit_key: str | None = None
    tenant: str = ""
    version: int | None = None
    needs: str | None = None
    agent: bytes | None = None
    suspension: str | None = None
    flags: int = 0
    losses: int = 0
    trace_id: str | None = None
    envelope: bytes = NOT_LOADED
    shared: SharedValue | None = None
    moved: tuple[str | None, str] | None = None
    parent_results: bytes | None = None
    checkpoint: bytes | None = None
    resumed: bytes | None = None
    started_before: int | None = None

    @property
    def is_skipped(self) -> bool:
        """Whether the job is completed without a run."""
        return self.suspension == SKIPPED

    @property
    def counted_attempts(self) -> int:
        """The number of attempts that count towards ``max_attempts``: those whose worker did not die."""
        return self.attempt - self.losses

    @property
    def possible_attempts(self) -> int:
        """The number of attempts that the job may have: ``max_attempts``, and those that did not count towards it."""
        return max(self.max_attempts + self.losses, self.attempt, 1)

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of the last failed attempt; ``None`` if there was none or the job succeeded after it."""
        if self.errors is None or self.state == JobState.COMPLETED:
            return None
        last: dict[str, Any] = msgspec.json.decode(last_error(self.errors))
        return last

    @property
    def workflow(self) -> int | None:
        """The ``seq`` of the workflow of a step; ``None``: the job is no step."""
        return None if self.node is None else self.node >> NODE_BITS

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the job; ``None`` if it has not finished or was cancelled."""
        if self.finished_at is None and self.state not in FINISHED:
            return None
        error = bytes(last_error(self.errors)) if self.errors else None
        return outcome_of(self.state, error, skipped=self.is_skipped)

    @property
    def args(self) -> list[Any]:
        """The positional arguments, decoded."""
        return _contents(self.envelope).args

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata, decoded."""
        return _contents(self.envelope).meta


class _Contents(msgspec.Struct):
    args: list[Any]
    meta: dict[str, Any] = {}


_contents: Final = msgspec.json.Decoder(_Contents).decode


class Membership(msgspec.Struct):
    """The workflow and the step that a job belongs to; ``None``: it is not a step."""

    workflow_id: str | None = None
    workflow_step: str | None = None


membership_of: Final[Callable[[bytes], Membership]] = msgspec.json.Decoder(Membership).decode
"""Reads the membership in the envelope of a job."""


def last_error(errors: bytes) -> msgspec.Raw:
    """Return the error of the last failed attempt, as JSON, from the ``errors`` of a job."""
    return raw_list(errors)[-1]
