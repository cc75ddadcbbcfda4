"""The JSON of answers about queues, limits and pools."""

from __future__ import annotations

from typing import Literal, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ojster.core.calls import SinglePage, Whole
from ojster.core.declared_options import described_by
from ojster.core.durations import SECOND, format_duration
from ojster.core.rate_limit import Limits
from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp, parse_optional, parse_timestamp
from ojster.core.wire import (
    Count,
    JobCountsBody,
    Json,
    NumberedPaginationBody,
    PaginationBody,
    ThroughputBody,
    Timestamp,
)
from ojster.fleet.ml_resources import ResourceLimits
from ojster.jobs.rate_limit_wire import RateBody, parse_rate
from ojster.queues.configuration import QueueConfig
from ojster.queues.limit_wire import LimitAnswer
from ojster.queues.queues import Queue, QueueStatistics
from ojster.queues.rules import Bound
from ojster.queues.wire import DeletionStrategy, LimitsBody, QueueConfigBody, show_limits, show_rate

PausedState = Literal["paused", "active"]


class QueueBody(JobCountsBody, kw_only=True):
    """A queue; its statistics also have its numbers of jobs by state.

    Spec: ojs-http-binding 11
    """

    name: str
    status: PausedState
    paused: bool
    created_at: Timestamp
    paused_at: Timestamp | UnsetType = UNSET
    rate_limit: LimitsBody | UnsetType = UNSET


def show_queue(queue: Queue) -> QueueBody:
    """Return the JSON form of a queue."""
    limits: LimitsBody | UnsetType = UNSET
    if queue.limits != Limits():
        limits, rate = show_limits(queue.limits), queue.limits.rate
        limits.max_per_second = rate.limit if rate is not None and rate.period == SECOND else None
    return QueueBody(
        name=queue.name,
        status="active" if queue.paused_at is None else "paused",
        paused=queue.paused_at is not None,
        created_at=format_timestamp(queue.created_at),
        paused_at=UNSET if queue.paused_at is None else format_timestamp(queue.paused_at),
        rate_limit=limits,
    )


def read_queue(shown: QueueBody) -> Queue:
    """Return the queue with this JSON form."""
    limits = Limits()
    if limit_body := shown.rate_limit or None:
        rate, throttle = (
            None if body is None else parse_rate(msgspec.to_builtins(body), "rate_limit")
            for body in (limit_body.rate, limit_body.throttle)
        )
        limits = Limits(limit_body.concurrency, rate, throttle)
    return Queue(
        name=shown.name,
        created_at=parse_timestamp(shown.created_at),
        paused_at=parse_optional(shown.paused_at or None),
        limits=limits,
    )


class QueuesAnswer(Struct):
    """A page of the queues."""

    queues: list[QueueBody]
    pagination: PaginationBody

    @classmethod
    def of(cls, queues: list[Queue], pagination: PaginationBody) -> Self:
        return cls([show_queue(queue) for queue in queues], pagination)

    def value(self) -> list[Queue]:
        return [read_queue(shown) for shown in self.queues]


class QueueAnswer(Struct):
    """A queue that was paused or resumed."""

    queue: QueueBody
    status: PausedState

    @classmethod
    def of(cls, queue: Queue) -> Self:
        shown = show_queue(queue)
        return cls(shown, shown.status)

    def value(self) -> Queue:
        return read_queue(self.queue)


class QueueStatsBody(JobCountsBody, kw_only=True):
    """The jobs of a queue by state, and its work in the last hour."""

    queue: str
    depth: Count
    enqueued_last_hour: Count
    completed_last_hour: Count
    failed_last_hour: Count
    avg_duration_ms: Count
    avg_wait_ms: Count
    throughput_per_second: float


class QueueStatisticsAnswer(Struct):
    """A queue with its statistics."""

    queue: QueueBody
    status: PausedState
    stats: QueueStatsBody
    computed_at: Timestamp

    def value(self) -> QueueStatistics:
        stats, counts = self.stats, {state.value: getattr(self.queue, state.value) for state in JobState}
        completed, failed = stats.completed_last_hour, stats.failed_last_hour
        return QueueStatistics(
            queue=read_queue(self.queue),
            counts={state: count for state, count in counts.items() if isinstance(count, int)},
            enqueued=stats.enqueued_last_hour,
            completed=completed,
            failed=failed,
            waited=stats.avg_wait_ms * 1000 * (completed + failed),
            ran=stats.avg_duration_ms * 1000 * completed,
        )


def show_statistics(statistics: QueueStatistics, now: int) -> QueueStatisticsAnswer:
    """Return the JSON form of a queue with its statistics."""
    started = statistics.completed + statistics.failed
    queue = show_queue(statistics.queue)
    stats = QueueStatsBody(
        queue=queue.name,
        depth=statistics.counts.get(JobState.AVAILABLE.value, 0),
        enqueued_last_hour=statistics.enqueued,
        completed_last_hour=statistics.completed,
        failed_last_hour=statistics.failed,
        avg_duration_ms=statistics.ran // 1000 // statistics.completed if statistics.completed else 0,
        avg_wait_ms=statistics.waited // 1000 // started if started else 0,
        throughput_per_second=round(started / 3600, 4),
    )
    for state in JobState:
        for body in (queue, stats):
            setattr(body, state.value, statistics.counts.get(state.value, 0))
    return QueueStatisticsAnswer(queue, queue.status, stats, format_timestamp(now))


# Operators


class LatencyBody(Struct):
    """Percentiles of the time that jobs waited in the last hour, in milliseconds."""

    p50: float
    p95: float
    p99: float


class AdminQueueBody(Struct):
    """A queue with its jobs by state, its throughput and its latency.

    Spec: ojs-admin-api 6
    """

    name: str
    state: PausedState
    counts: JobCountsBody
    throughput: ThroughputBody
    latency_ms: LatencyBody
    paused: bool
    paused_at: Timestamp | None
    created_at: Timestamp
    oldest_available_at: Timestamp | None
    """Since when the next job has been available, of 100 tenants at most. Jobs of a lower priority may be older."""
    depth: Count
    """Number of jobs that count towards ``max_depth``."""
    max_depth: Count | None
    limits: LimitsBody
    """The limits of the queue; a missing one is not set."""


class AdminQueuesAnswer(SinglePage[list[AdminQueueBody]]):
    """A page of the queues, for operators."""

    items: list[AdminQueueBody]
    pagination: NumberedPaginationBody


class RetentionBody(Struct, omit_defaults=True):
    """How long finished jobs are kept, as ISO 8601 durations."""

    completed: str | None = None
    cancelled: str | None = None
    discarded: str | None = None


class DeadLetterLimitsBody(Struct, omit_defaults=True):
    """How many dead letters are kept, and how long, as an ISO 8601 duration."""

    max_age: str | None = None
    max_count: Count | None = None


class DeadLetterSettingsBody(Struct):
    """The dead letter settings of a queue."""

    retention: DeadLetterLimitsBody


@described_by(QueueConfigBody)
class QueueConfigurationBody(Struct, omit_defaults=True):
    """The configuration of a queue; a missing member is not set."""

    concurrency: Count | None = None
    rate_limit: RateBody | None = None
    throttle: RateBody | None = None
    retention: RetentionBody | None = None
    dead_letter: DeadLetterSettingsBody | None = None
    backpressure: Bound | None = None
    ml_defaults: dict[str, Json] = {}
    ml_limits: dict[str, Json] = {}
    allowed_job_types: list[str] | None = None


def show_configuration(limits: Limits, config: QueueConfig) -> QueueConfigurationBody:
    """Return the JSON form of the configuration of a queue."""
    kept = config.retention
    completed, cancelled, discarded, dead_letters = (
        None if age is None else format_duration(age)
        for age in (kept.completed, kept.cancelled, kept.discarded, kept.dead_letter)
    )
    retention, dead = RetentionBody(completed, cancelled, discarded), None
    if dead_letters is not None or kept.most_dead_letters is not None:
        dead = DeadLetterSettingsBody(DeadLetterLimitsBody(dead_letters, kept.most_dead_letters))
    return QueueConfigurationBody(
        concurrency=limits.concurrency,
        rate_limit=show_rate(limits.rate),
        throttle=show_rate(limits.throttle),
        retention=None if retention == RetentionBody() else retention,
        dead_letter=dead,
        backpressure=config.backpressure,
        ml_defaults=config.ml_defaults,
        ml_limits=_set_limits(config.ml_limits),
        allowed_job_types=list(config.allowed_job_types) or None,
    )


def _set_limits(limits: ResourceLimits) -> dict[str, Json]:
    return {name: limit for name in limits.__struct_fields__ if (limit := getattr(limits, name)) is not None}


class QueueDetailAnswer(AdminQueueBody, Whole, kw_only=True):
    """A queue with its configuration, and the present use of its limits, for operators."""

    configuration: QueueConfigurationBody
    limit_use: LimitAnswer | None


class SettingChange(Struct):
    """A setting that would change.

    Parameters
    ----------
    setting:
        Its name, with a dot before the name of a member: ``backpressure.max_depth``.
    before, after:
        Its values; ``None``: it is not set.
    effect:
        What that means for the jobs that the queue has now, in words.
    """

    setting: str
    before: Json
    after: Json
    effect: str | None = None


class QueueChangesAnswer(Whole):
    """What a change of the configuration of a queue would change."""

    queue: str
    changes: list[SettingChange]


class QueueCreatedAnswer(Struct):
    """A new queue with its configuration.

    Spec: ojs-queue-config 9.2
    """

    name: str
    state: PausedState
    config: QueueConfigurationBody
    created_at: Timestamp
    queue: QueueBody

    def value(self) -> Queue:
        return read_queue(self.queue)


class QueueDeletedAnswer(Struct):
    """A deleted queue, and the number of its waiting jobs that were discarded or moved.

    Spec: ojs-queue-config 9.4
    """

    queue: str
    strategy: DeletionStrategy
    jobs_affected: Count
    state: Literal["deleted"] = "deleted"
    target_queue: str | UnsetType = UNSET

    def value(self) -> int:
        return self.jobs_affected


class QueuePausedAnswer(Struct):
    """Whether a queue is paused, and since when."""

    name: str
    paused: bool
    paused_at: Timestamp | UnsetType | None = UNSET


class QueueConfigurationAnswer(Whole):
    """The configuration of a queue."""

    queue: str
    configuration: QueueConfigurationBody


class PurgedAnswer(Struct):
    """The number of jobs that were deleted, and of those that could not be."""

    purged_count: Count
    skipped: Count
    states: list[str]
