"""The server's own work: left out of what operators look at, except when nobody accepts its deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ojster.core.json_objects import read_members
from ojster.core.timestamps import format_timestamp
from ojster.events import notifications, webhooks
from ojster.events.channel import Channel, Message
from ojster.events.subscription import Subscription
from ojster.insight import attention
from ojster.insight.receivers import DeliveryOutcome, failing_receivers, public_address
from ojster.jobs.filter_walk import JobFilter
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

V1 = "/ojs/v1"
HOOK = Subscription("sub_1", "https://user:word@hooks.test/in?token=secret", ("job.enqueued",), "secret", 0)
CHANNEL = Channel("ops", "email", "a@ojster.test", ("b@ojster.test",))

HOW = {
    "webhook": (webhooks.QUEUE, HOOK.id, webhooks.record_outcomes),
    "channel": (notifications.QUEUE, CHANNEL.name, notifications.record_outcomes),
}
"""For each kind of receiver: the queue of its deliveries, its name there, and what records how one ended."""


@pytest.fixture(autouse=True)
def findings_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_AGE_SECONDS", -1.0)


def push_messages(tx: Transaction, messages: Sequence[Message]) -> list[None]:
    for message in messages:
        notifications.push_message(tx, CHANNEL.name, message, "")
    return [None for _ in messages]


async def push_deliveries(bench: Bench, how: str, number: int) -> None:
    """Let deliveries of a kind be pushed: by jobs that are enqueued, or by messages."""
    scope = bench.service.scope
    if how == "webhook":
        await scope.do(webhooks.subscribe, HOOK)
        for count in range(number):
            await bench.push("told", count)
        return
    await scope.do(notifications.put_channels, CHANNEL)
    for _ in range(number):
        message = Message("on_failure", "It failed", "", {})
        await scope.database.run(push_messages, message)


async def failed(bench: Bench, how: str, error: str | None = "it answered 500.") -> None:
    _, receiver, record = HOW[how]
    outcome = DeliveryOutcome(receiver, f"the {how}", error)
    await bench.service.scope.do(record, ("delivery", outcome, {}))


async def findings(http: Http) -> list[dict[str, Any]]:
    answer = await http("GET", f"{V1}/admin/attention")
    listed: list[dict[str, Any]] = answer.json()["findings"]
    return [one for one in listed if one["kind"] != "unrunnable"]


@pytest.mark.parametrize("how", HOW)
async def test_a_receiver_that_accepts_nothing_is_one_alarm_which_says_all(http: Http, bench: Bench, how: str) -> None:
    """Its address, since when, why, and what waits; that its deliveries fail and wait is no other alarm."""
    queue, receiver, _ = HOW[how]
    await push_deliveries(bench, how, 3)
    for job in await bench.fetch(queue, count=2):
        await bench.fail(job)
    since = bench.clock.now
    await failed(bench, how, "it was refused")
    bench.clock.advance(600)
    await failed(bench, how)
    (found,) = await findings(http)
    assert (found["kind"], found["subject"], found["count"]) == ("deliveries", receiver, 3)
    assert found["message"] == f"the {how} accepts no deliveries: it answered 500. 3 deliveries wait for it."
    assert found["since"] == format_timestamp(since)
    await failed(bench, how, None)
    assert [(one["kind"], one["queue"]) for one in await findings(http)] == [("waiting", queue)], "they still wait"


@pytest.mark.parametrize("how", ["accepted", "changed", "deleted", "old"])
async def test_a_receiver_fails_no_more_when_it_accepts_is_changed_or_is_deleted(
    bench: Bench, http: Http, how: str
) -> None:
    scope = bench.service.scope
    await scope.do(webhooks.subscribe, HOOK)
    await failed(bench, "webhook")
    path = f"{V1}/webhooks/subscriptions/{HOOK.id}"
    shown = (await http("GET", path)).json()["failing"]
    assert (shown["failures"], shown["waiting"], shown["error"]) == (1, 0, "it answered 500.")
    match how:
        case "accepted":
            await failed(bench, "webhook", None)
        case "changed":
            await http("PATCH", path, {"active": False})
        case "deleted":
            await http("DELETE", path)
        case _:
            bench.clock.advance(2 * 86_400)
    assert await scope.look(failing_receivers, None) == []
    listed = (await http("GET", f"{V1}/webhooks/subscriptions")).json()["subscriptions"]
    assert all("failing" not in one for one in listed)


@pytest.mark.parametrize("how", [*HOW, "inactive"])
async def test_an_attempt_that_ends_after_its_receiver_is_gone_leaves_no_alarm(bench: Bench, how: str) -> None:
    """Nothing would end it: no delivery is accepted any more, and the receiver is deleted already."""
    scope = bench.service.scope
    if how == "inactive":
        await scope.do(webhooks.subscribe, msgspec.structs.replace(HOOK, active=False))
        how = "webhook"
    await failed(bench, how)
    assert await scope.look(failing_receivers, None) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (HOOK.url, "https://hooks.test/…"),
        ("https://hooks.test:8443/services/T0/B0/secret", "https://hooks.test:8443/…"),
        ("https://hooks.test/?token=secret", "https://hooks.test/…"),
        ("https://hooks.test/", "https://hooks.test"),
        ("https://[secret", "A malformed URL"),
    ],
)
def test_what_may_be_secret_in_an_address_is_not_shown(url: str, shown: str) -> None:
    assert public_address(url) == shown


@pytest.mark.parametrize("asked", ["nothing", "internal", "queue", "type"])
async def test_every_list_and_count_has_the_servers_own_jobs_when_they_are_asked_for(
    http: Http, bench: Bench, asked: str
) -> None:
    """And without that none has them, so that all numbers are those of users' jobs."""
    dead = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    await push_deliveries(bench, "webhook", 2)
    await bench.push("pay", retry=dead)
    await bench.fail((await bench.fetch("default", count=3))[-1], message="no money")
    for job in await bench.fetch(webhooks.QUEUE, count=3):
        await bench.fail(job, code="DEAD_LETTER", message="no answer")
    queries = {
        "nothing": "",
        "internal": "internal=true",
        "queue": f"queue={webhooks.QUEUE}",
        "type": f"type={webhooks.JOB_TYPE}",
    }
    of_users, own = (3, 1), (3, 3)
    total, discarded = {
        "nothing": of_users,
        "internal": (of_users[0] + own[0], of_users[1] + own[1]),
        "queue": own,
        "type": own,
    }[asked]

    async def ask(path: str) -> Any:
        answer = await http("GET", f"{V1}{path}?{queries[asked]}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert (await ask("/jobs"))["pagination"]["total"] == total
    assert len((await ask("/jobs"))["jobs"]) == total
    assert (await ask("/admin/jobs"))["pagination"]["total"] == total
    assert (await ask("/dead-letter"))["pagination"]["total"] == discarded
    assert sum(one["discarded"] for one in (await ask("/failures"))["groups"]) == discarded
    facets = (await ask("/job-facets"))["facets"]
    assert sum(one["jobs"] for one in facets["state"]) == total
    assert {one["value"]: one["jobs"] for one in facets["state"]}["discarded"] == discarded
    body = {"filter": dict([part.split("=") for part in queries[asked].split("&") if part]) | {"state": "discarded"}}
    swept = (await http("POST", f"{V1}/jobs/bulk/retry", body | {"dry_run": True})).json()
    assert swept["total_matched"] == discarded
    if asked in ("nothing", "internal"):
        queues = (await ask("/admin/queues"))["items"]
        assert len(queues) == (1 if asked == "nothing" else 2)
        assert len((await ask("/queues"))["queues"]) == len(queues)
    if asked == "nothing":
        totals = await ask("/admin/stats")
        assert (totals["queues"], sum(totals["jobs"].values())) == (1, 3)
        assert sum(step["processed"] for step in (await ask("/admin/stats/history"))["data"]) == 1
        assert (await ask("/dead-letter/stats"))["total"] == 1


async def test_waits_code_and_orchestrators_are_users_work(bench: Bench) -> None:
    """They are of Ojster's own types, and wait in users' queues."""
    service = bench.service
    await bench.push("pay")
    listed = await service.jobs.select(JobFilter(type="ojster.*"))
    assert listed.total == 0
    steps = {"type": "chain", "steps": [{"type": "wait", "form": {"type": "object"}}]}
    await service.workflows.create(read_members(msgspec.json.encode(steps)))
    assert (await service.jobs.select(JobFilter())).total == 2
