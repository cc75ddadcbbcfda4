"""Which metrics the events of jobs add to, and by how much.

Spec: ojs-observability 8
"""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.event_metrics import DURATION_BUCKETS, QUEUE_TIME_BUCKETS, EventMetric, EventMetrics
from ojster.jobs.event_metrics import EVENT_METRICS

BOTH = ("q", "t")

MEASURED: list[tuple[str, dict[str, Any], dict[str, tuple[tuple[str, ...], float]]]] = [
    ("job.scheduled", {"from": None}, {"ojs.job.enqueued": (BOTH, 1)}),
    ("job.pending", {"from": None}, {"ojs.job.enqueued": (BOTH, 1)}),
    ("job.enqueued", {"from": None}, {"ojs.job.enqueued": (BOTH, 1)}),
    ("job.enqueued", {"attempt": 1, "from": "active"}, {}),
    ("job.started", {"attempt": 1, "wait_ms": 1_500}, {"ojs.job.queue_time": (BOTH, 1.5)}),
    ("job.started", {"attempt": 2, "wait_ms": 1_500}, {}),
    ("job.started", {}, {}),
    (
        "job.completed",
        {"duration_ms": 250, "to": "completed"},
        {"ojs.job.completed": (BOTH, 1), "ojs.job.duration": ((*BOTH, "completed"), 0.25)},
    ),
    ("job.completed", {}, {"ojs.job.completed": (BOTH, 1)}),
    (
        "job.discarded",
        {"duration_ms": 0, "to": "discarded"},
        {"ojs.job.failed": (BOTH, 1), "ojs.job.duration": ((*BOTH, "discarded"), 0)},
    ),
    ("job.cancelled", {}, {"ojs.job.cancelled": (BOTH, 1)}),
    ("job.expired", {}, {"ojs.job.expired": (BOTH, 1)}),
    ("job.retrying", {}, {"ojs.job.retried": (BOTH, 1)}),
    ("batch.enqueued", {}, {"ojs_bulk_enqueue_requests": ((), 1)}),
    ("batch.cancelled", {}, {"ojs_bulk_cancel_requests": ((), 1)}),
    ("batch.retried", {}, {"ojs_bulk_retry_requests": ((), 1)}),
    ("batch.deleted", {}, {"ojs_bulk_delete_requests": ((), 1)}),
    ("dead_letter.added", {}, {"ojs_dead_letter_added": (BOTH, 1)}),
    ("dead_letter.retried", {}, {"ojs_dead_letter_retried": (("q",), 1)}),
    ("dead_letter.deleted", {}, {}),
    ("job.progress", {}, {"ojs_progress_updates": (BOTH, 1)}),
]


@pytest.mark.parametrize(("type", "data", "expected"), MEASURED, ids=[str(n) for n in range(len(MEASURED))])
def test_each_event_of_a_job_is_measured(
    type: str, data: dict[str, Any], expected: dict[str, tuple[tuple[str, ...], float]]
) -> None:
    found = EventMetrics([EVENT_METRICS]).measure([(type, 0, "j", "q", "t", data, "")])
    assert {metric.name: (labels, value) for metric, labels, (value,) in found} == expected


def test_events_that_are_alike_are_measured_together() -> None:
    data = {"to": "completed", "duration_ms": 20}
    events = [("job.completed", 0, str(number), "q", "t", data, "") for number in range(3)]
    found = EventMetrics([EVENT_METRICS]).measure([*events, ("job.completed", 0, "4", "other", "t", data, "")])
    assert [(metric.name, labels[0], list(values)) for metric, labels, values in found] == [
        ("ojs.job.completed", "q", [3.0]),
        ("ojs.job.duration", "q", [0.02] * 3),
        ("ojs.job.completed", "other", [1.0]),
        ("ojs.job.duration", "other", [0.02]),
    ]


def test_a_metric_has_the_labels_that_it_declares() -> None:
    metric = EventMetric("m", "help", ("queue", "type", "job_type", "state", "key", "reason", "none"))
    event = ("e", 0, "subject", "q", "t", {"to": "active", "reason": "full"}, "")
    ((_, labels, _),) = EventMetrics([{"e": (metric,)}]).measure([event])
    assert labels == ("q", "t", "t", "active", "subject", "full", "")
    empty = ("e", 0, "subject", None, None, {"to": "active"}, "")
    ((_, labels, _),) = EventMetrics([{"e": (metric,)}]).measure([empty])
    assert labels == ("", "", "", "active", "subject", "", "")


def test_a_metric_may_want_a_member_to_have_a_value() -> None:
    metrics = EventMetrics([{"e": (EventMetric("m", "help", only=("reason", None)),)}])
    told: list[dict[str, Any]] = [{"reason": None}, {"reason": "full"}, {}]
    assert [len(list(metrics.measure([("e", 0, "s", None, None, data, "")]))) for data in told] == [1, 0, 0]


def test_a_metric_of_several_events_is_one_metric() -> None:
    names = [metric.name for metric in EventMetrics([EVENT_METRICS]).all()]
    assert len(names) == len(set(names)) == 15


def test_the_buckets_are_those_of_the_specification() -> None:
    assert DURATION_BUCKETS == (
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    )  # fmt: skip
    assert QUEUE_TIME_BUCKETS == (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)
    (duration,) = [one for one in EVENT_METRICS["job.completed"] if one.milliseconds]
    (waited,) = EVENT_METRICS["job.started"]
    assert (duration.buckets, waited.buckets) == (DURATION_BUCKETS, QUEUE_TIME_BUCKETS)
