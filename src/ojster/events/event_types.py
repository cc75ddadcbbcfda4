"""The types of events: those that happen here, and those that the specification names.

Spec: ojs-events 3, ojs-webhooks 5.2
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ojster.core.errors import InvalidRequest
from ojster.core.parsing import matches_any, meant_by
from ojster.jobs.names import check_queue_name, check_type, is_internal

EVENT_TYPES: Final = frozenset(
    {
        "backpressure.dropped",
        "backpressure.rejected",
        "backpressure.warning",
        "batch.cancelled",
        "batch.deleted",
        "batch.enqueued",
        "batch.retried",
        "bulk.cancel.completed",
        "bulk.delete.completed",
        "bulk.enqueue.completed",
        "bulk.retry.completed",
        "collection.created",
        "collection.deleted",
        "cron.skipped",
        "cron.triggered",
        "dead_letter.added",
        "dead_letter.deleted",
        "dead_letter.pruned",
        "dead_letter.retried",
        "definition.created",
        "definition.deleted",
        "definition.updated",
        "job.adjusted",
        "job.cancelled",
        "job.checkpointed",
        "job.completed",
        "job.discarded",
        "job.enqueued",
        "job.expired",
        "job.failed",
        "job.heartbeat",
        "job.noted",
        "job.pending",
        "job.progress",
        "job.reaction_failed",
        "job.reminded",
        "job.resumed",
        "job.retrying",
        "job.scheduled",
        "job.skipped",
        "job.stalled",
        "job.started",
        "job.state_changed",
        "job.timeout",
        "job.total_timeout",
        "job.ttl_expired",
        "notification.dead",
        "notification.failed",
        "notification.sent",
        "push.endpoint.changed",
        "push.endpoint.deleted",
        "push.endpoint.disabled",
        "push.endpoint.recovered",
        "push.endpoint.suspended",
        "queue.configured",
        "queue.created",
        "queue.deleted",
        "queue.paused",
        "queue.resumed",
        "rate_limit.dropped",
        "rate_limit.dynamic_adjusted",
        "rate_limit.exceeded",
        "rate_limit.released",
        "scheduling.pool_overloaded",
        "scheduling.queue_starved",
        "scheduling.rebalanced",
        "schema.registered",
        "server.shutdown",
        "system.gap",
        "system.maintenance_ended",
        "system.maintenance_started",
        "tenant.changed",
        "tenant.created",
        "tenant.deleted",
        "tenant.limit_exceeded",
        "token.created",
        "token.revoked",
        "token.rotated",
        "webhook.dead",
        "webhook.delivered",
        "webhook.failed",
        "webhook.subscription.created",
        "webhook.subscription.deleted",
        "webhook.test",
        "worker.disabled",
        "worker.enabled",
        "worker.quiet",
        "worker.started",
        "worker.stopped",
        "workflow.callback_fired",
        "workflow.cancelled",
        "workflow.completed",
        "workflow.created",
        "workflow.failed",
        "workflow.held",
        "workflow.job_completed",
        "workflow.job_failed",
        "workflow.pinned",
        "workflow.released",
        "workflow.retried",
        "workflow.started",
        "workflow.step_blocked",
        "workflow.step_completed",
        "workflow.step_failed",
        "workflow.step_retried",
    }
)
"""Types of the events that webhooks, streams and the event log have."""

_SPECIFIED: Final = frozenset(
    {
        "backpressure.cleared",
        "dead_letter.replayed",
        "job.attempt_completed",
        "job.attempt_failed",
        "job.attempt_started",
        "job.checkpoint_saved",
        "job.created",
        "job.dead",
        "job.dead_lettered",
        "job.purged",
        "job.retry_exhausted",
        "priority.changed",
        "progress.completed",
        "progress.stalled",
        "progress.updated",
        "queue.config_updated",
        "queue.full",
        "queue.overflow",
        "result.pruned",
        "result.rejected",
        "result.retrieved",
        "result.stored",
        "system.events_dropped",
        "tenant.throttle_released",
        "tenant.throttled",
        "worker.heartbeat",
    }
)
"""Types of events of the specification that no server of this version sends: a subscription may name them."""

_KNOWN: Final = EVENT_TYPES | _SPECIFIED
_KNOWN_OR_PREFIX: Final = _KNOWN.union(
    {"*"}, (f"{type[:place]}.*" for type in _KNOWN for place, character in enumerate(type) if character == ".")
)


_OTHER_JOB_EVENTS: Final = frozenset(
    {"backpressure.dropped", "dead_letter.added", "dead_letter.deleted", "dead_letter.retried", "rate_limit.dropped"}
)
_JOB_EVENTS: Final = _OTHER_JOB_EVENTS.union(type for type in EVENT_TYPES if type.startswith("job."))
_QUEUE_EVENTS: Final = _JOB_EVENTS.union(
    {"backpressure.rejected", "backpressure.warning", "dead_letter.pruned", "scheduling.queue_starved"},
    (type for type in EVENT_TYPES if type.startswith("queue.")),
)


_OF_EACH_STREAM: Final = frozenset({"server.shutdown", "system.gap"})
"""Types of events that all streams have, whatever they follow."""


def check_filter(
    types: Collection[str], queues: Collection[str], job_types: Collection[str], *, prefix: str = ""
) -> None:
    """Refuse a filter by queues or job types that lets no event of a type pass, or names what can be none.

    Parameters
    ----------
    types:
        Types of events, ``*`` and prefixes among them.
    queues, job_types:
        The members of the filter; empty: all.
    prefix:
        What precedes the names of these members in the request.

    Raises
    ------
    InvalidRequest
        Events of a type have no queue, or no job type; or a name is malformed, such as ``shop.*``.
    """
    for queue in queues:
        check_queue_name(queue)
    for job_type in job_types:
        check_type(job_type)
    for what, member, chosen, passing in (
        ("queue", "queues", queues, _QUEUE_EVENTS),
        ("job type", "job_types", job_types, _JOB_EVENTS),
    ):
        if chosen and not any(map(is_internal, queues)) and (type := _first_outside(types, passing)) is not None:
            raise InvalidRequest(
                f"Events of the type {type!r} have no {what}, so '{prefix}{member}' lets none of them pass. "
                "Ask for them without it.",
                field=f"{prefix}{member}",
            )


def check_types_of_queue(types: Collection[str], queue: str, field: str) -> None:
    """Refuse types of events that the stream of a queue never has.

    Parameters
    ----------
    types:
        Types of events, ``*`` and prefixes among them.
    field:
        The member of the request that names them.

    Raises
    ------
    InvalidRequest
        Events of a type have no queue.
    """
    if not is_internal(queue) and (type := _first_outside(types, _QUEUE_EVENTS | _OF_EACH_STREAM)) is not None:
        raise InvalidRequest(
            f"Events of the type {type!r} have no queue, so the stream of a queue never has one. "
            "Follow the stream of all events instead.",
            field=field,
        )


def _first_outside(types: Collection[str], possible: Collection[str]) -> str | None:
    """Return the first of these types that is none of the possible ones, nor one that the specification alone names."""
    known = _SPECIFIED.union(possible)
    return next((type for type in types if not any(matches_any(each, (type,)) for each in known)), None)


def check_event_types(types: Collection[str], field: str, *, may_end_in_star: bool = False) -> None:
    """Refuse types of events that do not exist.

    Parameters
    ----------
    field:
        The member of the request that names them.
    may_end_in_star:
        Whether ``*`` and prefixes such as ``job.*`` are types, too.

    Raises
    ------
    InvalidRequest
        A type does not exist; the error names the one that it looks like.
    """
    known = _KNOWN_OR_PREFIX if may_end_in_star else _KNOWN
    for type in types:
        if type not in known:
            meant = meant_by(type, known)
            advice = (
                f"; did you mean {meant!r}?"
                if meant is not None
                else f". Types begin with {', '.join(sorted({type.partition('.')[0] for type in EVENT_TYPES}))}."
            )
            raise InvalidRequest(f"Unknown event type {type[:60]!r}{advice}", field=field)
