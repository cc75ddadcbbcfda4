"""The in-process client and the HTTP client: the same calls give the same results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import httpx
import msgspec
import pytest
from msgspec import UNSET

from ojster.client.client import HttpClient
from ojster.client.interface import Client
from ojster.collections.items import Matching, NewItem, Where
from ojster.core.access import Grant, Role
from ojster.core.durations import HOUR
from ojster.core.errors import (
    BackendError,
    BackendUnavailable,
    Conflict,
    Duplicate,
    InvalidRequest,
    NotFound,
    OjsterError,
    PayloadTooLarge,
)
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.property_values import Changes
from ojster.core.rate_limit import Limits
from ojster.events.channel import Channel
from ojster.events.wire import SubscriptionBody, SubscriptionPatchBody
from ojster.fleet.workers import Heartbeat
from ojster.jobs.bulk import Action
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.interventions import Adjustment, DeadLetterRetry
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.queries import SORTS, Page
from ojster.push.wire import PushConfigBody, PushEndpointBody
from ojster.queues.wire import PoolBody, QueueConfigBody
from ojster.schedules.cron import Cron
from ojster.server.application import Application
from ojster.service import Service
from ojster.tenancy.wire import TenantBody, TenantLimitsBody
from ojster.workflows.properties import PropertyChange
from ojster.workflows.read.levels import LevelRequest
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.read.step_pages import StepFilter
from ojster.workflows.run.control import Review
from ojster.workflows.run.dependencies import NewDependencies
from ojster.workflows.run.fork import Fork
from ojster.workflows.run.fork_preview import ForkPoint
from ojster.workflows.run.steps import StepAddress
from ojster.workflows.run.suspensions import WorkflowResumption
from tests.client.in_memory import FaultyTransport, InMemoryTransport, answering, connect, to
from tests.conftest import Clock, request
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["in process", "http"])
async def client(request: pytest.FixtureRequest, service: Service) -> AsyncIterator[Client]:
    if request.param == "in process":
        yield service
        return
    http = HttpClient("http://test")
    connect(http, InMemoryTransport(to(Application(service, trusting=True))))
    yield http
    await http.close()


async def test_a_job_goes_through_its_life(client: Client) -> None:
    (pushed,) = await client.jobs.enqueue([request("t", 1, meta={"k": "v"}, queue="q", timeout_ms=5000)])
    (job,) = await client.jobs.fetch(Claim(("q",), worker_id="w", lease=60_000_000))
    assert (job.id, job.type, job.args, job.meta, job.attempt) == (pushed.job.id, "t", [1], {"k": "v"}, 1)
    assert (job.timeout, job.worker_id) == (5_000_000, "w")
    pulse = await client.fleet.beat(Heartbeat("w", (job.id,), lease=60_000_000))
    assert (pulse.directive, pulse.extended) == ("running", [job.id])
    await client.jobs.report(Progress(job.id, 0.5, "half", "w", 1))
    (done,) = await client.jobs.acknowledge([Acknowledgement(job.id, b'{"a": 1}', "w", 1)])
    assert isinstance(done, Job)
    assert done.state == "completed"
    found = await client.jobs.find(job.id)
    assert (found.state, found.result) == ("completed", b'{"a": 1}')
    await client.fleet.leave("w")
    assert await client.fleet.all() == []


async def test_several_jobs_are_pushed_together(client: Client) -> None:
    pushed = await client.jobs.enqueue([request("t", number) for number in range(5)])
    assert [one.job.args for one in pushed] == [[number] for number in range(5)]
    assert len(await client.jobs.fetch(Claim(("default",), 10))) == 5


async def test_bulk_operations_apply_to_all_matching_jobs(client: Client, clock: Clock) -> None:
    await client.jobs.enqueue([request("a.x"), request("a.y", queue="q"), request("b", meta={"k": 1})])
    found = await client.bulk.sweep(Action.CANCEL, JobFilter(type="a.*", created_before=clock.now + 1))
    assert (found.matched, found.succeeded, found.failed) == (2, 2, 0)
    assert [refusal for _, refusal in found.items] == [None, None]
    assert (await client.bulk.sweep(Action.CANCEL, JobFilter(meta={"k": 1}))).succeeded == 1
    assert (await client.bulk.sweep(Action.DELETE, JobFilter(states=("cancelled",), queue="q"))).succeeded == 1
    with pytest.raises(InvalidRequest):
        await client.bulk.sweep(Action.DELETE, JobFilter(states=("active",)))


async def test_a_dry_run_counts_jobs_by_the_pattern_of_their_error_and_leaves_them(client: Client) -> None:
    await client.jobs.enqueue([request("a") for _ in range(3)])
    for number, job in enumerate(await client.jobs.fetch(Claim(("default",), 3))):
        message = "out of paper" if number else "page 1 is torn"
        await client.jobs.fail([FailureReport(job.id, Failure("X", message, retryable=False))])
    chosen = JobFilter(states=("discarded",), error_pattern="page … is torn")
    foreseen = await client.bulk.sweep(Action.RETRY, chosen, dry_run=True)
    assert (foreseen.matched, foreseen.succeeded, [refusal for _, refusal in foreseen.items]) == (1, 1, [None])
    assert foreseen.as_of is not None
    assert (await client.jobs.find(foreseen.items[0][0])).state == "discarded"
    done = await client.bulk.sweep(Action.RETRY, msgspec.structs.replace(chosen, finished_before=foreseen.as_of))
    assert (done.items, done.as_of) == (foreseen.items, None)


async def test_bulk_operations_report_each_refused_job(client: Client) -> None:
    steps = b'{"type": "chain", "steps": [{"type": "a", "args": [], "retry": {"max_attempts": 1}}]}'
    await client.workflows.create(read_members(steps))
    (job,) = await client.jobs.fetch(Claim(("default",)))
    await client.jobs.fail([FailureReport(job.id, Failure("X", "no"))])
    found = await client.bulk.sweep(Action.RETRY, JobFilter(type="a"))
    assert (found.matched, found.succeeded) == (1, 0)
    ((id, refusal),) = found.items
    assert id == job.id
    assert isinstance(refusal, Conflict)


async def test_all_dead_letters_are_run_again_at_once(client: Client) -> None:
    ends = ({"max_attempts": 1, "on_exhaustion": end} for end in ("dead_letter", "discard"))
    await client.jobs.enqueue([request("t", retry=end) for end in ends])
    jobs = await client.jobs.fetch(Claim(("default",), 2))
    await client.jobs.fail([FailureReport(job.id, Failure("X", "no")) for job in jobs])
    found = await client.bulk.sweep(Action.RETRY, JobFilter(dead=True))
    assert found.items == [(jobs[0].id, None)]


async def test_a_history_can_be_asked_for(client: Client, service: Service) -> None:
    await client.jobs.enqueue([request("t")])
    (job,) = await client.jobs.fetch(Claim(("default",), worker_id="w"))
    await client.jobs.acknowledge([Acknowledgement(job.id, None, "w", 1)])
    entries = await client.jobs.history(job.id)
    assert [entry.type for entry in entries] == [entry.type for entry in await service.jobs.history(job.id)]
    assert entries[-1].actor == {"type": "worker", "id": "w"}


async def test_failures_and_releases(client: Client) -> None:
    await client.jobs.enqueue([request("t"), request("t"), request("t", retry={"max_attempts": 1})])
    jobs = await client.jobs.fetch(Claim(("default",), 3, "w"))
    failure = Failure("X", "it failed", backtrace=("a", "b"), details={"k": 1})
    first, last = await client.jobs.fail(
        [FailureReport(jobs[0].id, failure, "w", 1), FailureReport(jobs[2].id, failure)]
    )
    assert isinstance(first, Job)
    assert isinstance(last, Job)
    assert (first.state, last.state) == ("retryable", "discarded")
    (released,) = await client.jobs.release([Release(jobs[1].id, "w", 1)])
    assert isinstance(released, Job)
    assert released.state == "available"
    error = (await client.jobs.find(jobs[0].id)).error
    assert error is not None
    assert (error["type"], error["message"], error["backtrace"], error["details"]) == (
        "X",
        "it failed",
        ["a", "b"],
        {"k": 1},
    )


async def test_refusals_are_the_same_errors_everywhere(client: Client) -> None:
    missing = new_id()
    with pytest.raises(NotFound, match=missing):
        await client.jobs.find(missing)
    with pytest.raises(NotFound):
        await client.jobs.cancel(missing)
    with pytest.raises(NotFound):
        await client.queues.statistics("nowhere")
    with pytest.raises(NotFound):
        await client.schedules.unregister("nothing")
    with pytest.raises(InvalidRequest):
        await client.jobs.enqueue([request("NOT A TYPE")])
    (pushed,) = await client.jobs.enqueue([request("t", unique={"keys": ["type"]})])
    with pytest.raises(Duplicate) as refusal:
        await client.jobs.enqueue([request("t", unique={"keys": ["type"]})])
    assert refusal.value.details["existing_job_id"] == pushed.job.id
    await client.jobs.cancel(pushed.job.id)
    with pytest.raises(Conflict):
        await client.jobs.cancel(pushed.job.id)
    (result,) = await client.jobs.acknowledge([Acknowledgement(pushed.job.id)])
    assert isinstance(result, Conflict)
    results = await client.jobs.acknowledge([Acknowledgement(missing), Acknowledgement(missing)])
    assert all(isinstance(result, NotFound) for result in results)


async def test_a_duplicate_that_is_ignored_is_the_other_job(client: Client) -> None:
    unique = {"keys": ["type"], "on_conflict": "ignore"}
    (first,) = await client.jobs.enqueue([request("t", unique=unique)])
    (second,) = await client.jobs.enqueue([request("t", unique=unique)])
    assert (second.existing, second.job.id) == (True, first.job.id)
    both = await client.jobs.enqueue([request("t", unique=unique), request("u", id=new_id().upper())])
    assert [pushed.existing for pushed in both] == [True, False]
    assert both[0].job.id == first.job.id


async def test_a_job_says_which_tenant_it_belongs_to(client: Client) -> None:
    (pushed,) = await client.jobs.enqueue([request("t", meta={"tenant_id": "acme"})])
    (claimed,) = await client.jobs.fetch(Claim(("default",), worker_id="w"))
    found = await client.jobs.find(pushed.job.id)
    assert [job.tenant for job in (pushed.job, claimed, found)] == ["acme"] * 3


async def test_fetches_and_results_are_waited_for(client: Client) -> None:
    fetching = asyncio.create_task(client.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await asyncio.sleep(0.02)
    await client.jobs.enqueue([request()])
    (job,) = await asyncio.wait_for(fetching, PATIENCE)
    waiting = asyncio.create_task(client.jobs.wait_for(job.id, LONG_WAIT))
    await asyncio.sleep(0.02)
    await client.jobs.acknowledge([Acknowledgement(job.id, b"7")])
    assert (await asyncio.wait_for(waiting, PATIENCE)).result == b"7"


async def test_lists_dead_letters_and_activation(client: Client) -> None:
    await client.jobs.enqueue(
        [request("t", n, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"}) for n in range(3)]
    )
    for job in await client.jobs.fetch(Claim(("default",), 3)):
        await client.jobs.fail([FailureReport(job.id, Failure("X", "failed"))])
    page = await client.jobs.select(JobFilter(dead=True), Page(2))
    assert (page.total, len(page.jobs)) == (3, 2)
    rest = await client.jobs.select(JobFilter(dead=True), Page(2, before=page.next_before))
    assert ([job.args for job in rest.jobs], rest.next_before) == ([[0]], None)
    assert (await client.jobs.retry_dead(rest.jobs[0].id)).state == "available"
    await client.jobs.delete_dead(page.jobs[0].id)
    assert (await client.jobs.select(JobFilter(states=("discarded",), type="t"))).total == 1
    (pending,) = await client.jobs.enqueue([request(pending=True)])
    assert (await client.workflows.activate(pending.job.id)).job.state == "available"


GRAPH = (
    b'{"type": "graph", "name": "g", "properties": {"p": 1}, "params": {"zone": "eu"}, "steps": ['
    b'{"id": "a", "type": "t", "args": [], "manual": true},'
    b'{"id": "b", "type": "t", "args": []},'
    b'{"id": "c", "type": "t", "args": [], "depends_on": ["a"]}]}'
)


async def test_workflows_are_listed_and_shown(client: Client) -> None:
    workflows = client.workflows
    made = [(await workflows.create(read_members(GRAPH))).id for _ in range(3)]
    first = await workflows.select(WorkflowFilter(states=("running",), limit=2, params={"zone": "eu"}))
    assert [info.id for info in first.workflows] == made[:0:-1]
    rest = await workflows.select(WorkflowFilter(before=first.next_before, limit=2))
    assert ([info.id for info in rest.workflows], rest.total, rest.next_before) == (made[:1], 3, None)
    assert not (await workflows.select(WorkflowFilter(waiting_for="form"))).workflows
    id = made[0]
    page = await workflows.steps(StepFilter(id, limit=2))
    assert page.next_after is not None
    others = await workflows.steps(StepFilter(id, after=page.next_after))
    assert [step.path for step in (*page.steps, *others.steps)] == ["a", "b", "c"]
    assert [step.path for step in (await workflows.steps(StepFilter(id, "blocked", search="a"))).steps] == ["a"]
    level = await workflows.level(LevelRequest(id, limit=2))
    assert level.next_after is not None
    below = await workflows.level(LevelRequest(id, after=level.next_after))
    assert [step.path for step in (*level.steps, *below.steps)] == ["a", "b", "c"]
    assert not any((await workflows.statistics("nothing")).current.values())
    assert not (await workflows.status(id)).results
    with pytest.raises(NotFound):
        await workflows.level(LevelRequest(id, 77))
    with pytest.raises(InvalidRequest, match=r"Unknown state 'odd'\. Use "):
        await workflows.select(WorkflowFilter(states=("odd",)))
    with pytest.raises(InvalidRequest, match=r"Unknown state 'odd'\. Use one of"):
        await workflows.steps(StepFilter(id, "odd"))
    with pytest.raises(InvalidRequest, match="has no offset"):
        await workflows.select(WorkflowFilter(params={"zone": "eu"}, offset=1))


async def test_workflows_are_steered(client: Client) -> None:
    workflows = client.workflows
    id = (await workflows.create(read_members(GRAPH))).id
    assert (await workflows.hold(id)).held
    assert not (await workflows.release(id)).held
    changed = await workflows.change_properties(PropertyChange(id, Changes({"q": msgspec.Raw(b"2")}, ("p",), {"p": 1})))
    assert list(changed) == list(await workflows.properties(id)) == ["q"]
    await workflows.add_dependencies(NewDependencies(id, "c", ("b",)))
    reviewed = await workflows.review_step(Review(id, "a", "approve", "looks good", "ada"))
    assert next(step for step in reviewed.walk() if step.id == "a").reviews[0].notes == "looks good"
    for steer, state in ((workflows.cancel_step, "cancelled"), (workflows.retry_step, "pending")):
        info = await steer(StepAddress(id, "b"))
        assert next(step for step in info.walk() if step.id == "b").state == state
    await workflows.cancel(id, stop_active=True)
    preview = await workflows.preview_fork(ForkPoint(id, "b"))
    assert ("b" in preview.again, preview.takes_args, preview.takes_result) == (True, True, True)
    forked = await workflows.fork(Fork(id, "b", args=b"[5]", id="forked"))
    assert (forked.id, forked.forked_from, forked.forked_step) == ("forked", id, "b")
    assert (await workflows.fork(Fork(id, "b", id="forked"))).id == "forked"
    with pytest.raises(NotFound, match="has no step 'x'"):
        await workflows.fork(Fork(id, "x"))
    assert (await workflows.fork(Fork(id, "b", result=b'{"x": 1}'))).forked_from == id
    assert (await workflows.retry(id)).id == id
    assert (await workflows.terminate(id)).state == "cancelled"


async def test_suspended_steps_are_resumed_with_what_is_not_too_large(client: Client, service: Service) -> None:
    steps = b'{"type": "chain", "steps": [{"type": "t", "args": [], "options": {"queue": "q"}}]}'
    ids = [(await client.workflows.create(read_members(steps))).id for _ in range(2)]
    jobs = await client.jobs.fetch(Claim(("q",), 2, worker_id="w"))
    await client.jobs.release([Release(job.id, "w", job.attempt, then="wait") for job in jobs])
    large = b'"%b"' % (b"x" * service.database.settings.largest_job)
    with pytest.raises(PayloadTooLarge):
        await client.workflows.resume(WorkflowResumption(ids[0], data=large))
    await client.workflows.resume(WorkflowResumption(ids[0], data=b"1"))
    failed = await client.workflows.resume(
        WorkflowResumption(ids[1], failure=Failure("Lost", "No data.", "lost", False))
    )
    assert (failed.state, failed.error is None) == ("failed", False)


async def test_notes(client: Client) -> None:
    id = (await client.workflows.create(read_members(GRAPH))).id
    (pushed,) = await client.jobs.enqueue([request("t", queue="q")])
    added = await client.notes.add_to_workflow(id, b'{"a": 1}')
    assert await client.notes.of_workflow(id) == [added]
    await client.jobs.fetch(Claim(("q",), worker_id="w"))
    assert (await client.notes.add_to_job(pushed.job.id, b"[2]", "w", 1)).job_id == pushed.job.id
    with pytest.raises(Conflict):
        await client.notes.add_to_job(pushed.job.id, b"3", "another")
    assert [bytes(note.note) for note in await client.notes.of_job(pushed.job.id)] == [b"[2]"]


async def test_a_job_is_examined_changed_and_run_again(client: Client, service: Service) -> None:
    (pushed,) = await client.jobs.enqueue([request("t", 1, queue="q", retry={"max_attempts": 1})])
    id = pushed.job.id
    assert (await client.jobs.explain(id)).job_id == id
    adjusted = await client.jobs.adjust(Adjustment(id, to=7))
    assert (adjusted.job.priority, adjusted.previous_priority, adjusted.by) == (7, 0, 7)
    await client.jobs.save_checkpoint(NewCheckpoint(id, b'{"page": 7}'))
    saved = await client.jobs.find_checkpoint(id)
    assert (saved.job_id, msgspec.json.decode(saved.state), saved.sequence) == (id, {"page": 7}, 1)
    (job,) = await client.jobs.fetch(Claim(("q",), worker_id="w"))
    await client.jobs.fail([FailureReport(id, Failure("E", "m"), "w", job.attempt)])
    again = await client.jobs.retry_dead(id, DeadLetterRetry(id, [2], "r"))
    assert (again.args, again.queue, again.state) == ([2], "r", "available")
    await client.jobs.cancel(id)
    retried = await client.jobs.retry(id)
    assert (retried.id, retried.state, retried.attempt) == (id, "available", 0)
    with pytest.raises(Conflict):
        await client.jobs.retry(id)
    with pytest.raises(Conflict):
        await client.jobs.delete_dead(id)
    entries = len(await service.jobs.history(id))
    assert await client.jobs.purge_history(id) == entries
    made = await client.workflows.create(read_members(GRAPH))
    ids = [step.job_id for step in made.walk() if isinstance(step.job_id, str)]
    assert await client.jobs.lineage(ids[0]) == await service.jobs.lineage(ids[0])


async def test_queues_and_workers(client: Client) -> None:
    await client.jobs.enqueue([request(queue="q")])
    assert (await client.queues.pause("q")).paused_at is not None
    assert [(queue.name, queue.paused_at is None) for queue in await client.queues.all()] == [("q", False)]
    assert (await client.queues.resume("q")).paused_at is None
    assert (await client.queues.statistics("q")).counts["available"] == 1
    assert (await client.queues.create("new")).name == "new"
    with pytest.raises(Conflict, match="exists"):
        await client.queues.create("new")
    with pytest.raises(InvalidRequest, match="target_queue"):
        await client.queues.delete("q", "move")
    assert await client.queues.delete("q", "move", "new") == 1
    with pytest.raises(NotFound):
        await client.queues.delete("q")
    await client.fleet.beat(Heartbeat("w", hostname="h", pid=7, queues=("q",), labels=("x",), concurrency=3))
    assert (await client.fleet.direct("w", "quiet")).directive == "quiet"
    (worker,) = await client.fleet.all()
    assert (worker.id, worker.hostname, worker.pid, worker.queues, worker.labels) == ("w", "h", 7, ["q"], ["x"])


async def test_worker_rules_are_changed_and_deleted(client: Client) -> None:
    members = {"enabled": False, "provides": {"a": "1", "b": None}, "denied": ("x.*",), "allowed": None, "reason": "so"}
    rule = await client.fleet.change_rule("w", members)
    assert (rule.id, rule.enabled, rule.provides, rule.denied) == ("w", False, {"a": "1", "b": None}, ("x.*",))
    assert await client.fleet.rules() == [rule]
    await client.fleet.forget_rule("w")
    with pytest.raises(NotFound):
        await client.fleet.forget_rule("w")


async def test_collections(client: Client) -> None:
    made = await client.collections.create("releases", "what we ship")
    where = Where("releases")
    item = await client.collections.add(where, NewItem("a-1", b'{"k":[1,null]}', "app"))
    assert (item.name, msgspec.json.decode(item.data), item.category) == ("a-1", {"k": [1, None]}, "app")
    with pytest.raises(Conflict):
        await client.collections.add(where, NewItem("a-1", b"2"))
    await client.collections.add(where, NewItem("a-1", b"2", replace=True))
    await client.collections.add(where, NewItem("b/ü"[2:], b"3", "app"))
    assert [one.items for one in await client.collections.all()] == [2]
    assert [one.name for one in await client.collections.items(where, Matching(name_startswith="a"))] == ["a-1"]
    assert [one.name for one in await client.collections.items(where, Matching(category="app", data={"k": 1}))] == []
    assert len(await client.collections.items(where, history=True)) == 3
    assert (await client.collections.remove(where, "ü")).removed_at is not None
    with pytest.raises(Conflict):
        await client.collections.delete(made.name)
    await client.collections.delete(made.name, force=True)
    with pytest.raises(NotFound):
        await client.collections.items(where)


async def test_priorities(client: Client) -> None:
    (pushed,) = await client.jobs.enqueue([request("t", priority=5)])
    assert (await client.jobs.adjust_priority(pushed.job.id, -10)).priority == -5
    with pytest.raises(InvalidRequest):
        await client.jobs.adjust_priority(pushed.job.id, 150)


async def test_push_endpoints(client: Client) -> None:
    body = PushEndpointBody("https://203.0.113.1/run", ("email.send",), ("mail",), PushConfigBody(3, 1500))
    made = await client.push.put("fn", body)
    assert (made.worker_id, made.state, made.config.max_concurrency) == ("push_fn", "active", 3)
    assert str((await client.push.rotate("fn")).config.signing_secret).startswith("whsec_")
    assert (await client.push.pause("fn")).state == "paused"
    assert (await client.push.resume("fn")).state == "active"
    assert [shown.id for shown in await client.push.all()] == ["fn"]
    assert (await client.push.find("fn")).config.signing_secret is UNSET
    await client.push.delete("fn")
    with pytest.raises(NotFound):
        await client.push.delete("fn")


async def test_channels(client: Client) -> None:
    channel = Channel("ops", "email", "a@example.com", ("b@example.com",), subject="s")
    assert await client.events.put_channel(channel)
    assert not await client.events.put_channel(msgspec.structs.replace(channel, subject="t"))
    (found,) = await client.events.channels()
    assert (found.name, found.sender, found.to, found.subject) == ("ops", "a@example.com", ("b@example.com",), "t")
    await client.events.delete_channel("ops")
    with pytest.raises(NotFound):
        await client.events.delete_channel("ops")


async def test_pruning(client: Client, clock: Clock) -> None:
    await client.jobs.enqueue([read_members(b'{"type":"t","args":[],"expiration_delay":"PT1S"}')])
    (job,) = await client.jobs.fetch(Claim(("default",)))
    await client.jobs.acknowledge([Acknowledgement(job.id)])
    clock.advance(2)
    assert await client.maintenance.prune(dry_run=True) == {"jobs": 1, "workflows": 0, "files": 0}
    assert await client.maintenance.prune() == {"jobs": 1, "workflows": 0, "files": 0}


async def test_tokens(client: Client, clock: Clock) -> None:
    grants = [Grant(Role.WORKER, "acme"), Grant(Role.VIEWER)]
    token, secret = await client.tokens.create("ci", grants, ["mail"], clock.now + HOUR)
    assert secret.startswith(f"ojster_{token.id}_")
    (listed,) = await client.tokens.all()
    assert (listed.name, listed.grants, listed.queues) == ("ci", tuple(grants), ("mail",))
    assert (listed.created_at, listed.expires_at) == (clock.now, clock.now + HOUR)
    _, other = await client.tokens.rotate(token.id, HOUR)
    assert other != secret
    assert (await client.tokens.revoke(token.id)).id == token.id
    with pytest.raises(NotFound):
        await client.tokens.rotate(token.id, 0)
    with pytest.raises(InvalidRequest):
        await client.tokens.create("ci", [])


async def test_cron_jobs(client: Client) -> None:
    cron = Cron(name="c", expression="@daily", timezone="Asia/Tokyo", template=b'{"type":"t","args":[1]}')
    registered = await client.schedules.register(cron)
    assert registered.cron.next_run_at is not None
    assert (registered.is_new, registered.is_changed) == (True, True)
    again = await client.schedules.register(cron)
    assert (again.is_new, again.is_changed) == (False, False)
    with pytest.raises(Duplicate):
        await client.schedules.register(cron, "reject")
    assert [found.name for found in await client.schedules.all()] == ["c"]
    run = await client.schedules.trigger("c")
    assert [job.id for job in (await client.jobs.select(JobFilter(cron_name="c"))).jobs] == [run.id]
    assert (await client.jobs.select(JobFilter(cron_name="d"))).jobs == []
    assert await client.schedules.misses("c") == []
    assert (await client.schedules.switch("c", False)).next_run_at is None
    assert (await client.schedules.find("c")).enabled is False
    assert (await client.schedules.unregister("c")).name == "c"


@pytest.mark.parametrize("jobs", [1, 3])
async def test_a_push_whose_answer_is_lost_is_made_once(service: Service, jobs: int) -> None:
    client = HttpClient("http://test")
    connect(client, FaultyTransport(to(Application(service)), aiohttp.ServerDisconnectedError(), after=True))
    pushed = await client.jobs.enqueue([request("t", number) for number in range(jobs)])
    assert [one.job.args for one in pushed] == [[number] for number in range(jobs)]
    assert (await service.jobs.count())["default"]["available"] == jobs
    await client.close()


async def test_an_unreachable_server_is_retried_and_then_reported() -> None:
    client = HttpClient("http://127.0.0.1:9", patience=0.1)
    with pytest.raises(BackendUnavailable, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        await client.queues.all()
    await client.close()


async def test_a_response_without_json_is_reported() -> None:
    client = HttpClient("http://test")
    connect(client, answering(lambda sent: httpx.Response(200, text="<html>hello</html>")))
    with pytest.raises(OjsterError, match="without JSON"):
        await client.queues.all()
    await client.close()


@pytest.mark.parametrize("content", [b'{"queues":[', b"<html>", b'{"queues":7}', b""])
async def test_an_answer_that_is_not_what_was_asked_for_is_an_error_of_the_server(content: bytes) -> None:
    client = HttpClient("http://test")
    connect(client, answering(lambda sent: httpx.Response(200, content=content)))
    with pytest.raises(BackendError):
        await client.queues.all()
    with pytest.raises(BackendError):
        await client.jobs.find("019a0000-0000-7000-8000-000000000000")
    await client.close()


async def test_queues_that_no_worker_serves_are_listed(client: Client) -> None:
    await client.jobs.enqueue([request("t", queue=queue) for queue in ("mail", "reports", "running")])
    await client.fleet.beat(Heartbeat("w", queues=("mail",)))
    await client.jobs.fetch(Claim(("running",)))  # by a worker that sends no heartbeats
    assert [queue.name for queue in await client.queues.unserved()] == ["reports"]
    await client.fleet.change_rule("w", {"enabled": False})
    assert [queue.name for queue in await client.queues.unserved()] == ["mail", "reports"]


async def test_limits_of_a_key_are_shown_overridden_and_restored(client: Client, clock: Clock) -> None:
    await client.jobs.enqueue([request("t", rate_limit={"key": "k", "concurrency": 2})])
    assert [limit.key for limit in await client.rate_limits.all()] == ["k"]
    overridden = await client.rate_limits.override("k", Limits(concurrency=5), clock.now + HOUR)
    assert overridden.concurrency
    assert overridden.concurrency.limit == 5
    restored = await client.rate_limits.restore("k")
    assert restored.concurrency
    assert restored.concurrency.limit == 2
    assert await client.rate_limits.find("k") == restored
    with pytest.raises(InvalidRequest, match="empty"):
        await client.rate_limits.override("k", Limits())


async def test_pools_are_made_shown_and_deleted(client: Client) -> None:
    made = await client.pools.put("gpu", PoolBody(queues=["a", "b"], concurrency=3))
    assert (made.name, made.queues, made.concurrency) == ("gpu", ("a", "b"), 3)
    assert await client.pools.all() == [made]
    assert await client.pools.find("gpu") == made
    assert (await client.pools.dispatched()).window == "PT1M"
    await client.pools.delete("gpu")
    with pytest.raises(NotFound):
        await client.pools.find("gpu")


async def test_tenants_are_configured_limited_shown_and_deleted(client: Client) -> None:
    made = await client.tenants.put("acme", TenantBody(fairness_weight=2.0))
    assert (made.tenant_id, made.fairness_weight, made.configured) == ("acme", 2.0, True)
    limited = await client.tenants.limit("acme", TenantLimitsBody(max_queue_depth=7))
    assert (limited.limits.max_queue_depth, limited.fairness_weight) == (7, 2.0)
    assert [tenant.tenant_id for tenant in await client.tenants.all()] == ["acme"]
    assert (await client.tenants.find("acme")).queues == {}
    assert (await client.tenants.statistics("acme")).limits["max_queue_depth"].limit == 7
    with pytest.raises(InvalidRequest, match="No limit"):
        await client.tenants.limit("acme", TenantLimitsBody())
    await client.tenants.delete("acme")
    with pytest.raises(NotFound):
        await client.tenants.delete("acme")


async def test_webhook_subscriptions_are_made_changed_rotated_and_deleted(client: Client) -> None:
    made = await client.webhooks.subscribe(SubscriptionBody("https://203.0.113.7/hook", ["job.failed"]))
    assert made.secret
    shown = await client.webhooks.find(made.id)
    assert shown.secret is UNSET
    assert await client.webhooks.all() == [shown]
    assert (await client.webhooks.change(made.id, SubscriptionPatchBody(active=False))).active is False
    assert (await client.webhooks.rotate(made.id)).secret not in (UNSET, made.secret)
    with pytest.raises(NotFound):
        await client.webhooks.delivery("del_" + new_id())
    await client.webhooks.delete(made.id)
    with pytest.raises(NotFound):
        await client.webhooks.rotate(made.id)


async def test_queues_are_configured_limited_and_surveyed(client: Client) -> None:
    foreseen = await client.queues.preview("mail", QueueConfigBody(concurrency=4))
    assert [(one.setting, one.before, one.after) for one in foreseen.changes] == [("concurrency", None, 4)]
    configured = await client.queues.configure("mail", QueueConfigBody(concurrency=4, max_size=9))
    assert configured.configuration.concurrency == 4
    limited = await client.queues.limit("mail", Limits(concurrency=2))
    assert limited.configuration.concurrency == 2
    assert limited == await client.queues.configuration("mail")
    await client.jobs.enqueue([request("t", queue="mail")])
    assert [(queue.name, queue.counts.available) for queue in await client.queues.overviews(sort="trouble")] == [
        ("mail", 1)
    ]
    assert (await client.queues.overview("mail")).configuration == limited.configuration
    with pytest.raises(NotFound):
        await client.queues.configuration("other")


async def test_the_time_is_that_by_which_jobs_are_due(client: Client, service: Service) -> None:
    assert await client.insight.time() == service.database.clock()


async def test_jobs_are_found_in_the_process_as_over_http(client: Client) -> None:
    """By what they contain, in each order, and page by page; and bulk operations find the same."""
    for number in range(4):
        contents = {"order_id": number // 2, "note": "a,b"}
        await client.jobs.enqueue([request("ab"[number % 2], contents, tags=["x,y"], priority=number, queue="q")])
    (first,) = await client.jobs.fetch(Claim(("q",), worker_id="w,1"))
    await client.jobs.fail([FailureReport(first.id, Failure("App\\Error", "it, failed"), "w,1", 1)])
    for chosen, expected in (
        (JobFilter(where=("args.order_id=1", "args.note=a,b")), [3, 2]),
        (JobFilter(tag=("x,y", "z"), type=("a", "c")), [2, 0]),
        (JobFilter(error_text="IT, F", error_type="App\\Error"), [3]),
        (JobFilter(id=first.id[-12:], queue=("q", "r"), states=("retryable", "discarded")), [3]),
        (JobFilter(workflow="none"), []),
    ):
        page = await client.jobs.select(chosen, Page(is_bounded=True))
        assert [job.priority for job in page.jobs] == expected, chosen
        assert (page.total, page.is_complete, page.examined) == (len(expected), True, None)
        states = ("available", "retryable", "discarded")
        swept = await client.bulk.sweep(Action.RETRY, msgspec.structs.replace(chosen, states=states[1:]), dry_run=True)
        assert swept.matched == len({3} & set(expected)), chosen
    for sort, (column, ascending) in SORTS.items():
        asked = Page(2, sort=column, ascending=ascending, is_bounded=True)
        page = await client.jobs.select(JobFilter(tag="x,y"), asked)
        place = {"before": page.next_before} if asked.is_by_arrival else {"offset": 2}
        rest = await client.jobs.select(JobFilter(tag="x,y"), msgspec.structs.replace(asked, **place))
        assert len({job.id for job in [*page.jobs, *rest.jobs]}) == 4, sort
