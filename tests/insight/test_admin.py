"""The admin API: queues, jobs, workers, statistics, dead letters and maintenance mode.

Spec: ojs-admin-api
"""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.timestamps import format_timestamp
from ojster.events import webhooks
from ojster.events.subscription import Subscription
from ojster.fleet.workers import Heartbeat
from ojster.insight import work_of_workers
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Release
from ojster.jobs.scope import accepted
from ojster.schedules.retention import forget
from ojster.storage import memory
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

ADMIN = "/ojs/v1/admin"


async def get(http: Http, path: str) -> Any:
    response = await http("GET", ADMIN + path)
    assert response.status_code == 200, response.text
    return response.json()


async def test_queues_are_shown_with_their_jobs_and_their_pace(http: Http, bench: Bench) -> None:
    for _ in range(3):
        await bench.push(queue="mail")
    bench.clock.advance(0.2)
    done, failed = await bench.fetch("mail", count=2)
    await bench.ack(done)
    await bench.fail(failed)
    await bench.push(queue="other")
    listed = await get(http, "/queues?per_page=1")
    assert listed["pagination"] == {"total": 2, "page": 1, "per_page": 1}
    (mail,) = listed["items"]
    assert (mail["name"], mail["state"], mail["paused"]) == ("mail", "active", False)
    assert {state: jobs for state, jobs in mail["counts"].items() if jobs} == {
        "available": 1,
        "completed": 1,
        "retryable": 1,
    }
    assert mail["throughput"] == {
        "processed_per_minute": 0.4,
        "failed_per_minute": 0.2,
        "enqueued_per_minute": 0.6,
    }
    assert 100 < mail["latency_ms"]["p50"] <= mail["latency_ms"]["p99"] <= 250
    assert (await get(http, "/queues?page=2&per_page=1"))["items"][0]["name"] == "other"
    detail = await get(http, "/queues/mail")
    assert detail["oldest_available_at"] is not None
    assert detail["configuration"] == {}
    assert (await http("GET", f"{ADMIN}/queues/nowhere")).status_code == 404


async def test_a_paused_queue_hands_out_nothing(http: Http) -> None:
    await http.push(options={"queue": "q"})
    paused = (await http("POST", f"{ADMIN}/queues/q/pause")).json()
    assert (paused["paused"], paused["name"]) == (True, "q")
    assert await http.fetch("q") == []
    assert (await get(http, "/queues/q"))["state"] == "paused"
    assert (await http("POST", f"{ADMIN}/queues/q/resume")).json()["paused"] is False
    assert len(await http.fetch("q")) == 1


async def test_what_is_set_for_a_queue_holds_at_once_and_the_rest_stays(http: Http) -> None:
    path = f"{ADMIN}/queues/q/config"
    first = await http("PUT", path, {"concurrency": 1, "rate_limit": {"limit": 9, "period": "PT1H"}})
    assert first.json()["configuration"] == {"concurrency": 1, "rate_limit": {"limit": 9, "period": "PT1H"}}
    await http("PUT", path, {"retention": {"completed": "P14D", "discarded": "P90D"}})
    shown = (await http("PUT", path, {"dead_letter": {"retention": {"max_count": 5}}})).json()["configuration"]
    assert shown["concurrency"] == 1
    assert shown["rate_limit"]["limit"] == 9
    assert shown["retention"] == {"completed": "P14D", "discarded": "P90D"}
    await http("PUT", path, {"retention": {"completed": None}})
    assert shown["dead_letter"] == {"retention": {"max_count": 5}}
    for _ in range(2):
        await http.push(options={"queue": "q"})
    assert len(await http.fetch("q", count=5)) == 1
    await http("PUT", f"{ADMIN}/queues/q/rate-limit", {"concurrency": 2})
    assert len(await http.fetch("q", count=5)) == 1
    await http("PUT", path, {"backpressure": {"max_depth": 7}})
    assert (await get(http, "/queues/q/config"))["configuration"]["backpressure"]["strategy"] == "reject"
    await http("PUT", path, {"backpressure": None, "concurrency": None})
    assert set((await get(http, "/queues/q/config"))["configuration"]) == {"dead_letter", "retention"}


@pytest.mark.parametrize(
    "body",
    [
        {"concurency": 5},
        {"concurrency": -1},
        {"rate_limit": {"limit": 0, "period": "PT1S"}},
        {"rate_limit": {"limit": 1, "period": "soon"}},
        {"retention": {"active": "P1D"}},
        {"retention": {"completed": "a week"}},
        {"backpressure": {"max_depth": 5, "strategy": "explode"}},
        {"backpressure": {"max_depth": 5, "warning_threshold": 2}},
    ],
)
async def test_a_configuration_that_makes_no_sense_is_refused(http: Http, body: dict[str, Any]) -> None:
    assert (await http("PUT", f"{ADMIN}/queues/q/config", body)).status_code == 400
    size = {"backpressure": {"max_depth": 5, "max_size_bytes": 1000}}
    assert (await http("PUT", f"{ADMIN}/queues/q/config", size)).status_code == 422


async def test_finished_jobs_are_kept_as_long_as_their_queue_says(http: Http, bench: Bench) -> None:
    await http("PUT", f"{ADMIN}/queues/short/config", {"retention": {"completed": "PT1H"}})
    await http("PUT", f"{ADMIN}/queues/long/config", {"retention": {"completed": "P30D"}})
    for queue in ("short", "usual", "long"):
        await bench.push(queue=queue)
        await bench.ack(await bench.fetch_one(queue))

    async def left() -> set[str]:
        await bench.run(forget, None)
        await bench.service.maintenance.retain_by_walks()
        return {job.queue for job in (await bench.service.jobs.select()).jobs}

    assert await left() == {"short", "usual", "long"}
    bench.clock.advance(2 * 3600)
    assert await left() == {"usual", "long"}
    bench.clock.advance(24 * 3600)
    assert await left() == {"long"}
    await bench.push(queue="usual")
    await bench.ack(await bench.fetch_one("usual"))
    bench.clock.advance(31 * 24 * 3600)
    assert await left() == set()


async def test_only_so_many_dead_letters_are_kept(http: Http, bench: Bench) -> None:
    await http("PUT", f"{ADMIN}/queues/q/config", {"dead_letter": {"retention": {"max_count": 2}}})
    ids = []
    for _ in range(4):
        await bench.push(queue="q", retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
        ids.append((await bench.fail(await bench.fetch_one("q"))).id)
    await bench.service.maintenance.retain_by_walks()
    listed = await get(http, "/dead-letter")
    assert [one["id"] for one in listed["items"]] == ids[:1:-1]
    assert "dead_letter.pruned" in await bench.events()


async def test_a_purge_requires_confirmation_and_final_states(http: Http, bench: Bench) -> None:
    await bench.push(queue="q")
    await bench.ack(await bench.fetch_one("q"))
    waiting = await bench.push(queue="q")
    path = f"{ADMIN}/queues/q/jobs"
    for body in ({"states": ["completed"]}, {"states": ["completed"], "confirm": False}, {"confirm": True}):
        assert (await http("DELETE", path, body)).status_code == 400
    assert (await http("DELETE", path, {"states": ["available"], "confirm": True})).status_code == 400
    long_ago = {"states": ["completed"], "older_than": "2001-01-01T00:00:00Z", "confirm": True}
    assert (await http("DELETE", path, long_ago)).json()["purged_count"] == 0
    purged = await http("DELETE", path, {"states": ["completed", "discarded"], "confirm": True})
    assert purged.json() == {"purged_count": 1, "skipped": 0, "states": ["completed", "discarded"]}
    assert [job.id for job in (await bench.service.jobs.select()).jobs] == [waiting.id]


async def test_jobs_are_searched_and_sorted(http: Http, bench: Bench) -> None:
    for priority, type in ((1, "a.one"), (5, "a.two"), (3, "b.three")):
        await bench.push(type, priority=priority)
        bench.clock.advance(10)

    async def types(query: str) -> list[str]:
        return [one["type"] for one in (await get(http, f"/jobs?{query}"))["items"]]

    assert await types("") == ["b.three", "a.two", "a.one"]
    assert await types("order=asc") == ["a.one", "a.two", "b.three"]
    assert await types("sort=priority") == ["a.two", "b.three", "a.one"]
    assert await types("type=a.*&order=asc") == ["a.one", "a.two"]
    middle = format_timestamp(bench.clock.now - 25_000_000)
    assert await types(f"since={middle}") == ["b.three", "a.two"]
    assert await types(f"until={middle}") == ["a.one"]
    page = await get(http, "/jobs?per_page=2&page=2")
    assert ([one["type"] for one in page["items"]], page["pagination"]["total"]) == (["a.one"], 3)
    assert "args" not in page["items"][0]
    for bad in ("sort=age", "order=up", "state=asleep", "page=0"):
        assert (await http("GET", f"{ADMIN}/jobs?{bad}")).status_code == 400


async def test_a_job_is_shown_whole(http: Http, bench: Bench) -> None:
    await bench.push("t", {"deep": [1]}, meta={"k": 1}, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    job = await bench.fail(await bench.fetch_one(), type="SomeError")
    shown = await get(http, f"/jobs/{job.id}")
    assert shown["args"] == [{"deep": [1]}]
    assert shown["errors"][0]["type"] == "SomeError"
    assert shown["retry_policy"]["max_attempts"] == 1
    assert shown["metadata"]["discarded_at"] is not None
    assert shown["metadata"]["completed_at"] is None
    assert shown["dead_letter"] is True


async def test_a_job_is_cancelled_and_brought_back(http: Http, bench: Bench) -> None:
    job = await bench.push()
    assert (await http("POST", f"{ADMIN}/jobs/{job.id}/retry")).status_code == 409
    assert (await http("POST", f"{ADMIN}/jobs/{job.id}/cancel")).json()["previous_state"] == "available"
    assert (await http("POST", f"{ADMIN}/jobs/{job.id}/retry")).json()["state"] == "available"
    assert (await bench.fetch_one()).id == job.id


@pytest.mark.parametrize("action", ["retry", "cancel", "delete"])
async def test_a_bulk_action_requires_confirmation_and_a_filter(http: Http, bench: Bench, action: str) -> None:
    job = await bench.push()
    for body in ({"filter": {"queue": "default"}}, {"filter": {}, "confirm": True}, {"confirm": True}):
        assert (await http("POST", f"{ADMIN}/jobs/bulk/{action}", body)).status_code == 400
    assert (await bench.find(job)).state == "available"


async def test_many_jobs_are_retried_with_a_summary(http: Http, bench: Bench) -> None:
    for _ in range(3):
        await bench.push(retry={"max_attempts": 1})
        await bench.fail(await bench.fetch_one())
    body = {"filter": {"queue": "default", "state": "discarded"}, "confirm": True}
    done = (await http("POST", f"{ADMIN}/jobs/bulk/retry", body)).json()
    assert done == {"action": "retry", "matched": 3, "succeeded": 3, "failed": 0, "errors": []}


async def test_workers_are_listed_shown_quieted_and_deregistered(http: Http, bench: Bench) -> None:
    for name, state in (("one", "running"), ("two", "draining")):
        await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": name, "state": state, "queues": ["default"]})
    await bench.push()
    job = await bench.fetch_one(worker_id="one")
    listed = await get(http, "/workers")
    assert listed["summary"] == {"total": 2, "running": 1, "quiet": 1, "stale": 0}
    shown = await get(http, "/workers/one")
    assert [held["id"] for held in shown["jobs"]] == [job.id]
    assert (await http("POST", f"{ADMIN}/workers/one/quiet")).json()["directive"] == "quiet"
    assert (await http("DELETE", f"{ADMIN}/workers/one")).status_code == 409
    bench.clock.advance(31)
    assert (await get(http, "/workers"))["summary"]["stale"] == 2
    assert (await http("DELETE", f"{ADMIN}/workers/one")).status_code == 200
    assert (await http("GET", f"{ADMIN}/workers/one")).status_code == 404
    assert (await bench.find(job)).state == "available"


async def test_the_whole_is_shown_in_numbers_and_over_time(http: Http, bench: Bench) -> None:
    for _ in range(3):
        await bench.push()
        bench.clock.advance(60)
        await bench.ack(await bench.fetch_one())
    stats = await get(http, "/stats")
    assert (stats["queues"], stats["workers"], stats["jobs"]["completed"]) == (1, 0, 3)
    assert stats["throughput"]["processed_per_minute"] == 0.6
    history = await get(http, "/stats/history?period=1m")
    assert [step["processed"] for step in history["data"]] == [0, 1, 1, 1]
    assert sum(step["enqueued"] for step in history["data"]) == 3
    bench.clock.advance(3 * 24 * 3600)
    await bench.run(forget, None)
    since = format_timestamp(bench.clock.now - 4 * 24 * 3600 * 1_000_000)
    old = await get(http, f"/stats/history?period=1h&queue=default&since={since}")
    assert sum(step["processed"] for step in old["data"]) == 3
    assert all(step["latency_p50_ms"] > 5_000 for step in old["data"] if step["processed"])
    assert (await get(http, "/stats/history?queue=nowhere"))["data"] == []
    assert (await http("GET", f"{ADMIN}/stats/history?period=2m")).status_code == 400
    assert (await http("GET", f"{ADMIN}/stats/history?period=1m&since=2001-01-01T00:00:00Z")).status_code == 400


async def test_job_types_and_run_times_are_shown_over_time(http: Http, bench: Bench) -> None:
    for type, seconds, fails in (("mail.send", 2, False), ("mail.send", 4, True), ("report.build", 200, False)):
        await bench.push(type, queue="work", retry={"max_attempts": 1})
        bench.clock.advance(1)
        job = await bench.fetch_one("work")
        bench.clock.advance(seconds)
        await (bench.fail(job, type="Bug") if fails else bench.ack(job))
    (mails,) = (await get(http, "/stats/history?period=1h&type=mail.send"))["data"]
    assert (mails["completed"], mails["failed"], mails["enqueued"]) == (1, 1, 0)
    assert 500 <= mails["latency_p50_ms"] <= 1_000
    assert 1_000 < mails["run_p50_ms"] <= mails["run_p99_ms"] <= 5_000
    (reports,) = (await get(http, "/stats/history?period=1h&type=report.build"))["data"]
    assert 30_000 < reports["run_p50_ms"] <= 300_000
    for all_types in ("", "&queue=work"):
        (whole,) = (await get(http, f"/stats/history?period=1h{all_types}"))["data"]
        assert (whole["completed"], whole["failed"], whole["enqueued"]) == (2, 1, 3)
        assert whole["run_p50_ms"] < 5_000 < whole["run_p99_ms"]
    bench.clock.advance(3 * 24 * 3600)
    await bench.run(forget, None)
    since = format_timestamp(bench.clock.now - 4 * 24 * 3600 * 1_000_000)
    (kept,) = (await get(http, f"/stats/history?period=1h&type=mail.send&since={since}"))["data"]
    assert kept | {"timestamp": mails["timestamp"]} == mails, "minutes are summed up to hours"
    assert (await get(http, "/stats/history?type=nothing"))["data"] == []
    for wrong in ("type=No Type", "type=x&queue=work"):
        assert (await http("GET", f"{ADMIN}/stats/history?{wrong}")).status_code == 400
    assert {queue["name"] for queue in (await get(http, "/queues"))["items"]} == {"work"}, "a type is no queue"


async def test_the_work_of_a_worker_and_of_a_host_is_counted_among_the_newest_jobs(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker, host in (("w1", "h1"), ("w2", "h1"), ("w3", "h2")):
        await bench.service.fleet.beat(Heartbeat(worker, hostname=host))
    for worker, seconds, fails in (("w1", 2, False), ("w1", 4, True), ("w2", 200, False), ("w3", 1, False)):
        await bench.push(retry={"max_attempts": 1})
        bench.clock.advance(1)
        job = await bench.fetch_one(worker_id=worker)
        bench.clock.advance(seconds)
        await (bench.fail(job, type="Bug") if fails else bench.ack(job))
    await bench.service.fleet.leave("w2")
    hook = Subscription("sub_1", "http://127.0.0.1:1/hook", ("job.enqueued",), "secret", bench.clock.now)
    await bench.service.scope.do(webhooks.subscribe, hook)
    await bench.push()
    await bench.ack(await bench.fetch_one(webhooks.QUEUE, worker_id="w1"))

    async def work(name: str) -> tuple[int, int]:
        shown = await get(http, f"/stats/history?period=1h&{name}")
        data = shown["data"]
        return sum(step["completed"] for step in data), sum(step["failed"] for step in data)

    assert await work("worker=w1") == (1, 1)
    assert await work("host=h1") == (2, 1), "with the worker that has stopped"
    assert await work("host=h2") == (1, 0)
    assert await work("worker=w9") == await work("host=h9") == (0, 0)
    shown = await get(http, "/stats/history?period=1d&worker=w2")
    (step,) = shown["data"]
    assert 500 <= step["latency_p50_ms"] <= 1_000
    assert 30_000 < step["run_p50_ms"] <= 300_000
    assert shown["counted_since"] is None
    until = format_timestamp(bench.clock.now - 150 * 1_000_000)
    assert await work(f"worker=w1&until={until}") == (1, 1)
    assert await work(f"worker=w2&until={until}") == (0, 0)
    monkeypatch.setattr(work_of_workers, "MAX_JOBS", 4)
    assert await work("host=h1") == (1, 0)
    assert (await get(http, "/stats/history?worker=w1"))["counted_since"] is not None
    for wrong in ("worker=w1&host=h1", "worker=w1&queue=default", "host=h1&type=x"):
        assert (await http("GET", f"{ADMIN}/stats/history?{wrong}")).status_code == 400


@pytest.mark.parametrize("answers", [True, False])
async def test_the_time_of_a_suspension_is_no_run_time(http: Http, bench: Bench, answers: bool) -> None:
    await bench.push("ask", retry={"max_attempts": 1})
    job = await bench.fetch_one()
    bench.clock.advance(10)
    accepted((await bench.service.jobs.release([Release(job.id, job.worker_id, job.attempt, then="wait")]))[0])
    bench.clock.advance(3 * 3600)
    failure = None if answers else Failure("NoAnswer", "nobody knew", retryable=False)
    await bench.service.workflows.activate(job.id, b"1", failure)
    since = format_timestamp(bench.clock.now - 4 * 3600 * 1_000_000)
    steps = (await get(http, f"/stats/history?period=1d&type=ask&since={since}"))["data"]
    assert sum(step["completed" if answers else "failed"] for step in steps) == 1
    runs = [step["run_p99_ms"] for step in steps if step["run_p99_ms"]]
    assert len(runs) == 1
    assert 5_000 < runs[0] <= 30_000


async def test_a_process_counts_a_limited_number_of_types(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_COUNTED_TYPES", 1)
    for type in ("first", "second", "first"):
        await bench.push(type)
        await bench.ack(await bench.fetch_one())
    assert (await get(http, "/stats/history?type=first"))["data"][0]["completed"] == 2
    assert (await get(http, "/stats/history?type=second"))["data"] == []
    assert (await get(http, "/stats/history"))["data"][0]["completed"] == 3


async def test_dead_letters_are_counted_found_retried_and_purged(http: Http, bench: Bench) -> None:
    for queue, error in (("mail", "Timeout"), ("mail", "Bug"), ("bill", "Timeout")):
        await bench.push(queue=queue, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
        await bench.fail(await bench.fetch_one(queue), type=error)
    for base in (ADMIN, "/ojs/v1"):
        stats = (await http("GET", f"{base}/dead-letter/stats")).json()
        assert stats["total"] == 3
        assert stats["by_queue"] == {"bill": 1, "mail": 2}
        assert stats["by_error_type"] == {"Bug": 1, "Timeout": 2}
    assert (await get(http, "/dead-letter?error_type=Timeout&queue=mail"))["pagination"]["total"] == 1
    (bug,) = (await get(http, "/dead-letter?error_type=Bug"))["items"]
    assert (await get(http, f"/dead-letter/{bug['id']}"))["errors"][0]["type"] == "Bug"
    assert (await http("POST", f"{ADMIN}/dead-letter/retry", {"filter": {"queue": "mail"}})).status_code == 400
    body = {"filter": {"error_type": "Timeout"}, "confirm": True}
    assert (await http("POST", "/ojs/v1/dead-letter/retry", body)).json()["succeeded"] == 2
    assert (await http("DELETE", f"{ADMIN}/dead-letter", {"confirm": False})).status_code == 400
    assert (await http("DELETE", f"{ADMIN}/dead-letter", {"confirm": True})).json()["purged_count"] == 1
    told = set(await bench.events())
    assert {"dead_letter.added", "dead_letter.retried", "dead_letter.deleted"} <= told


async def test_in_maintenance_nothing_starts_and_everything_is_kept(http: Http, bench: Bench) -> None:
    await http("POST", "/ojs/v1/cron", {"name": "c", "cron": "* * * * *", "type": "tick", "args": []})
    await bench.push("waiting")
    await bench.push("later", scheduled_at="+PT10S")
    body = {"enabled": True, "reason": "upgrade", "estimated_duration": "PT30M"}
    begun = (await http("POST", f"{ADMIN}/system/maintenance", body)).json()
    assert begun["maintenance"] is True
    assert begun["estimated_end"] > begun["enabled_at"]
    await bench.push("accepted")
    await bench.run_due(after=120)
    assert await bench.fetch(count=9) == []
    assert {job.type: job.state for job in (await bench.service.jobs.select()).jobs} == {
        "waiting": "available",
        "later": "scheduled",
        "accepted": "available",
    }
    assert (await get(http, "/system/maintenance"))["reason"] == "upgrade"
    assert (await http("POST", f"{ADMIN}/system/maintenance", {"enabled": False})).json()["enabled"] is False
    await bench.run_due()
    assert {job.type for job in await bench.fetch(count=9)} == {"waiting", "later", "accepted", "tick"}


async def test_the_servers_settings_are_shown_without_secrets(http: Http) -> None:
    shown = await get(http, "/system/config")
    assert shown["max_batch_size"] == 1000
    assert shown["retention"]["most_dead_letters"] == 10_000
    assert "url" not in str(shown)
