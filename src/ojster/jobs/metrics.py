"""Metrics of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from ojster.core.event_counters import EventCounter
from ojster.core.states import JobState
from ojster.jobs.queries import count_dead_letters

if TYPE_CHECKING:
    from ojster.service import Service

EVENT_COUNTERS: Final = {
    "batch.enqueued": EventCounter("ojs_bulk_enqueue_requests", "Bulk enqueue operations."),
    "batch.cancelled": EventCounter("ojs_bulk_cancel_requests", "Bulk cancel operations."),
    "batch.retried": EventCounter("ojs_bulk_retry_requests", "Bulk retry operations."),
    "batch.deleted": EventCounter("ojs_bulk_delete_requests", "Bulk delete operations."),
    "dead_letter.added": EventCounter("ojs_dead_letter_added", "Jobs that became dead letters.", ("queue", "job_type")),
    "dead_letter.retried": EventCounter("ojs_dead_letter_retried", "Dead letters retried.", ("queue",)),
    "job.progress": EventCounter("ojs_progress_updates", "Progress reports.", ("queue", "job_type")),
}


async def families(service: Service) -> Iterator[Metric]:
    """Return gauges of jobs by queue and state, and of dead letters."""
    counts = await service.jobs.count()
    jobs = GaugeMetricFamily("ojs_jobs", "Jobs by queue and state.", labels=["queue", "state"])
    for queue, states in counts.items():
        for state in JobState:
            jobs.add_metric([queue, state.value], states.get(state.value, 0))
    dead = GaugeMetricFamily("ojs_dead_letters", "Dead letters of a queue.", labels=["queue"])
    for queue, number in (await service.database.read(count_dead_letters, None)).items():
        dead.add_metric([queue], number)
    return iter((jobs, dead))
