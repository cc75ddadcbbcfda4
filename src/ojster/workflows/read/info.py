"""Workflows as clients see them: as JSON, with all their steps.

Spec: ojs-workflows 11
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ojster.core.outcome import Outcome
from ojster.workflows.read.causes import Cause
from ojster.workflows.read.flow_info import WaitInfo
from ojster.workflows.wait import WaitingFor


class ReviewInfo(msgspec.Struct, omit_defaults=True):
    """What somebody has said of a step.

    Parameters
    ----------
    at:
        When, RFC 3339.
    action:
        ``approve`` or ``reject``; ``answer`` or ``decline``, if the step was resumed with a result or with an error;
        ``None``: only notes.
    author:
        Name of the token; ``None``: unknown.
    notes:
        What was said, or why an answer was declined.
    answer:
        The result that the step was resumed with, as JSON, up to 64 KiB.
    """

    at: str
    action: str | None = None
    author: str | None = None
    notes: str | None = None
    answer: msgspec.Raw | UnsetType = UNSET


class StepInfo(msgspec.Struct, omit_defaults=True):
    """A step of a workflow: a job, a gate, or a container with steps of its own.

    Times are RFC 3339. Values that a step does not have are ``None``, ``UNSET`` or empty.

    Parameters
    ----------
    index, id:
        Its position in its container, from 0, and the name by which other steps refer to it. A step with a fallback,
        the step itself and the fallback have the same.
    path:
        Its name in requests: the ids or indices from the outermost container to the step, joined by dots.
    type:
        The job type, or the kind of container.
    state:
        ``waiting``, ``blocked`` (an approval is missing), ``held``, ``pending`` (its job is enqueued), ``active``,
        ``completed``, ``failed``, ``cancelled``, ``skipped`` or ``compensated``.
    name:
        Its name for display.
    job_id, queue, attempt, max_attempts, progress:
        Its job: the id, the queue, the number of the attempt, the maximum number, and the last progress.
    result, error:
        Its result, or why it failed, as JSON.
    enqueued_at, started_at, completed_at:
        Times at which its job last became available, at which it started then, and at which it ended. A container or
        gate starts when its turn comes.
    stop_requested_at:
        When its job was cancelled, or exceeded its timeout, while a worker ran it: the worker stops from then until
        ``completed_at``.
    depends_on:
        Ids of its predecessors in a graph, and paths of the steps elsewhere that promised what it looks up.
    step, group:
        Its stage and its group, for display.
    visible:
        Whether it is shown in pages of steps and in drawings; true by default.
    when, condition:
        The rule and the condition under which it starts.
    allow_failure:
        Whether its successors continue however it ends; false by default.
    manual, approved, reviews:
        Whether it needs an approval, whether it has one, and its reviews: also who has answered or resumed it.
    on_hold:
        Whether its job is suspended until it is resumed; false by default.
    stopping:
        Whether its job was cancelled or has exceeded its timeout, and its worker has not confirmed yet that it has
        stopped; false by default.
    waits:
        For a job that runs the function of a flow: what the flow waits for, while no worker runs it.
    superseded_job_ids:
        Its jobs from before it was retried, the oldest first.
    because:
        Why it was skipped or cancelled, or what was undone because of what.
    outcome:
        How it ended, in one word: ``success``, ``failure``, ``error`` or ``skipped``.
    steps_total, steps_completed, jobs_total, jobs_completed:
        For a container: number of steps in it, and how many of them have completed.
    steps, jobs, callbacks, compensations, fallback:
        The steps inside it, by role.

    Examples
    --------
    >>> from ojster import App, chain, gate
    >>> app = App("sqlite:///:memory:")
    >>> run = app.start(chain(gate("review"), gate("release")))
    >>> [(step.path, step.type, step.state) for step in run.info.walk()]
    [('review', 'gate', 'blocked'), ('release', 'gate', 'waiting')]
    >>> app.close()
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
    enqueued_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    stop_requested_at: str | None = None
    depends_on: list[str] | UnsetType = UNSET
    step: str | None = None
    group: str | None = None
    visible: bool = True
    when: str | None = None
    condition: str | None = None
    allow_failure: bool = False
    manual: bool = False
    approved: bool = False
    on_hold: bool = False
    stopping: bool = False
    reviews: list[ReviewInfo] = []
    waits: list[WaitInfo] = []
    superseded_job_ids: list[str] = []
    because: Cause | None = None
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
        """The steps directly inside it, in order."""
        inside = [*self.steps, *self.jobs, *self.callbacks.values(), *self.compensations]
        return [*inside, self.fallback] if self.fallback is not None else inside

    def walk(self) -> Iterator[StepInfo]:
        """Yield this step and all steps inside it.

        Yields
        ------
        StepInfo
            A step, before the steps that it contains.
        """
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.name or self.id or self.type


class WorkflowError(msgspec.Struct, omit_defaults=True):
    """Why a workflow failed.

    Spec: ojs-workflows 9.6
    """

    code: str
    message: str
    failed_step_index: int | None = None
    failed_step: str | None = None
    failed_job_ids: list[str] = []
    errors: list[dict[str, Any]] = []


I = TypeVar("I", bound=msgspec.Struct)  # noqa: E741


def with_others(info: I, others: Mapping[str, msgspec.Raw]) -> I:
    """Return what is shown with the members of its request that the server does not know.

    Those that have the name of a member of the answer are left out.

    Spec: ojs-json-format 14.3
    """
    own = info.__struct_encode_fields__
    shown = {name: raw for name, raw in others.items() if name not in own}
    if not shown:
        return info
    values = {name: getattr(info, name) for name in info.__struct_fields__}
    kind: Callable[..., I] = _extended(type(info), tuple(shown))
    return kind(**values, **{_field(place): raw for place, raw in enumerate(shown.values())})


def _field(place: int) -> str:
    return f"other_{place}"


@lru_cache(maxsize=128)
def _extended(kind: Any, names: tuple[str, ...]) -> Any:
    """Return a type with further members; few combinations are in use at a time."""
    fields = [(_field(place), msgspec.Raw) for place in range(len(names))]
    rename = {_field(place): name for place, name in enumerate(names)}
    return msgspec.defstruct(kind.__name__, fields, bases=(kind,), kw_only=True, omit_defaults=True, rename=rename)


class WorkflowInfo(msgspec.Struct, omit_defaults=True):
    """A workflow, with the details that were requested.

    Times are RFC 3339. Values that a workflow does not have, or that were not requested, are ``None``, ``UNSET`` or
    empty.

    Parameters
    ----------
    id, type, name:
        Its id, the kind of its outermost container, and its name.
    kind:
        ``flow`` if it is a flow, whose type is ``chain``: clients of the specification know no other.
    state:
        ``pending``, ``running``, ``compensating``, ``cancelling`` (it was cancelled and cleans up), ``completed``,
        ``failed``, ``cancelled``, ``retried`` (it runs again as a whole, as ``next_attempt``) or ``compensated``.
    version:
        Increases with every change.
    finished:
        Whether nothing of it runs any more. A cancelled workflow may still wait for jobs that were active.
    held:
        Whether no step starts until it is released.
    waiting_for:
        In lists: what steps of it wait for: ``gate`` (an approval), ``form`` (an answer), ``delay`` (a time), or
        ``suspension`` (until their job is resumed).
    steps_total, steps_completed, jobs_total, jobs_completed:
        Number of steps in its outermost container, and how many of them have completed.
    steps, jobs, callbacks, compensations, on_error, on_cancel:
        Its steps, by role, and its branches.
    steps_omitted:
        Whether it has too many steps to be shown with it; they are listed in pages.
    params:
        Values of its parameters, as JSON.
    result, error:
        Its result as JSON, or why it failed. In lists, the error names the step that failed first.
    retries:
        Number of retries of its steps by ``retry``; 0 by default.
    definition, definition_version, target:
        The definition that it was started from, and its target.
    locks:
        A regular expression for the targets that it blocks for other workflows.
    attempt, previous_attempt, next_attempt:
        The number of this attempt, if the whole workflow was retried, and the workflows of the attempts before and
        after.
    forked_from, forked_step, forks:
        The workflow that runs again as this one (``fork``), and from which step on; and the last workflows as which
        this one runs again, the newest first, at most 100. Lists leave out ``forks``.
    created_at, started_at, completed_at, cancelled_at:
        Times at which it was created, started, completed and cancelled.
    created_by, cancelled_by:
        Names of the tokens that created and cancelled it; ``None`` without a token.
    scheduled_at, expires_at:
        Times before which it does not start, and after which it no longer starts.
    expiration_delay:
        Retention after it has finished: an ISO 8601 duration or ``never``.
    metadata:
        The metadata from its creator, and times and counts of all its jobs.

    Examples
    --------
    >>> from ojster import App, chain, gate
    >>> app = App("sqlite:///:memory:")
    >>> info = app.start(chain(gate("review")), name="publish").info
    >>> info.name, info.type, info.state, info.steps_total
    ('publish', 'chain', 'running', 1)
    >>> app.close()
    """

    id: str
    type: str
    state: str
    name: str | None = None
    kind: Literal["flow"] | None = None
    version: int = 0
    finished: bool = False
    held: bool = False
    waiting_for: list[WaitingFor] = []
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
    steps_omitted: bool = False
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
    forked_from: str | None = None
    forked_step: str | None = None
    forks: list[str] = []
    created_at: str = ""
    started_at: str | None = None
    completed_at: str | None = None
    cancelled_at: str | None = None
    created_by: str | None = None
    cancelled_by: str | None = None
    scheduled_at: str | None = None
    expires_at: str | None = None
    expiration_delay: str | None = None
    metadata: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.name or self.kind or self.type

    @property
    def children(self) -> list[StepInfo]:
        """The steps of its outermost container, and its branches, in order."""
        main = [*(self.steps or []), *(self.jobs or []), *self.callbacks.values(), *self.compensations]
        return main + [branch for branch in (self.on_error, self.on_cancel) if branch is not None]

    def walk(self) -> Iterator[StepInfo]:
        """Yield all steps.

        Yields
        ------
        StepInfo
            A step, before the steps that it contains.
        """
        for child in self.children:
            yield from child.walk()

    def to_json(self) -> bytes:
        """Return the workflow as a JSON object.

        Returns
        -------
        bytes
            The object; members with default values are left out.
        """
        return _encode(self)

    @classmethod
    def from_json(cls, raw: bytes | msgspec.Raw) -> WorkflowInfo:
        """Return the workflow in a server's JSON.

        Parameters
        ----------
        raw:
            A JSON object.

        Returns
        -------
        WorkflowInfo
            The workflow.

        Raises
        ------
        ValidationError
            The JSON does not describe a workflow (``msgspec.ValidationError``).
        """
        return _decode(raw)


class WorkflowPage(msgspec.Struct):
    """One page of workflows without their steps, the total number, and the ``before`` of the next page."""

    workflows: list[WorkflowInfo]
    total: int
    next_before: int | None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(WorkflowInfo).decode
