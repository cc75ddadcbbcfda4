"""The JSON of requests and answers about workflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.core.calls import Arguments
from ojster.core.errors import InvalidRequest
from ojster.core.ids import new_id
from ojster.core.parsing import read_value
from ojster.core.property_values import Changes
from ojster.core.wire import ChangesBody, Count, Identifier, Json, Milliseconds
from ojster.jobs.failure import Failure, parse_failure
from ojster.jobs.policy_wire import RetryPolicyBody


class PropertiesBody(ChangesBody, Arguments):
    """Changes of a workflow's properties. With ``job_id``, the worker must hold the lease of that job."""

    job_id: str | None = None
    worker_id: Identifier | None = None
    attempt: Count | None = None

    @classmethod
    def of(cls, changes: Changes, **worker: Any) -> Self:
        return cls(dict(changes.set), list(changes.delete), dict(changes.expected), **worker)

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the changes, and who makes them."""
        changes = Changes(self.set, tuple(self.delete), self.expected)
        return {"changes": changes, "job_id": self.job_id, "worker_id": self.worker_id, "attempt": self.attempt}


class ActivationBody(Arguments):
    """Resumes a suspended job with ``result``, any JSON value, or with ``error``, the reason why there is no result."""

    result: Raw | UnsetType = UNSET
    error: str | dict[str, Json] | None = None

    @classmethod
    def of(cls, data: bytes | None, failure: Failure | None, **more: Any) -> Self:
        error = None if failure is None else msgspec.to_builtins(failure)
        return cls(UNSET if data is None or error is not None else Raw(data), error, **more)

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the result as JSON, or the failure.

        Raises
        ------
        InvalidRequest
            The body has both, or one of them is malformed.
        """
        if self.error is not None and self.result is not UNSET:
            raise InvalidRequest("The body has both 'result' and 'error'. Send only one of them.", field="error")
        if self.result is not UNSET:
            read_value(self.result, "result")
        error = {"code": "resumed_with_error", "message": self.error} if isinstance(self.error, str) else self.error
        return {
            "data": None if self.result is UNSET else bytes(self.result),
            "failure": None if error is None else msgspec.structs.replace(parse_failure(error), retryable=False),
        }


class ResumeBody(ActivationBody):
    """Resumes a suspended job of a workflow; ``step`` is its path, if several steps are suspended."""

    step: str | None = None

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the result as JSON, or the failure, and the step."""
        return {**super().arguments(now), "step": self.step}


class ForkBody(Arguments):
    """Runs a workflow again from a step on, as a new workflow; without ``from_step``, from its start.

    ``from_step`` is the path of a step, or for a flow the key of what it has asked for. ``args`` are new arguments of
    the step, or of a flow without ``from_step``. With ``result``, any JSON value, the step does not run, and has that
    result. A request with the same ``id``, that of the new workflow, makes no other.
    """

    from_step: Annotated[str, Meta(min_length=1)] | None = None
    args: list[Json] | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    id: str | None = None

    @classmethod
    def of(cls, args: bytes | None, result: bytes | None, id: str | None, **more: Any) -> Self:
        """Return the body for a fork. Its id makes it safe to send it again."""
        new = UNSET if args is None else msgspec.json.decode(args)
        return cls(args=new, result=UNSET if result is None else Raw(result), id=id or new_id(), **more)

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the arguments and the result as JSON.

        Raises
        ------
        InvalidRequest
            The result is malformed.
        """
        if self.result is not UNSET:
            read_value(self.result, "result")
        return {
            "from_step": self.from_step,
            "args": None if self.args is UNSET else msgspec.json.encode(self.args),
            "result": None if self.result is UNSET else bytes(self.result),
            "id": self.id,
        }


class NoteBody(Arguments):
    """A note: any JSON value."""

    note: Raw

    @classmethod
    def of(cls, note: bytes, **worker: Any) -> Self:
        return cls(Raw(note), **worker)

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the note as JSON, and who adds it."""
        return {**super().arguments(now), "note": bytes(self.note)}


class JobNoteBody(NoteBody):
    """A note of a job. A worker can name itself and its attempt; it must then hold the lease of the job."""

    worker_id: Identifier | None = None
    attempt: Count | None = None


class WorkflowBody(Struct):
    """A workflow. A step is a job with additional members, or a nested workflow; see docs/workflows.md."""

    type: Literal["chain", "group", "batch", "saga", "graph", "map", "flow"] | UnsetType = UNSET
    definition: str | UnsetType = UNSET
    definition_version: Count | UnsetType = UNSET
    target: str | UnsetType = UNSET
    locks: str | UnsetType = UNSET
    properties: dict[str, Json] | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    steps: list[dict[str, Json]] | UnsetType = UNSET
    jobs: list[dict[str, Json]] | UnsetType = UNSET
    callbacks: dict[str, dict[str, Json]] | UnsetType = UNSET
    job: dict[str, Json] | UnsetType = UNSET
    options: dict[str, Json] | UnsetType = UNSET
    params: dict[str, Json] | UnsetType = UNSET
    metadata: dict[str, Json] | UnsetType = UNSET
    timeout: Count | UnsetType = UNSET
    timeout_ms: Milliseconds | UnsetType = UNSET
    scheduled_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    on_error: dict[str, Json] | list[dict[str, Json]] | UnsetType = UNSET
    on_cancel: dict[str, Json] | list[dict[str, Json]] | UnsetType = UNSET
    on_lost_worker: Literal["retry", "cancel"] | UnsetType = UNSET
    failure_policy: Literal["compensate", "retry", "skip"] | UnsetType = UNSET


class DefinitionBody(Struct):
    """A workflow definition: the members of a workflow except ``params``, times and the like."""

    name: str | UnsetType = UNSET
    type: Literal["chain", "group", "batch", "saga", "graph", "map"] | UnsetType = UNSET
    params_schema: dict[str, Json] | UnsetType = UNSET
    steps: list[dict[str, Json]] | UnsetType = UNSET
    jobs: list[dict[str, Json]] | UnsetType = UNSET
    timeout: Count | UnsetType = UNSET
    on_error: dict[str, Json] | list[dict[str, Json]] | UnsetType = UNSET
    on_cancel: dict[str, Json] | list[dict[str, Json]] | UnsetType = UNSET
    on_lost_worker: Literal["retry", "cancel"] | UnsetType = UNSET
    retry: RetryPolicyBody | UnsetType = UNSET


class ReviewBody(Arguments):
    """A review of a step that needs an approval. ``action`` or ``notes`` is required."""

    action: Literal["approve", "reject"] | None = None
    notes: Annotated[str, Meta(max_length=65_536)] | None = None
    author: Annotated[str, Meta(max_length=255)] | None = None


class DependenciesBody(Arguments, forbid_unknown_fields=True):
    """Ids of steps of the same graph that a step is to wait for, too."""

    depends_on: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1_000)]
