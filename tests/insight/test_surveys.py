"""Facets, failures in groups, and what needs attention."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.timestamps import format_timestamp
from ojster.insight import attention, facets, failures
from ojster.jobs import failure
from ojster.jobs.failure import MAX_PATTERN_LENGTH, pattern_of
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.scope import Caller
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

V1 = "/ojs/v1"


@pytest.fixture(autouse=True)
def findings_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again each time: what servers remember for a moment would be old when the clock of a test jumps."""
    monkeypatch.setattr(attention, "MAX_AGE_SECONDS", -1.0)


async def ask(http: Http, path: str, **more: Any) -> Any:
    answer = await http("GET", f"{V1}{path}", **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def counts(answer: Any, name: str) -> dict[str, int]:
    return {one["value"]: one["jobs"] for one in answer["facets"][name]}


async def test_each_facet_is_counted_under_the_other_conditions(http: Http, bench: Bench) -> None:
    for type, queue in (("a", "mail"), ("a", "mail"), ("b", "mail"), ("a", "other")):
        await bench.push(type, queue=queue)
    await bench.fail(await bench.fetch_one("mail"), type="Down")
    every = await ask(http, "/job-facets")
    assert counts(every, "state") == {"available": 3, "retryable": 1}
    assert counts(every, "queue") == {"mail": 3, "other": 1}
    assert counts(every, "type") == {"a": 3, "b": 1}
    assert counts(every, "error_type") == {"Down": 1}
    assert (every["examined"], every["is_complete"]) == (4, True)
    of_a = await ask(http, "/job-facets?type=a&queue=mail")
    assert counts(of_a, "type") == {"a": 2, "b": 1}, "its own condition does not count"
    assert counts(of_a, "queue") == {"mail": 2, "other": 1}
    assert counts(of_a, "state") == {"available": 1, "retryable": 1}
    assert counts(await ask(http, "/job-facets?type=b*"), "queue") == {"mail": 1}


async def test_jobs_by_state_are_exact_and_types_those_of_the_newest(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facets, "MAX_EXAMINED", 3)
    for type in ("old", "old", "new", "new", "new"):
        await bench.push(type)
    answer = await ask(http, "/job-facets")
    assert counts(answer, "state") == {"available": 5}
    assert counts(answer, "type") == {"new": 3}
    assert (answer["examined"], answer["is_complete"]) == (3, False)


@pytest.mark.parametrize("most", [3, 6, 100])
async def test_facets_agree_with_the_list_of_the_same_filter_or_are_lower_bounds(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(facets, "MAX_EXAMINED", most)
    await http("POST", f"{V1}/crons", {"name": "c", "expression": "@every 1h", "type": "a", "args": []})
    for count in range(4):
        await bench.push("a", queue="mail", meta={"tenant_id": "acme"} if count == 1 else {})
        await bench.push("b", retry={"max_attempts": 1})
        await bench.fail(await bench.fetch_one(), type=("Down", "Slow")[count % 2])
        bench.clock.advance(60)
        await http("POST", f"{V1}/crons/c/trigger")
    at = (await ask(http, "/jobs"))["jobs"][0]["created_at"]
    filters: list[dict[str, str]] = [
        {}, {"state": "available"}, {"queue": "mail"}, {"type": "a"}, {"type": "b", "error_type": "Down"},
        {"since": at}, {"until": at}, {"cron_name": "c"}, {"cron_name": "c", "since": at}, {"type": "a", "until": at},
    ]  # fmt: skip
    exact = 0
    for tenant, chosen in itertools.product((None, "acme", "_default"), filters):
        more = {"headers": {} if tenant is None else {"X-OJS-Tenant": tenant}}
        answer = await ask(http, f"/job-facets?{urlencode(chosen)}", **more)
        for name in facets.FACETS:
            others = {key: value for key, value in chosen.items() if key != name}
            for value, number in counts(answer, name).items():
                listed = await ask(http, f"/jobs?{urlencode(others | {name: value})}", **more)
                told = f"{tenant} {chosen} {name}={value} among {most}"
                assert number <= listed["pagination"]["total"], told
                if name in answer["exact"]:
                    exact += 1
                    assert number == listed["pagination"]["total"], told
        assert (set(answer["exact"]) == set(facets.FACETS)) >= answer["is_complete"]
    assert exact > (0 if most < 100 else 50)


async def test_a_tenant_sees_its_own_facets_and_failures(http: Http, bench: Bench) -> None:
    acme = {"X-OJS-Tenant": "acme"}
    await http.push(type="mine", meta={"tenant_id": "acme"})
    await http.push(type="other")
    answer = await ask(http, "/job-facets", headers=acme)
    assert counts(answer, "type") == {"mine": 1}
    assert counts(answer, "state") == {"available": 1}
    for job in await bench.fetch("default", count=2):
        await bench.fail(job)
    assert [one["type"] for one in (await ask(http, "/failures", headers=acme))["groups"]] == ["mine"]
    assert (await ask(http, "/failures", headers={"X-OJS-Tenant": "beta"}))["groups"] == []


async def test_failures_with_like_messages_are_one_group(http: Http, bench: Bench) -> None:
    for number in range(3):
        await bench.push("invoice.import", number, retry={"max_attempts": 1})
    for number, job in enumerate(await bench.fetch("default", count=3)):
        bench.clock.advance(60)
        await bench.fail(job, type="Missing", message=f"invoice {number} of 'c{number}' is missing")
    await bench.push("mail.send")
    await bench.fail(await bench.fetch_one("default"), type="Down", message="the server is down")
    answer = await ask(http, "/failures")
    assert [(one["type"], one["error_type"], one["pattern"]) for one in answer["groups"]] == [
        ("invoice.import", "Missing", "invoice … of … is missing"),
        ("mail.send", "Down", "the server is down"),
    ]
    first, second = answer["groups"]
    assert (first["discarded"], first["retrying"], sum(first["trend"])) == (3, 0, 3)
    assert first["message"] == "invoice 2 of 'c2' is missing", "the example is the last one"
    assert first["first_at"] < first["last_at"]
    assert (second["discarded"], second["retrying"], second["queues"]) == (0, 1, ["default"])
    assert [one["type"] for one in (await ask(http, "/failures?type=mail.*"))["groups"]] == ["mail.send"]
    assert answer["is_complete"] is True


async def test_a_group_of_failures_is_what_its_filter_selects(http: Http, bench: Bench) -> None:
    """Several messages of one type and error class are several groups, and each is retried without the others."""
    messages = ["card 1 declined", "card 2 declined", "card 3 lost", "", "  padded 4  ", f"{'x ' * 99}long 'a' b"]
    for type in ("pay", "pay.back"):
        for message in messages:
            await bench.push(type, retry={"max_attempts": 1})
            await bench.fail(await bench.fetch_one("default"), type="PaymentError", message=message)
    groups = (await ask(http, "/failures"))["groups"]
    assert len(groups) == 10
    for group in groups:
        chosen = {name: group[name] for name in ("type", "error_type")} | {"error_pattern": group["pattern"]}
        answer = (await http("POST", f"{V1}/jobs/bulk/retry", {"filter": chosen | {"state": "discarded"}})).json()
        assert (answer["total_matched"], answer["retried"]) == (group["discarded"],) * 2, group["pattern"]
    assert (await ask(http, "/failures"))["groups"] == []


async def test_more_failures_than_are_looked_at_are_said_to_be_incomplete(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "MAX_EXAMINED", 2)
    for _ in range(3):
        await bench.push(retry={"max_attempts": 1})
    for job in await bench.fetch("default", count=3):
        await bench.fail(job)
    answer = await ask(http, "/failures")
    assert (answer["examined"], answer["is_complete"]) == (2, False)


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("cannot reach 10.0.0.7:5432", "cannot reach …"),
        ("job 01a20ec4-7faa-7644-b149-e9c90e0bccb9 is gone", "job … is gone"),
        ("KeyError: 'user_17'\nand more", "KeyError: …"),
        ("object at 0x7f3a2c", "object at …"),
        ("no customer", "no customer"),
        ("", ""),
    ],
)
def test_what_differs_between_messages_is_left_out(message: str, pattern: str) -> None:
    assert pattern_of(message) == pattern


@given(st.text(max_size=1000))
def test_every_message_has_a_short_pattern_in_one_line_that_is_its_own_pattern(message: str) -> None:
    pattern = pattern_of(message)
    assert len(pattern) <= MAX_PATTERN_LENGTH
    assert "\n" not in pattern
    assert pattern_of(pattern) == pattern


async def kinds(http: Http) -> list[tuple[str, str | None]]:
    answer = await ask(http, "/admin/attention")
    return [(one["kind"], one.get("subject")) for one in answer["findings"]]


async def test_nothing_needs_attention_at_first(http: Http) -> None:
    assert await kinds(http) == []


async def test_what_follows_from_another_finding_takes_no_place_of_one_that_does_not(
    http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the longest queues, jobs wait for workers that nobody runs; in the last one, workers are too slow."""
    monkeypatch.setattr(attention, "MAX_PER_KIND", 2)
    for number in range(4):
        for _ in range(4 - number):
            await bench.push(queue=f"unserved-{number}")
        await http("POST", f"{V1}/queues/paused-{number}/pause")
    await bench.push(queue="paused-3")
    await bench.push(queue="served")
    await http("POST", f"{V1}/workers/heartbeat", {"worker_id": "busy", "queues": ["served"]})
    bench.clock.advance(600)
    found = await kinds(http)
    assert [subject for kind, subject in found if kind == "waiting"] == ["served"]
    assert [kind for kind, _ in found].count("unrunnable") == 2
    assert [kind for kind, _ in found].count("paused") == 2


async def test_what_needs_attention_is_found_with_the_worst_first(http: Http, bench: Bench) -> None:
    waiting = await bench.push(queue="alone")
    await http("POST", f"{V1}/queues/alone/pause")
    assert await kinds(http) == [("unrunnable", waiting.id), ("paused", "alone")]
    paused = (await ask(http, "/admin/attention"))["findings"][1]
    assert paused["message"] == "The queue alone is paused. 1 job waits in it."
    await http("POST", f"{V1}/queues/alone/resume")
    bench.clock.advance(600)
    findings = (await ask(http, "/admin/attention"))["findings"]
    assert [(one["kind"], one["queue"]) for one in findings] == [("unrunnable", "alone")], "one cause, one alarm"
    assert findings[0]["since"] == format_timestamp(waiting.created_at)
    other = await bench.push(queue="other")
    (finding,) = (await ask(http, "/admin/attention"))["findings"]
    assert finding == {
        "kind": "unrunnable",
        "level": "error",
        "message": "No worker is there. Jobs wait in 2 queues.",
        "count": 2,
        "since": findings[0]["since"],
    }, "one cause, one alarm"
    await http("POST", f"{V1}/jobs/{other.id}/cancel")
    await http("POST", f"{V1}/workers/heartbeat", {"worker_id": "busy", "queues": ["alone"]})
    findings = (await ask(http, "/admin/attention"))["findings"]
    assert [(one["kind"], one["message"]) for one in findings] == [
        ("waiting", "The only job in the queue alone waits too long.")
    ]
    unknown = await bench.push("unknown", queue="alone")
    beat = {"worker_id": "busy", "queues": ["alone"], "job_types": [waiting.type]}
    assert (await http("POST", f"{V1}/workers/heartbeat", beat)).status_code == 200
    assert await kinds(http) == [("waiting", "alone"), ("unrunnable", unknown.id)], "others wait for another cause"
    await http("POST", f"{V1}/jobs/{unknown.id}/cancel")
    await bench.ack(await bench.fetch_one("alone"))
    assert await kinds(http) == []
    await http("POST", f"{V1}/admin/system/maintenance", {"enabled": True, "reason": "a new disk"})
    assert await kinds(http) == [("maintenance", None)]


async def test_a_full_queue_is_found_and_is_one_alarm_however_long_its_jobs_wait(http: Http, bench: Bench) -> None:
    await http("POST", f"{V1}/workers/heartbeat", {"worker_id": "busy", "queues": ["mail"]})

    async def bound(**bound: Any) -> None:
        assert (await http("PUT", f"{V1}/admin/queues/mail/config", {"backpressure": bound})).status_code == 200

    async def found() -> list[tuple[str, str]]:
        return [(one["level"], one["message"]) for one in (await ask(http, "/admin/attention"))["findings"]]

    await bound(max_depth=2)
    await bench.push(queue="mail")
    assert await found() == []
    await bench.push(queue="mail", scheduled_at="2090-01-01T00:00:00Z")
    full = "The queue mail is full: 2 of 2 places are taken."
    assert await found() == [("error", f"{full} It refuses new jobs.")], "jobs of later have a place, too"
    bench.clock.advance(600)
    await http("POST", f"{V1}/workers/heartbeat", {"worker_id": "busy", "queues": ["mail"]})
    assert await found() == [("error", f"{full} It refuses new jobs. The oldest waits too long.")]
    await bound(max_depth=2, strategy="drop_oldest")
    assert await found() == [("warning", f"{full} New jobs replace the oldest. The oldest waits too long.")]
    await http("POST", f"{V1}/queues/mail/pause")
    assert await found() == [("warning", f"{full} New jobs replace the oldest. It is paused.")]
    await bound(max_depth=3)
    assert await kinds(http) == [("paused", "mail")]


async def test_dead_letters_and_many_failures_are_found(http: Http, bench: Bench) -> None:
    """Of one queue, they are one alarm: whose attempts fail has dead letters soon."""
    keep = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    for retry in ([{"max_attempts": 5}] * 20, [keep] * 4):
        for one in retry:
            await bench.push(queue="bad", retry=one)
        for job in await bench.fetch("bad", count=20):
            await bench.fail(job)
        found = (await ask(http, "/admin/attention"))["findings"]
        expected = ("dead", 4) if retry == [keep] * 4 else ("failing", 20)
        assert [(one["kind"], one["count"]) for one in found if one.get("queue") == "bad"] == [expected]
    assert "100 % of its attempts failed" in found[0]["message"]
    bench.clock.advance(7_200)
    assert {"failing", "dead"}.isdisjoint(kind for kind, _ in await kinds(http)), "what was long ago is over"


async def test_a_cron_job_that_does_not_fire_and_a_worker_that_is_silent_are_found(http: Http, bench: Bench) -> None:
    body = {"name": "nightly", "expression": "* * * * *", "type": "x", "args": []}
    assert (await http("POST", f"{V1}/crons", body)).status_code == 201
    assert (await http("POST", f"{V1}/workers/heartbeat", {"worker_id": "w1"})).status_code == 200
    bench.clock.advance(200)
    assert {("overdue", "nightly"), ("silent", "w1")} <= set(await kinds(http))


async def test_workflows_that_wait_for_people_are_found(http: Http) -> None:
    gate = {"id": "go", "type": "x", "args": [], "manual": True}
    assert (await http("POST", f"{V1}/workflows", {"type": "graph", "steps": [gate]})).status_code == 201
    assert ("people", "gate") in await kinds(http)


async def test_the_next_runs_of_an_expression_are_shown(http: Http) -> None:
    path = "/cron-preview?expression=0+9+*+*+*&timezone=Europe/Berlin&count=2"
    runs = (await ask(http, path))["runs"]
    assert [run[11:16] for run in runs] == ["08:00", "08:00"]
    for wrong in ("expression=nonsense", "timezone=UTC", "expression=0+9+*+*+*&timezone=Mars", "expression=*&count=0"):
        assert (await http("GET", f"{V1}/cron-preview?{wrong}")).status_code in (400, 422), wrong


async def test_jobs_are_selected_by_the_time_of_their_creation(http: Http, bench: Bench) -> None:
    old = await bench.push()
    bench.clock.advance(3_600)
    new = await bench.push()
    since = (await ask(http, f"/jobs/{new.id}"))["job"]["created_at"][:19] + "Z"
    assert [job["id"] for job in (await ask(http, f"/jobs?until={since}"))["jobs"]] == [old.id]


async def test_recent_events_are_those_of_the_last_transactions(http: Http, bench: Bench) -> None:
    await ask(http, "/events")  # from now on they are recorded
    await bench.push()
    events = (await ask(http, "/events?recent=true"))["events"]
    assert "job.enqueued" in [event["type"] for event in events]


class Explained:
    """A transaction that explains each statement before it runs it."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self.scans: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def execute(self, query: str, parameters: Any = ()) -> Any:
        for *_, step in self._tx.execute(f"EXPLAIN QUERY PLAN {query}", parameters):
            if step.startswith("SCAN jobs") and "INDEX" not in step:
                self.scans.append(query)
        return self._tx.execute(query, parameters)


async def test_no_survey_of_failures_reads_all_jobs(bench: Bench) -> None:
    if bench.service.database.kind != "sqlite":
        pytest.skip("PostgreSQL's planner looks at the size of the tables, which are empty here")
    for queue in ("a", "b"):
        await bench.push(queue=queue)
    scope = bench.service.scope

    def survey(tx: Any, requests: Any) -> Any:
        explained: Any = Explained(tx)
        attention.find_attention(explained, (None,))
        for chosen in (JobFilter(), JobFilter(type="a*"), JobFilter(queue="a"), JobFilter(error_type="E")):
            failures.group_failures(explained, (failures.FailureQuestion(chosen, scope),))
            own = bench.service.as_(Caller("acme")).scope
            failures.group_failures(explained, (failures.FailureQuestion(chosen, own),))
        return [explained.scans for _ in requests]

    assert await bench.run(survey, None) == []


async def test_a_message_made_to_be_slow_is_not(bench: Bench) -> None:
    """Messages of workers are not trusted: with backtracking, this one would take hours."""
    assert pattern_of(("1" * 100_000 + "g ") * 10).startswith("…")
    assert failure._VARIABLE.sub("…", "1" * 2_000_000 + "g") == "…g"
