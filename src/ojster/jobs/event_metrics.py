"""Metrics that events change: those of jobs."""

from __future__ import annotations

from typing import Final

from ojster.core.event_metrics import DURATION_BUCKETS, QUEUE_AND_TYPE, QUEUE_TIME_BUCKETS, EventMetric

_ENQUEUED: Final = EventMetric("ojs.job.enqueued", "Jobs enqueued.", QUEUE_AND_TYPE, only=("from", None))
_DURATION: Final = EventMetric(
    "ojs.job.duration",
    "Time from the start of the last attempt of a job to its end.",
    (*QUEUE_AND_TYPE, "state"),
    milliseconds="duration_ms",
    buckets=DURATION_BUCKETS,
)
_QUEUE_TIME: Final = EventMetric(
    "ojs.job.queue_time",
    "Time from when a job was enqueued, or due, to its first start.",
    QUEUE_AND_TYPE,
    only=("attempt", 1),
    milliseconds="wait_ms",
    buckets=QUEUE_TIME_BUCKETS,
)

EVENT_METRICS: Final = {
    "job.scheduled": (_ENQUEUED,),
    "job.pending": (_ENQUEUED,),
    "job.enqueued": (_ENQUEUED,),
    "job.started": (_QUEUE_TIME,),
    "job.completed": (EventMetric("ojs.job.completed", "Jobs that completed.", QUEUE_AND_TYPE), _DURATION),
    "job.discarded": (EventMetric("ojs.job.failed", "Jobs that were discarded.", QUEUE_AND_TYPE), _DURATION),
    "job.cancelled": (EventMetric("ojs.job.cancelled", "Jobs that were cancelled.", QUEUE_AND_TYPE), _DURATION),
    "job.expired": (EventMetric("ojs.job.expired", "Jobs that expired.", QUEUE_AND_TYPE),),
    "job.retrying": (EventMetric("ojs.job.retried", "Retries of jobs.", QUEUE_AND_TYPE),),
    "batch.enqueued": (EventMetric("ojs_bulk_enqueue_requests", "Bulk enqueue operations."),),
    "batch.cancelled": (EventMetric("ojs_bulk_cancel_requests", "Bulk cancel operations."),),
    "batch.retried": (EventMetric("ojs_bulk_retry_requests", "Bulk retry operations."),),
    "batch.deleted": (EventMetric("ojs_bulk_delete_requests", "Bulk delete operations."),),
    "dead_letter.added": (
        EventMetric("ojs_dead_letter_added", "Jobs that became dead letters.", ("queue", "job_type")),
    ),
    "dead_letter.retried": (EventMetric("ojs_dead_letter_retried", "Dead letters retried.", ("queue",)),),
    "job.progress": (EventMetric("ojs_progress_updates", "Progress reports.", ("queue", "job_type")),),
}
