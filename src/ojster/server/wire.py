"""What do requests and answers look like? The types behind the JSON, and behind the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.files.file import OCTETS
from ojster.fleet.ml_resources import ResourceLimits
from ojster.workflows.info import WorkflowInfo

Count = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[int, Meta(ge=0, le=3_153_600_000_000)]
Identifier = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
Timestamp = Annotated[str, Meta(description="RFC 3339, in UTC")]
Json = Any


class RetryPolicyBody(Struct):
    """How often and how fast a failed job is tried again (ojs-retry.md section 2)."""

    max_attempts: Count = 3
    initial_interval: str = "PT1S"
    backoff_coefficient: Annotated[float, Meta(ge=1)] = 2.0
    max_interval: str = "PT5M"
    jitter: bool = True
    non_retryable_errors: list[str] = []
    on_exhaustion: Literal["discard", "dead_letter"] = "discard"
    backoff_strategy: Literal["exponential", "linear", "constant", "polynomial"] = "exponential"


class UniquePolicyBody(Struct):
    """Which jobs count as duplicates, and what to do with one (ojs-unique-jobs.md section 2)."""

    keys: list[Literal["type", "queue", "args", "meta"]] | None = None
    args_keys: list[str] | None = None
    meta_keys: list[str] | None = None
    period: str | None = None
    states: list[str] | None = None
    on_conflict: Literal["reject", "replace", "replace_except_schedule", "ignore"] = "reject"


class SchemaBody(Struct):
    """A JSON Schema for the arguments of a job type, in a version; ``args_schema`` is another name for ``schema``."""

    job_type: str | None = None
    type: str | None = None
    version: int | str | None = None
    schema: Raw | UnsetType = UNSET
    args_schema: Raw | UnsetType = UNSET
    mode: Literal["strict", "warn", "off"] | None = None
    compatible_with: list[str] = []


class EventFilterBody(Struct):
    """Of which queues and job types events are wanted; none: of all."""

    queues: list[str] = []
    job_types: list[str] = []


class SubscriptionBody(Struct):
    """Where to send which events; ``job.*`` stands for all that begin so, ``*`` for all."""

    url: Annotated[str, Meta(max_length=2000)]
    events: Annotated[list[str], Meta(min_length=1, max_length=100)]
    secret: Annotated[str, Meta(min_length=8, max_length=255)] | None = None
    active: bool = True
    filter: EventFilterBody | None = None
    metadata: dict[str, Json] = {}


class SubscriptionPatchBody(Struct):
    """What is to be changed of a subscription."""

    url: Annotated[str, Meta(max_length=2000)] | UnsetType = UNSET
    events: Annotated[list[str], Meta(min_length=1, max_length=100)] | UnsetType = UNSET
    active: bool | UnsetType = UNSET
    filter: EventFilterBody | UnsetType | None = UNSET
    metadata: dict[str, Json] | UnsetType = UNSET


class RateBody(Struct):
    """So many starts in a period, an ISO 8601 duration."""

    limit: Annotated[int, Meta(ge=1)]
    period: str


class RateLimitBody(Struct):
    """How many of the jobs with a key may run or start; ``max_per_second`` is about the job's whole queue."""

    key: str | None = None
    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None
    on_limit: Literal["wait", "reschedule", "drop"] = "wait"
    max_per_second: Annotated[int, Meta(ge=1)] | None = None


class RateLimitOverrideBody(Struct):
    """Limits that take the place of those of a key for a time."""

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None
    expires_at: str | None = None


class OptionsBody(Struct):
    """How a job is to be treated. Options may also stand at the top of the request."""

    queue: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9\-.]*$", max_length=128)] = "default"
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    timeout_ms: Milliseconds | None = None
    visibility_timeout_ms: Milliseconds | None = None
    scheduled_at: (
        Annotated[str, Meta(description="RFC 3339 with a zone, or a duration from now such as '+PT5S'")] | None
    ) = None
    delay_until: str | None = None
    expires_at: str | None = None
    retry: RetryPolicyBody | None = None
    unique: UniquePolicyBody | None = None
    tags: list[str] = []
    pending: bool = False
    rate_limit: RateLimitBody | None = None


class EnqueueBody(Struct):
    """A job to be enqueued. Attributes that are not known are kept, and come back with the job."""

    type: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_\-]*(\.[a-z][a-z0-9_\-]*)*$", max_length=255)]
    args: list[Json]
    id: Annotated[str, Meta(description="a UUIDv7; made by the server if it is left out")] | None = None
    meta: dict[str, Json] = {}
    schema: str | None = None
    options: OptionsBody | None = None


Atomicity = Literal["atomic", "partial"]


class BatchBody(Struct):
    """Jobs to be enqueued together."""

    jobs: list[Raw]
    mode: Atomicity | None = None
    idempotency_key: str | None = None


class BatchSchema(Struct):
    """Jobs to be enqueued together: without ``mode`` all of them, or none."""

    jobs: Annotated[list[EnqueueBody], Meta(min_length=1)]
    mode: Atomicity | None = None
    idempotency_key: str | None = None


class BulkBody(Struct):
    """Jobs to be enqueued together, each by itself, or (``atomic``) all or none."""

    jobs: list[Raw]
    atomicity: Atomicity = "partial"
    idempotency_key: str | None = None


class BulkSchema(Struct):
    """Jobs to be enqueued together, each by itself, or (``atomic``) all or none."""

    jobs: Annotated[list[EnqueueBody], Meta(min_length=1)]
    atomicity: Atomicity = "partial"
    idempotency_key: str | None = None


class BulkSteeringBody(Struct):
    """Which jobs something is done to: those of ``job_ids``, or all that ``filter`` matches."""

    job_ids: list[str] | None = None
    filter: dict[str, Json] | None = None
    mode: Atomicity | None = None
    atomicity: Atomicity | None = None
    idempotency_key: str | None = None


SharingStrategy = Literal["strict", "round-robin", "weighted", "least-loaded"]
Weight = Annotated[int, Meta(ge=1, le=1_000_000)]


class FetchBody(Struct):
    """A worker's request for jobs."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=1000)]
    count: Annotated[int, Meta(ge=1)] = 1
    worker_id: Identifier | None = None
    visibility_timeout_ms: Milliseconds | None = None
    capabilities: dict[str, Json] | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="how long to wait if there is no job")] = 0
    strategy: SharingStrategy | None = None
    weights: Annotated[dict[str, Weight], Meta(max_length=100)] = {}


class ChangesBody(Struct):
    """What is to become of the properties of a workflow: all of it, or nothing.

    ``expected`` are the versions that they must have, by name; 0: it must not be there.
    """

    set: dict[str, Raw] = {}
    delete: list[str] = []
    expected: dict[str, Count] = {}


class PropertiesBody(ChangesBody):
    """A change of a workflow's properties; with ``job_id``, for one of its jobs, whose lease must be held."""

    job_id: str | None = None
    worker_id: Identifier | None = None
    attempt: Count | None = None


class AckJobBody(Struct):
    """A worker's word that the job in the path is done."""

    result: Raw | UnsetType = UNSET
    worker_id: Identifier | None = None
    attempt: Count | None = None
    append: Annotated[list[Raw], Meta(description="steps that the job adds to its workflow")] = []
    properties: ChangesBody | None = None
    result_file: Annotated[str, Meta(description="the id of the file that is the result, instead of it")] | None = None


class AckBody(AckJobBody, kw_only=True):
    """A worker's word that a job is done."""

    job_id: str


class AckBatchBody(Struct):
    """Several acknowledgements; each is accepted or refused by itself."""

    acks: Annotated[list[AckBody], Meta(max_length=1000)]


class NackJobBody(Struct):
    """A worker's word that the job in the path failed, or (``requeue``) that it hands it back."""

    error: dict[str, Json] | None = None
    requeue: bool = False
    delay_ms: Milliseconds = 0
    worker_id: Identifier | None = None
    attempt: Count | None = None
    properties: ChangesBody | None = None


class NackBody(NackJobBody, kw_only=True):
    """A worker's word that a job failed, or (``requeue``) that it hands it back, which spends no attempt."""

    job_id: str


class ReleaseJobBody(Struct):
    """A worker's word that it lets go of the job in the path; see ``ReleaseBody``."""

    then: Literal["queue", "wait", "retry", "skip"] = "queue"
    delay_ms: Milliseconds = 0
    not_before: Timestamp | None = None
    again: bool = False
    deadline: Timestamp | None = None
    wait_ms: Milliseconds | None = None
    result: Raw | UnsetType = UNSET
    properties: ChangesBody | None = None
    worker_id: Identifier | None = None
    attempt: Count | None = None


class ReleaseBody(ReleaseJobBody, kw_only=True):
    """A worker's word that it lets go of a job that has neither succeeded nor failed.

    ``then`` says what becomes of it. ``queue``: it runs again, after ``delay_ms`` or ``not_before``, and the attempt
    does not count. ``wait``: it waits until somebody resumes it; by ``deadline`` or ``wait_ms`` the attempt fails.
    With ``again`` it then runs again, else it is done. ``retry``: its workflow is run again, as a new one. ``skip``: it
    is done, with ``result``, and what its workflow has not started is skipped.
    """

    job_id: str


class ReleaseBatchBody(Struct):
    """Several jobs that are let go; each is accepted or refused by itself."""

    releases: Annotated[list[ReleaseBody], Meta(max_length=1000)]


class ResumeBody(Struct):
    """What a job waits for that is resumed: ``result``, any JSON value, or ``error``, why that will not come.

    ``step`` is the path of the step that is meant, where several of a workflow wait.
    """

    result: Raw | UnsetType = UNSET
    error: str | dict[str, Json] | None = None
    step: str | None = None


class NoteBody(Struct):
    """What is to be noted: any JSON value."""

    note: Raw


class NackBatchBody(Struct):
    """Several failures; each is accepted or refused by itself."""

    nacks: Annotated[list[NackBody], Meta(max_length=1000)]


class ProgressBody(Struct):
    """How far a job is (ojs-progress.md)."""

    progress: Annotated[float, Meta(description="from 0 to 1; what is beyond is taken for the end")]
    message: Annotated[str, Meta(max_length=1000)] | None = None
    worker_id: Identifier | None = None
    attempt: Count | None = None


class CheckpointBody(Struct):
    """What a handler saves of its state: any JSON value."""

    state: Raw
    worker_id: Identifier | None = None
    attempt: Count | None = None


Tokens = Annotated[int, Meta(ge=0, le=10**12)]


class AgentUsageBody(Struct):
    """What an agent's task has used, or, with ``is_estimate``, what a call will use that is about to be made.

    ``estimated`` is what was charged for the same before, as an estimate.
    """

    tokens: Tokens = 0
    estimated: Tokens = 0
    is_estimate: bool = False
    model: Identifier | None = None
    tool_result: dict[str, Json] | None = None
    worker_id: Identifier | None = None
    attempt: Count | None = None


class WorkflowBody(Struct):
    """A workflow. A step is a job with members of its own, or a workflow again; docs/workflows.md describes them."""

    type: Literal["chain", "group", "batch", "saga", "graph", "map"] | UnsetType = UNSET
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
    """A definition of workflows: what a workflow says, without ``params``, times and the like."""

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
    """What somebody says of a step that waits for an approval. One of ``action`` and ``notes`` must be given."""

    action: Literal["approve", "reject"] | None = None
    notes: Annotated[str, Meta(max_length=65_536)] | None = None
    author: Annotated[str, Meta(max_length=255)] | None = None


class HandlerBody(Struct):
    """Which versions of a job type a worker can handle: ``2.0``, ``>=1.0 <3.0``, or ``*`` for any."""

    type: str
    versions: str = "*"


class HeartbeatBody(Struct):
    """What a worker says of itself. ``active_jobs`` may be the jobs' ids, or their number beside ``active_job_ids``."""

    worker_id: Identifier
    active_jobs: list[str] | int = []
    active_job_ids: list[str] = []
    visibility_timeout_ms: Milliseconds | None = None
    state: Literal["running", "quiet", "drain", "draining", "shutting_down", "terminate"] = "running"
    hostname: str | None = None
    pid: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    queues: list[str] = []
    labels: list[str] = []
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    pool: Identifier | None = None
    handlers: list[HandlerBody] = []
    capabilities: dict[str, Json] = {}


class DeadLetterOverrideBody(Struct):
    """What is to be changed of a dead letter before it runs again; ``meta`` and ``retry`` by member."""

    args: list[Json] | None = None
    queue: str | None = None
    meta: dict[str, Json] | None = None
    retry: dict[str, Json] | None = None


class DeadLetterRetryBody(Struct):
    """How a dead letter is to run again."""

    override: DeadLetterOverrideBody | None = None


class DirectiveBody(Struct):
    """What a worker is to do."""

    directive: Literal["running", "quiet", "terminate"]


class JobTemplateBody(Struct):
    """The jobs that a cron job makes."""

    type: str
    args: list[Raw] = []
    meta: dict[str, Raw] = {}
    options: dict[str, Raw] = {}


class CronBody(Struct):
    """A cron job. The schedule is ``expression`` or ``cron``; the job is ``job_template``, or stands beside it."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9\-.]*$", max_length=255)]
    expression: str | None = None
    cron: str | None = None
    timezone: str = "UTC"
    overlap_policy: Literal["skip", "allow", "cancel_previous", "enqueue"] = "skip"
    enabled: bool = True
    description: str | None = None
    job_template: JobTemplateBody | None = None
    type: str | None = None
    args: list[Raw] = []
    meta: dict[str, Raw] = {}
    options: dict[str, Raw] = {}


class QueueWeightBody(Struct):
    """How much of the workers of a pool a queue gets, beside the others."""

    weight: Weight = 1


class StarvationPreventionBody(Struct):
    """How it is prevented that a queue gets nothing (ojs-fair-scheduling.md section 8)."""

    enabled: bool = False
    rotation_interval: str = "PT30S"
    min_dispatch_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.05


TenantWeight = Annotated[float, Meta(gt=0, le=1_000_000)]


class PoolBody(Struct):
    """Workers that share queues, and how these share them (ojs-fair-scheduling.md section 6)."""

    queues: (
        Annotated[list[str], Meta(min_length=1, max_length=100)]
        | Annotated[dict[str, QueueWeightBody], Meta(min_length=1, max_length=100)]
    )
    name: str | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    strategy: SharingStrategy = "round-robin"
    weights: dict[str, Weight] = {}
    isolated: bool = False
    starvation_prevention: StarvationPreventionBody | None = None


class TenantLimitsBody(Struct):
    """What a tenant may have at a time, in all queues together (ojs-multi-tenancy.md section 8.1)."""

    max_concurrency: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_enqueue_rate: dict[str, Any] | UnsetType | None = UNSET
    max_queue_depth: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_scheduled: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    fairness_weight: TenantWeight | UnsetType = UNSET
    reason: str | None = None


class TenantBody(Struct):
    """What a tenant may do, and its share (ojs-multi-tenancy.md section 8.1)."""

    tenant_id: str | None = None
    limits: TenantLimitsBody = msgspec.field(default_factory=TenantLimitsBody)
    fairness_weight: TenantWeight = 1.0
    priority_boost: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    quota: Literal["hard", "soft"] = "hard"
    public: bool = False
    expiration_delay: str | None = None


class WorkerRuleBody(Struct, forbid_unknown_fields=True):
    """What operators say of a worker; what is left out stays. ``provides`` is added to, ``null`` says it has none."""

    enabled: bool | UnsetType = UNSET
    provides: dict[str, str | int | float | bool | None] | UnsetType = UNSET
    allowed_types: list[str] | UnsetType | None = UNSET
    denied_types: list[str] | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=1_000)] | UnsetType | None = UNSET


class CollectionBody(Struct, forbid_unknown_fields=True):
    """A named collection."""

    name: str
    description: Annotated[str, Meta(max_length=10_000)] | None = None


class ItemBody(Struct, forbid_unknown_fields=True):
    """Something that is put into a collection; ``replace``: in the place of what has the same name."""

    name: str
    data: Raw | UnsetType = UNSET
    category: Annotated[str, Meta(max_length=255)] | None = None
    replace: bool = False
    file: Annotated[str, Meta(description="the id of the file that makes it an artifact")] | None = None
    filename: Annotated[str, Meta(description="how that is called here")] | None = None
    content_type: Annotated[str, Meta(description="and what it is")] | None = None


class FileBody(Struct, forbid_unknown_fields=True):
    """A file that is to be uploaded; ``size`` in bytes."""

    size: Annotated[int, Meta(ge=0)] | None = None
    sha256: str | None = None
    content_type: str = OCTETS
    filename: str | None = None
    job_id: Annotated[str, Meta(description="the job whose it is")] | None = None


class ChannelBody(Struct, forbid_unknown_fields=True):
    """A way to tell somebody something: ``email`` (``from``, ``to``) or ``webhook`` (``url``)."""

    method: Literal["email", "webhook"]
    sender: str | None = msgspec.field(default=None, name="from")
    to: list[str] = []
    cc: list[str] = []
    subject: str | None = None
    url: str | None = None
    secret: Annotated[str, Meta(min_length=16, max_length=256)] | None = None


class AdjustmentBody(Struct, forbid_unknown_fields=True):
    """By how much the priority of a job is to differ from the one with which it was pushed."""

    priority_adjustment: Annotated[int, Meta(ge=-200, le=200)]


class PruneBody(Struct, forbid_unknown_fields=True):
    """Whether it is only counted what would be deleted."""

    dry_run: bool = False


class GrantBody(Struct, forbid_unknown_fields=True):
    """A role in a workspace and those inside it; ``*``: everywhere."""

    role: Literal["viewer", "producer", "worker", "contributor", "owner"]
    tenant: str = "*"


class TokenBody(Struct, forbid_unknown_fields=True):
    """A token: who it is for, what they may do, for which queues, and until when (``+P30D`` is a span from now)."""

    name: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]*$")]
    grants: Annotated[list[GrantBody], Meta(min_length=1, max_length=100)]
    queues: Annotated[list[Identifier], Meta(max_length=100)] = []
    expires_at: str | None = None


class TokenRotationBody(Struct, forbid_unknown_fields=True):
    """For how long, as an ISO 8601 duration, the former secret is good yet; by default a day."""

    grace: str | None = None


class BackpressureBody(Struct):
    """How many jobs may wait in a queue, and what becomes of one too many; 0: any number."""

    max_depth: Count = 0
    max_size_bytes: Count = 0
    strategy: Literal["reject", "block", "drop_oldest"] = "reject"
    warning_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.8


class DeadLetterRetentionBody(Struct):
    """How long, as an ISO 8601 duration, and how many dead letters are kept."""

    max_age: str | UnsetType | None = UNSET
    max_count: Count | UnsetType | None = UNSET


class DeadLetterConfigBody(Struct):
    """What is kept of a queue's dead letters."""

    retention: DeadLetterRetentionBody


class QueueConfigBody(Struct, forbid_unknown_fields=True):
    """What is to be set for a queue; what is left out stays as it is, and ``null`` takes it away."""

    concurrency: Count | UnsetType | None = UNSET
    rate_limit: dict[str, Json] | UnsetType | None = UNSET
    throttle: dict[str, Json] | UnsetType | None = UNSET
    retention: dict[str, str | None] | UnsetType | None = UNSET
    dead_letter: DeadLetterConfigBody | UnsetType | None = UNSET
    backpressure: BackpressureBody | UnsetType | None = UNSET
    ml_defaults: dict[str, Json] | UnsetType | None = UNSET
    """Attributes ``ext_ml_*`` of jobs that do not have them."""
    ml_limits: ResourceLimits | UnsetType | None = UNSET


class QueueLimitBody(Struct, forbid_unknown_fields=True):
    """How many jobs of a queue may run and start; what is left out is not limited."""

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None


class PurgeBody(Struct):
    """Which finished jobs are deleted; ``confirm`` must be true."""

    states: list[str] = []
    older_than: str | None = None
    confirm: bool = False


class ConfirmedFilterBody(Struct):
    """Which jobs something is done to; ``confirm`` must be true."""

    filter: dict[str, Json] | None = None
    confirm: bool = False


class DeadLettersBody(Struct):
    """Which dead letters something is done to; ``confirm`` must be true."""

    filter: dict[str, Json] | None = None
    older_than: str | None = None
    confirm: bool = False


class MaintenanceBody(Struct):
    """Whether the system is to stand still, why, and for about how long (ISO 8601)."""

    enabled: bool
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    estimated_duration: str | None = None


class CronPatchBody(Struct):
    """Enables or disables a cron job."""

    enabled: bool


# Answers, as far as they are not put together by hand


class ErrorBody(Struct):
    """Why a request was refused (ojs-http-binding.md section 16)."""

    code: str
    message: str
    retryable: bool
    request_id: str
    details: dict[str, Json] | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    docs_url: str | UnsetType = UNSET


class ErrorAnswer(Struct):
    """The body of every error."""

    error: ErrorBody


class JobBody(Struct):
    """A job, with its attributes of ojs-core.md section 5 and those that its sender added."""

    specversion: str
    id: str
    type: str
    queue: str
    args: list[Json]
    meta: dict[str, Json]
    state: Literal["scheduled", "available", "pending", "active", "completed", "retryable", "cancelled", "discarded"]
    priority: int
    attempt: Count
    max_attempts: Count
    created_at: Timestamp
    enqueued_at: Timestamp | UnsetType = UNSET
    started_at: Timestamp | UnsetType = UNSET
    completed_at: Timestamp | UnsetType = UNSET
    cancelled_at: Timestamp | UnsetType = UNSET
    discarded_at: Timestamp | UnsetType = UNSET
    next_attempt_at: Timestamp | UnsetType = UNSET
    error: dict[str, Json] | UnsetType = UNSET
    errors: list[dict[str, Json]] | UnsetType = UNSET
    result: Json | UnsetType = UNSET


class WorkflowAnswer(Struct):
    """One workflow."""

    workflow: WorkflowInfo


class JobAnswer(Struct):
    """One job."""

    job: JobBody


class JobsAnswer(Struct):
    """Several jobs."""

    jobs: list[JobBody]


class PaginationBody(Struct):
    """Where a page stands in a list (ojs-http-binding.md section 17)."""

    total: Count
    limit: Count
    offset: Count
    has_more: bool
    next_cursor: str | UnsetType = UNSET


class JobPageAnswer(Struct):
    """A page of jobs."""

    jobs: list[JobBody]
    pagination: PaginationBody


FETCH: Final = msgspec.json.Decoder(FetchBody)
ACK: Final = msgspec.json.Decoder(AckBody)
ACK_JOB: Final = msgspec.json.Decoder(AckJobBody)
ACK_BATCH: Final = msgspec.json.Decoder(AckBatchBody)
NACK: Final = msgspec.json.Decoder(NackBody)
NACK_JOB: Final = msgspec.json.Decoder(NackJobBody)
NACK_BATCH: Final = msgspec.json.Decoder(NackBatchBody)
RELEASE: Final = msgspec.json.Decoder(ReleaseBody)
RELEASE_JOB: Final = msgspec.json.Decoder(ReleaseJobBody)
RELEASE_BATCH: Final = msgspec.json.Decoder(ReleaseBatchBody)
RESUME: Final = msgspec.json.Decoder(ResumeBody)
NOTE: Final = msgspec.json.Decoder(NoteBody)
PROPERTIES: Final = msgspec.json.Decoder(PropertiesBody)
AGENT_USAGE: Final = msgspec.json.Decoder(AgentUsageBody)
CHECKPOINT: Final = msgspec.json.Decoder(CheckpointBody)
PROGRESS: Final = msgspec.json.Decoder(ProgressBody)
REVIEW: Final = msgspec.json.Decoder(ReviewBody)
HEARTBEAT: Final = msgspec.json.Decoder(HeartbeatBody)
DEAD_LETTER_RETRY: Final = msgspec.json.Decoder(DeadLetterRetryBody)
DIRECTIVE: Final = msgspec.json.Decoder(DirectiveBody)
BATCH: Final = msgspec.json.Decoder(BatchBody)
BULK: Final = msgspec.json.Decoder(BulkBody)
BULK_STEERING: Final = msgspec.json.Decoder(BulkSteeringBody)
SUBSCRIPTION: Final = msgspec.json.Decoder(SubscriptionBody)
SUBSCRIPTION_PATCH: Final = msgspec.json.Decoder(SubscriptionPatchBody)
SCHEMA: Final = msgspec.json.Decoder(SchemaBody)
RATE_LIMIT_OVERRIDE: Final = msgspec.json.Decoder(RateLimitOverrideBody)
CRON: Final = msgspec.json.Decoder(CronBody)
QUEUE_CONFIG: Final = msgspec.json.Decoder(QueueConfigBody)
POOL: Final = msgspec.json.Decoder(PoolBody)
WORKER_RULE: Final = msgspec.json.Decoder(WorkerRuleBody)
COLLECTION: Final = msgspec.json.Decoder(CollectionBody)
ITEM: Final = msgspec.json.Decoder(ItemBody)
FILE: Final = msgspec.json.Decoder(FileBody)
CHANNEL: Final = msgspec.json.Decoder(ChannelBody)
ADJUSTMENT: Final = msgspec.json.Decoder(AdjustmentBody)
PRUNE: Final = msgspec.json.Decoder(PruneBody)
TOKEN: Final = msgspec.json.Decoder(TokenBody)
TOKEN_ROTATION: Final = msgspec.json.Decoder(TokenRotationBody)
TENANT: Final = msgspec.json.Decoder(TenantBody)
TENANT_LIMITS: Final = msgspec.json.Decoder(TenantLimitsBody)
QUEUE_LIMIT: Final = msgspec.json.Decoder(QueueLimitBody)
PURGE: Final = msgspec.json.Decoder(PurgeBody)
CONFIRMED_FILTER: Final = msgspec.json.Decoder(ConfirmedFilterBody)
DEAD_LETTERS: Final = msgspec.json.Decoder(DeadLettersBody)
MAINTENANCE: Final = msgspec.json.Decoder(MaintenanceBody)
CRON_PATCH: Final = msgspec.json.Decoder(CronPatchBody)
