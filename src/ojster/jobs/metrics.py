"""Metrics of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from ojster.core.event_metrics import DURATION_BUCKETS, QUEUE_AND_TYPE, QUEUE_TIME_BUCKETS, EventMetric
from ojster.core.states import JobState
from ojster.jobs.queries import count_dead_letters
from ojster.jobs.waiting import count_waits

if TYPE_CHECKING:
    from ojster.service import Service

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


async def families(service: Service) -> Iterator[Metric]:
    """Return gauges of jobs by queue and state, of running jobs, and of dead letters."""
    counts = await service.jobs.count()
    jobs = GaugeMetricFamily("ojs_queue_depth", "Jobs by queue and state.", labels=["queue", "state"])
    busy = GaugeMetricFamily("ojs_workers_busy", "Jobs that run.", labels=["queue"])
    for queue, states in counts.items():
        busy.add_metric([queue], states.get(JobState.ACTIVE, 0))
        for state in JobState:
            jobs.add_metric([queue, state.value], states.get(state.value, 0))
    dead = GaugeMetricFamily("ojs_dead_letters", "Dead letters of a queue.", labels=["queue"])
    for queue, number in (await service.database.read(count_dead_letters, None)).items():
        dead.add_metric([queue], number)
    oldest = GaugeMetricFamily(
        "ojs_queue_oldest_seconds", "Time for which the next job of a queue has been available.", labels=["queue"]
    )
    waiting = tuple(queue for queue, states in counts.items() if states.get(JobState.AVAILABLE, 0))
    for queue, seconds in (await service.database.read(count_waits, waiting)).items():
        oldest.add_metric([queue], seconds)
    return iter((jobs, busy, dead, oldest))
