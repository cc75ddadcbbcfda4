"""The JSON of requests and answers about workflows."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.core.wire import ChangesBody, Count, Identifier, Json, Milliseconds
from ojster.jobs.policy_wire import RetryPolicyBody


class PropertiesBody(ChangesBody):
    """Changes of a workflow's properties. With ``job_id``, the worker must hold the lease of that job."""

    job_id: str | None = None
    worker_id: Identifier | None = None
    attempt: Count | None = None


class ResumeBody(Struct):
    """Resumes a suspended job with ``result``, any JSON value, or with ``error``, the reason why there is no result.

    ``step`` is the path of the step, if several steps of a workflow are suspended.
    """

    result: Raw | UnsetType = UNSET
    error: str | dict[str, Json] | None = None
    step: str | None = None


class NoteBody(Struct):
    """A note: any JSON value. A worker can name itself and its attempt; it must then hold the lease of the job."""

    note: Raw
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


class ReviewBody(Struct):
    """A review of a step that needs an approval. ``action`` or ``notes`` is required."""

    action: Literal["approve", "reject"] | None = None
    notes: Annotated[str, Meta(max_length=65_536)] | None = None
    author: Annotated[str, Meta(max_length=255)] | None = None


class DependenciesBody(Struct, forbid_unknown_fields=True):
    """Ids of steps of the same graph that a step is to wait for, too."""

    depends_on: Annotated[list[str], Meta(min_length=1, max_length=1_000)]


DEPENDENCIES: Final = msgspec.json.Decoder(DependenciesBody)

RESUME: Final = msgspec.json.Decoder(ResumeBody)

NOTE: Final = msgspec.json.Decoder(NoteBody)

PROPERTIES: Final = msgspec.json.Decoder(PropertiesBody)

REVIEW: Final = msgspec.json.Decoder(ReviewBody)
