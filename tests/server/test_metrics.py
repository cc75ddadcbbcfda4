"""Prometheus metrics of the extensions: event counters, and usage compared with configured limits."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from ojster.core.events import Event
from ojster.server.gauges import GAUGES
from ojster.server.metrics import MAX_SERIES, Metrics
from ojster.storage.database import Database
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio


async def seen(http: Http, name: str) -> list[str]:
    text = (await http("GET", "/metrics")).text
    return [line for line in text.splitlines() if line.startswith(name) and "_created" not in line]


async def test_it_is_counted_what_happens_once_it_is_committed(http: Http, bench: Bench) -> None:
    await http("PUT", "/ojs/v1/admin/queues/full/config", {"backpressure": {"max_depth": 2}})
    for status in (201, 201, 429, 429):
        body = {"type": "a", "args": [], "options": {"queue": "full"}}
        assert (await http("POST", "/ojs/v1/jobs", body)).status_code == status
    assert await seen(http, "ojs_backpressure_rejected_total") == ['ojs_backpressure_rejected_total{queue="full"} 2.0']
    assert await seen(http, "ojs_backpressure_pressure") == ['ojs_backpressure_pressure{queue="full"} 1.0']


async def test_dead_letters_progress_and_sweeps_are_counted(http: Http, bench: Bench) -> None:
    await bench.push("report.build", retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    assert await seen(http, "ojs_dead_letters{") == ['ojs_dead_letters{queue="default"} 0.0']
    job = await bench.fetch_one()
    await http("PUT", f"/ojs/v1/jobs/{job.id}/progress", {"progress": 0.5})
    await bench.fail(job)
    labels = '{job_type="report.build",queue="default"} 1.0'
    assert await seen(http, "ojs_progress_updates_total") == [f"ojs_progress_updates_total{labels}"]
    assert await seen(http, "ojs_dead_letter_added_total") == [f"ojs_dead_letter_added_total{labels}"]
    assert await seen(http, "ojs_dead_letters{") == ['ojs_dead_letters{queue="default"} 1.0']
    await bench.push()
    await http("POST", "/ojs/v1/jobs/batch/cancel", {"filter": {"queue": "default"}})
    assert await seen(http, "ojs_bulk_cancel_requests_total") == ["ojs_bulk_cancel_requests_total 1.0"]


async def test_jobs_are_counted_and_timed_by_queue_and_type(http: Http, bench: Bench) -> None:
    await bench.push("done", args=[1])
    await bench.push("lost", retry={"max_attempts": 1})
    await bench.push("lost", retry={"max_attempts": 2})
    await bench.push("later", scheduled_at="2100-01-01T00:00:00Z")
    bench.clock.advance(2)
    for _ in range(3):
        job = await bench.fetch_one()
        bench.clock.advance(0.25)
        await (bench.ack(job) if job.type == "done" else bench.fail(job))
    assert await seen(http, "ojs_job_enqueued_total") == [
        'ojs_job_enqueued_total{queue="default",type="done"} 1.0',
        'ojs_job_enqueued_total{queue="default",type="lost"} 2.0',
        'ojs_job_enqueued_total{queue="default",type="later"} 1.0',
    ]
    for name, type in (("completed", "done"), ("failed", "lost"), ("retried", "lost")):
        line = f'ojs_job_{name}_total{{queue="default",type="{type}"}} 1.0'
        assert await seen(http, f"ojs_job_{name}_total") == [line]
    assert await seen(http, "ojs_job_duration_seconds_sum") == [
        'ojs_job_duration_seconds_sum{queue="default",state="completed",type="done"} 0.25',
        'ojs_job_duration_seconds_sum{queue="default",state="discarded",type="lost"} 0.25',
    ]
    assert await seen(http, "ojs_job_queue_time_seconds_sum") == [
        'ojs_job_queue_time_seconds_sum{queue="default",type="done"} 2.0',
        'ojs_job_queue_time_seconds_sum{queue="default",type="lost"} 4.75',
    ]


async def test_queues_say_whether_they_are_paused_and_what_was_done_in_the_last_hour(http: Http, bench: Bench) -> None:
    for queue in ("mail", "mail", "reports"):
        await bench.push(queue=queue, retry={"max_attempts": 1})
    await bench.fail(await bench.fetch_one("mail"))
    await bench.ack(await bench.fetch_one("mail"))
    await http("POST", "/ojs/v1/queues/reports/pause")
    assert await seen(http, "ojs_queue_paused") == [
        'ojs_queue_paused{queue="mail"} 0.0',
        'ojs_queue_paused{queue="reports"} 1.0',
    ]
    assert await seen(http, "ojs_queue_last_hour") == [
        'ojs_queue_last_hour{queue="mail",what="enqueued"} 2.0',
        'ojs_queue_last_hour{queue="mail",what="completed"} 1.0',
        'ojs_queue_last_hour{queue="mail",what="failed"} 1.0',
        'ojs_queue_last_hour{queue="reports",what="enqueued"} 1.0',
        'ojs_queue_last_hour{queue="reports",what="completed"} 0.0',
        'ojs_queue_last_hour{queue="reports",what="failed"} 0.0',
    ]


async def test_the_gauges_of_many_queues_take_no_more_calls_than_those_of_one(bench: Bench) -> None:
    calls = []
    for queue in ("a", "b", "c", "d"):
        await bench.push(queue=queue)
        with patch.object(Database, "read", autospec=True, side_effect=Database.read) as read:
            for gauges in GAUGES.values():
                list(await gauges(bench.service))
        calls.append(read.call_count)
    assert calls == calls[:1] * 4


async def test_pools_and_subscriptions_stand_beside_their_bounds(http: Http, bench: Bench) -> None:
    await http("PUT", "/ojs/v1/admin/pools/mail", {"queues": ["default"], "concurrency": 4})
    await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "pool": "mail"})
    await bench.push()
    await bench.fetch_one(worker_id="w")
    assert await seen(http, "ojs_scheduling_pool") == ['ojs_scheduling_pool_utilization{pool="mail"} 0.25']
    assert await seen(http, "ojs_webhook_subscriptions") == ["ojs_webhook_subscriptions 0.0"]


def test_the_number_of_series_per_metric_is_bounded() -> None:
    metrics = Metrics()
    for number in range(MAX_SERIES + 5):
        event: Event = ("rate_limit.exceeded", 0, f"key{number}", None, None, {"strategy": "rate"}, "*")
        metrics.count_events([event])
    series = metrics.counts().series["ojs_rate_limit_exceeded"]
    assert len(series) == MAX_SERIES + 1
    (labels, other) = series[-1]
    assert (labels, other.total) == (("_other", "_other"), 5.0)
