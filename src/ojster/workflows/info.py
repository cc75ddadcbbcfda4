"""How does a workflow look to the outside? As JSON, with all of its steps (ojs-workflows.md section 11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ojster.core.outcome import Outcome


class ReviewInfo(msgspec.Struct, omit_defaults=True):
    """What somebody said of a step that waits for an approval."""

    at: str
    action: str | None = None
    author: str | None = None
    notes: str | None = None


class StepInfo(msgspec.Struct, omit_defaults=True):
    """A step of a workflow: a job, a gate, or a container with steps of its own.

    Parameters
    ----------
    index, id:
        Its place in its container, from 0, and what others call it.
    path:
        How to name it in requests: the ids or indices from the outermost container to it, with dots between.
    type:
        The job type, or what kind of container it is.
    state:
        ``waiting``, ``blocked`` (an approval is missing), ``held``, ``pending`` (its job is enqueued), ``active``,
        ``completed``, ``failed``, ``cancelled``, ``skipped`` or ``compensated``.
    result, error:
        What it has brought about, or why it failed.
    on_hold:
        Whether its job waits until somebody resumes it.
    outcome:
        How it has ended, in one word: ``success``, ``failure``, ``error`` or ``skipped``.
    superseded_job_ids:
        The jobs that it had before it was retried, the oldest first.
    """

    index: int
    path: str
    type: str
    state: str
    id: str | None = None
    name: str | None = None
    job_id: str | UnsetType | None = UNSET
    queue: str | None = None
    attempt: int | None = None
    max_attempts: int | None = None
    progress: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET
    started_at: str | None = None
    completed_at: str | None = None
    depends_on: list[str] | UnsetType = UNSET
    step: str | None = None
    group: str | None = None
    when: str | None = None
    condition: str | None = None
    allow_failure: bool = False
    manual: bool = False
    approved: bool = False
    on_hold: bool = False
    reviews: list[ReviewInfo] = []
    superseded_job_ids: list[str] = []
    outcome: Outcome | None = None
    steps_total: int | None = None
    steps_completed: int | None = None
    jobs_total: int | None = None
    jobs_completed: int | None = None
    steps: list[StepInfo] = []
    jobs: list[StepInfo] = []
    callbacks: dict[str, StepInfo] = {}
    compensations: list[StepInfo] = []
    fallback: StepInfo | None = None

    @property
    def children(self) -> list[StepInfo]:
        """The steps inside it, in their order."""
        inside = [*self.steps, *self.jobs, *self.callbacks.values(), *self.compensations]
        return [*inside, self.fallback] if self.fallback is not None else inside

    def walk(self) -> Iterator[StepInfo]:
        """Yield it and all steps inside it, each before those that it contains."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def label(self) -> str:
        """What to call it in front of people."""
        return self.name or self.id or self.type


class WorkflowError(msgspec.Struct, omit_defaults=True):
    """Why a workflow failed (ojs-workflows.md section 9.6)."""

    code: str
    message: str
    failed_step_index: int | None = None
    failed_step: str | None = None
    failed_job_ids: list[str] = []
    errors: list[dict[str, Any]] = []


class WorkflowInfo(msgspec.Struct, omit_defaults=True):
    """A workflow, as far as it was asked for.

    Parameters
    ----------
    state:
        ``pending``, ``running``, ``compensating``, ``completed``, ``failed``, ``cancelled``, ``retried`` (it is run
        again as a whole, as ``next_attempt``) or ``compensated``.
    version:
        Grows with every change.
    finished:
        Whether nothing of it runs any more. A cancelled one may still wait for jobs that were active.
    steps_total, steps_completed, jobs_total, jobs_completed:
        How many steps there are in its outermost container, and how many have completed.
    definition, definition_version, target:
        From which definition it was started, and for what.
    locks:
        A regular expression: from which targets it keeps others.
    attempt, previous_attempt, next_attempt:
        Which attempt this is, if it was run again as a whole, and of which workflows it takes the place or the other
        way round.
    metadata:
        What its creator said of it, and times and counts of all its jobs.
    """

    id: str
    type: str
    state: str
    name: str | None = None
    version: int = 0
    finished: bool = False
    held: bool = False
    steps_total: int | None = None
    steps_completed: int | None = None
    jobs_total: int | None = None
    jobs_completed: int | None = None
    steps: list[StepInfo] | UnsetType = UNSET
    jobs: list[StepInfo] | UnsetType = UNSET
    callbacks: dict[str, StepInfo] = {}
    compensations: list[StepInfo] = []
    on_error: StepInfo | None = None
    on_cancel: StepInfo | None = None
    params: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    error: WorkflowError | None = None
    retries: int = 0
    definition: str | None = None
    definition_version: int | None = None
    target: str | None = None
    locks: str | None = None
    attempt: int = 1
    previous_attempt: str | None = None
    next_attempt: str | None = None
    created_at: str = ""
    started_at: str | None = None
    completed_at: str | None = None
    cancelled_at: str | None = None
    scheduled_at: str | None = None
    expires_at: str | None = None
    expiration_delay: str | None = None
    metadata: dict[str, Any] = {}

    @property
    def children(self) -> list[StepInfo]:
        """The steps of its outermost container, and its branches, in their order."""
        main = [*(self.steps or []), *(self.jobs or []), *self.callbacks.values(), *self.compensations]
        return main + [branch for branch in (self.on_error, self.on_cancel) if branch is not None]

    def walk(self) -> Iterator[StepInfo]:
        """Yield all steps, each before those that it contains."""
        for child in self.children:
            yield from child.walk()

    def to_json(self) -> bytes:
        """Return it as a JSON object."""
        return _encode(self)

    @classmethod
    def from_json(cls, raw: bytes | msgspec.Raw) -> WorkflowInfo:
        """Return the workflow that a server described in JSON."""
        return _decode(raw)


class WorkflowPage(msgspec.Struct):
    """One page of workflows, without their steps, how many there are in all, and the ``before`` of the next page."""

    workflows: list[WorkflowInfo]
    total: int
    next_before: int | None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(WorkflowInfo).decode
