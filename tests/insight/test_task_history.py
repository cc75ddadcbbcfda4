"""Task history: recorded outcomes by type, subject and context, and skipping of unchanged tasks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster import App, found
from ojster.client.file_transfer import content_of
from ojster.collections.items import NewItem, Where
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.outcome import Outcome, outcome_of
from ojster.files.file import NewFile
from ojster.files.store import MemoryStore
from ojster.handlers.outcomes import DeadLetter, Discard
from ojster.jobs.messages import FailureReport
from ojster.jobs.scope import Caller
from ojster.reactions import OF_JOB, collect, record, skip_if_changed, skip_if_unchanged
from ojster.service import Service
from ojster.worker.failures import described
from tests.conftest import Bench, Clock, shown
from tests.workflows.bench import WorkflowBench

pytestmark = pytest.mark.anyio

RECORD = [record("{job.args.0}", "{job.args.1}")]
RECORDED = {"on_success": RECORD, "on_failure": RECORD}
SKIPS = skip_if_unchanged(subject="{job.args.0}", context="{job.args.1}")


@pytest.fixture
def flow(service: Service, clock: Clock) -> WorkflowBench:
    return WorkflowBench(service, clock)


async def push(bench: Bench, *args: Any, reactions: dict[str, Any] | None = None, **more: Any) -> Job:
    body = {"type": "test", "args": list(args), "event_reactions": reactions or RECORDED, **more}
    (pushed,) = await bench.service.jobs.enqueue([read_members(msgspec.json.encode(body))])
    return pushed.job


async def run(
    bench: Bench, *args: Any, takes: float = 1.0, result: Any = None, fails: bool = False, **more: Any
) -> Job:
    await push(bench, *args, **more)
    job = await bench.fetch_one()
    bench.clock.advance(takes)
    if fails:
        return await bench.fail(job, code="refused")
    return await bench.ack(job, msgspec.json.encode(result))


async def outcomes(bench: Bench, **chosen: Any) -> list[str]:
    return [one.outcome.value for one in await bench.service.tasks.runs(**chosen)]


# Recording runs


async def test_s62_a_run_is_remembered_by_its_type_subject_and_context(bench: Bench) -> None:
    job = await push(bench, "core", "arm64")
    bench.clock.advance(3)
    taken = await bench.fetch_one()
    bench.clock.advance(2)
    await bench.ack(taken, b'{"passed":7}')
    (one,) = await bench.service.tasks.runs()
    assert (one.task.type, one.task.subject, one.task.context) == ("test", "core", "arm64")
    assert (one.outcome, one.job_id, one.attempts) == (Outcome.SUCCESS, job.id, 1)
    assert (one.duration, one.waited) == (2.0, 3.0)
    assert one.result == msgspec.Raw(b'{"passed":7}')
    (counted,) = await bench.service.tasks.statistics()
    assert (counted.runs, counted.successes, counted.success_rate) == (1, 1, 1.0)
    assert counted.average_duration == 2.0


async def test_s62_what_does_not_say_so_is_not_remembered(bench: Bench) -> None:
    await bench.push()
    await bench.ack(await bench.fetch_one())
    assert await bench.service.tasks.runs() == []
    assert await bench.service.tasks.statistics() == []


async def test_a_final_failure_is_recorded_as_failure_or_error(bench: Bench) -> None:
    retry: dict[str, Any] = {"options": {"retry": {"max_attempts": 1}}}
    await run(bench, "core", "x", fails=True, **retry)
    await push(bench, "core", "x", **retry)
    await bench.fetch_one()
    bench.clock.advance(3600)
    await bench.run_due()
    assert await outcomes(bench) == ["error", "failure"]
    (latest, first) = await bench.service.tasks.runs()
    assert msgspec.json.decode(first.error)["type"] == "SomeError"  # type: ignore[arg-type]
    assert msgspec.json.decode(latest.error)["type"] in ("timeout", "visibility_timeout")  # type: ignore[arg-type]
    (counted,) = await bench.service.tasks.statistics()
    assert (counted.runs, counted.failures, counted.errors, counted.success_rate) == (2, 1, 1, 0.0)


async def test_a_retry_comes_before_what_is_remembered(bench: Bench) -> None:
    await run(bench, "core", "x", fails=True, options={"retry": {"max_attempts": 2, "jitter": False}})
    assert await outcomes(bench) == []
    await bench.run_due(after=10)
    await bench.ack(await bench.fetch_one())
    (one,) = await bench.service.tasks.runs()
    assert (one.outcome, one.attempts) == (Outcome.SUCCESS, 2)


async def test_s106_the_last_success_the_last_failure_and_the_five_newest_are_kept(bench: Bench) -> None:
    once: dict[str, Any] = {"options": {"retry": {"max_attempts": 1}}}
    await run(bench, "a", "x", result=0)
    await run(bench, "a", "x", fails=True, **once)
    assert await outcomes(bench) == ["failure", "success"]
    for number in range(1, 8):
        await run(bench, "a", "x", result=number)
    await run(bench, "b", "x", result=0)
    of_a = await bench.service.tasks.runs(subject="a")
    assert [(one.outcome.value, one.result) for one in of_a] == [
        *(("success", msgspec.Raw(b"%d" % number)) for number in (7, 6, 5, 4, 3)),
        ("failure", msgspec.UNSET),
    ]
    for _ in range(6):
        await run(bench, "a", "x", fails=True, **once)
    assert await outcomes(bench, subject="a") == ["failure"] * 5 + ["success"]
    assert await outcomes(bench, subject="a", outcome=Outcome.SUCCESS) == ["success"]
    assert await outcomes(bench, subject="b") == ["success"]
    counted_a, counted_b = await bench.service.tasks.statistics()
    assert (counted_a.runs, counted_a.successes, counted_a.failures) == (15, 8, 7), "all are counted"
    assert counted_b.runs == 1


async def test_durations_are_summed_up(bench: Bench) -> None:
    for takes in (2.0, 0.5, 6.5):
        await run(bench, "a", "x", takes=takes)
    (counted,) = await bench.service.tasks.statistics()
    assert (counted.shortest_duration, counted.average_duration, counted.longest_duration) == (0.5, 3.0, 6.5)


async def test_task_runs_are_scoped_to_a_workspace(bench: Bench) -> None:
    await run(bench, "a", "x", meta={"tenant_id": "acme"})
    await run(bench, "b", "x", meta={"tenant_id": "beta"})
    acme = bench.service.as_(Caller("acme"))
    assert [one.task.subject for one in await acme.tasks.runs()] == ["a"]
    assert [one.task.subject for one in await acme.tasks.statistics()] == ["a"]
    assert len(await bench.service.tasks.runs()) == 2


async def test_task_runs_are_deleted_after_a_year_without_a_repeat(bench: Bench) -> None:
    await run(bench, "a", "x")
    bench.clock.advance(364 * 86_400)
    await run(bench, "b", "x")
    await bench.service.maintenance.prune()
    assert len(await bench.service.tasks.runs()) == 2
    bench.clock.advance(2 * 86_400)
    await bench.service.maintenance.prune()
    assert [one.task.subject for one in await bench.service.tasks.runs()] == ["b"]
    assert [one.task.subject for one in await bench.service.tasks.statistics()] == ["b"]


async def test_an_invalid_subject_is_logged_and_the_job_stays_completed(bench: Bench) -> None:
    for args in ([["a list"], "x"], ["x" * 300, "x"], []):
        job = await run(bench, *args)
        assert job.state == "completed"
        assert "job.reaction_failed" in [entry.type for entry in await bench.service.jobs.history(job.id)]
    assert await bench.service.tasks.runs() == []


@pytest.mark.parametrize(
    "reactions",
    [
        {"on_creation": RECORD},
        {"on_assignment": RECORD},
        {"on_success": [SKIPS]},
        {"on_assignment": [skip_if_changed("nothing", None)]},
        {"on_assignment": [skip_if_changed("c/x", None, provides="a/b")]},
        {"on_assignment": [SKIPS | {"inptus": 1}]},
        {"on_assignment": [SKIPS, SKIPS]},
    ],
)
async def test_actions_in_the_wrong_place_are_refused(bench: Bench, reactions: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await push(bench, "a", "x", reactions=reactions)


# Skipping unchanged tasks


ONCE = RECORDED | {"on_assignment": [SKIPS]}


async def test_s87_what_has_not_changed_is_skipped_and_the_worker_gets_something_else(bench: Bench) -> None:
    first = await run(bench, "a", "x", 1, result={"answer": 42}, reactions=ONCE)
    same = await push(bench, "a", "x", 1, reactions=ONCE)
    other = await push(bench, "a", "x", 2, reactions=ONCE)
    taken = await bench.fetch_one()
    assert taken.id == other.id
    skipped = await bench.find(same)
    assert (skipped.state, skipped.result, skipped.outcome) == ("completed", b'{"answer":42}', Outcome.SKIPPED)
    assert shown(skipped)["outcome"] == "skipped"
    (entry,) = [entry for entry in await bench.service.jobs.history(same.id) if entry.type == "job.skipped"]
    assert entry.data["adopted_job_id"] == first.id
    await bench.ack(taken, b"1")
    assert await outcomes(bench) == ["success", "skipped", "success"]
    (counted,) = await bench.service.tasks.statistics()
    assert (counted.runs, counted.skipped, counted.success_rate) == (3, 1, 1.0)


async def test_only_the_last_success_counts(bench: Bench) -> None:
    once: dict[str, Any] = {"options": {"retry": {"max_attempts": 1}}}
    await run(bench, "a", "x", 1, fails=True, reactions=ONCE, **once)
    await run(bench, "a", "x", 1, result="ran", reactions=ONCE)
    await run(bench, "a", "x", 2, reactions=ONCE)
    assert (await run(bench, "a", "x", 1, reactions=ONCE)).outcome is Outcome.SUCCESS
    await push(bench, "a", "x", 1, reactions=ONCE)
    assert await bench.fetch() == []


async def test_inputs_are_what_lookups_find(bench: Bench) -> None:
    await bench.service.collections.create("sources")
    inputs = {"source": found("sources/core"), "flags": OF_JOB["args"][0]}
    once = {"on_success": [record()], "on_assignment": [skip_if_unchanged(inputs)]}

    async def runs(*args: Any) -> bool:
        await push(bench, *args, reactions=once)
        jobs = await bench.fetch()
        for job in jobs:
            await bench.ack(job)
        return bool(jobs)

    assert await runs("-O2"), "there is nothing to look up: it is noted, and the job runs"
    await bench.service.collections.add(Where("sources"), NewItem("core", b'{"a":1,"b":2}'))
    assert await runs("-O2")
    assert not await runs("-O2")
    assert await runs("-O3")
    await bench.service.collections.add(Where("sources"), NewItem("core", b'{"b":2,"a":1}', replace=True))
    assert not await runs("-O3"), "the order of members does not matter"
    await bench.service.collections.add(Where("sources"), NewItem("core", b'{"b":3,"a":1}', replace=True))
    assert await runs("-O3")


async def test_s59_a_skipped_step_provides_the_artifacts_of_the_last_success(flow: WorkflowBench) -> None:
    flow.service.store = MemoryStore()

    def plan() -> dict[str, Any]:
        provided = [{"name": "file", "artifact": {"category": "tarball"}}, {"name": "data"}]
        build: dict[str, Any] = {"id": "b", "type": "build", "args": ["core"], "provides": provided}
        build["event_reactions"] = {"on_success": [record()], "on_assignment": [skip_if_unchanged()]}
        use = {"id": "u", "type": "use", "args": [{"$lookup": "internal/file"}, {"$lookup": "internal/data"}]}
        return {"type": "graph", "steps": [build, use]}

    await flow.create(plan())
    (job,) = await flow.take()
    file = await flow.service.files.keep(b"the tarball", NewFile(job_id=job.id))
    where = Where(job_id=job.id)
    await flow.service.collections.add(where, NewItem("x.tar", b'{"v":1}', "tarball", file_id=file.id))
    await flow.ack(job, b'{"n":1}')
    await flow.take()
    before = flow.arguments["use"]
    flow.clock.advance(3 * 86_400)

    await flow.create(plan())
    await flow.take(5)
    assert flow.order == ["build", "use", "use"]
    assert flow.arguments["use"] == before
    file = await flow.service.files.find(before[0]["file"]["id"])
    assert await content_of(flow.service, file.ref) == b"the tarball"
    assert (await flow.step("b")).outcome is Outcome.SKIPPED
    assert (await flow.step("b")).state == "completed"


async def test_s59_a_skipped_step_adopts_the_item_that_another_job_provided(flow: WorkflowBench) -> None:
    await flow.service.collections.create("builds")
    skips = skip_if_changed("builds/core", None, provides="core")
    steps = [
        {"id": "b", "type": "build", "args": [], "event_reactions": {"on_assignment": [skips]}, "provides": ["core"]},
        {"id": "u", "type": "use", "args": [{"$lookup": "internal/core"}]},
    ]
    await flow.create({"type": "graph", "steps": steps})
    await flow.service.collections.add(Where("builds"), NewItem("core", b'{"by":"another"}'))
    await flow.take(5)
    assert flow.order == ["use"]
    assert flow.arguments["use"][0]["data"] == {"by": "another"}


async def test_s58_a_job_is_skipped_only_if_its_lookup_result_has_changed(bench: Bench) -> None:
    await bench.service.collections.create("builds")
    nothing = {"on_assignment": [skip_if_changed("builds/core", None)]}
    await push(bench, reactions=nothing)
    assert len(await bench.fetch()) == 1
    item = await bench.service.collections.add(Where("builds"), NewItem("core", b"1"))
    await push(bench, reactions={"on_assignment": [skip_if_changed("builds/core", item.id)]})
    assert len(await bench.fetch()) == 1
    await bench.service.collections.remove(Where("builds"), "core")
    job = await push(bench, reactions={"on_assignment": [skip_if_changed("builds/core", item.id)]})
    assert await bench.fetch() == []
    skipped = await bench.find(job)
    assert (skipped.outcome, skipped.result) == (Outcome.SKIPPED, None)


async def test_s58_a_lookup_that_makes_no_sense_skips_nothing(bench: Bench) -> None:
    job = await push(bench, reactions={"on_assignment": [skip_if_changed("internal/x", None)]})
    assert [one.id for one in await bench.fetch()] == [job.id]
    assert "job.reaction_failed" in [entry.type for entry in await bench.service.jobs.history(job.id)]


async def test_a_skipped_job_triggers_its_success_reactions(bench: Bench) -> None:
    await bench.service.collections.create("done")
    both = {"on_success": [record(), collect("it", collection="done")], "on_assignment": [skip_if_unchanged()]}
    await run(bench, 1, result="made", reactions=both)
    await bench.service.collections.remove(Where("done"), "it")
    await push(bench, 1, reactions=both)
    assert await bench.fetch() == []
    (item,) = await bench.service.collections.items(Where("done"))
    assert bytes(item.data) == b'"made"'
    assert await bench.service.jobs.wait_for((await push(bench, 1, reactions=both)).id, 0) is not None


async def test_what_was_skipped_is_forgotten_like_all_others(bench: Bench) -> None:
    await run(bench, 1, reactions={"on_success": [record()], "on_assignment": [skip_if_unchanged()]})
    job = await push(bench, 1, reactions={"on_success": [record()], "on_assignment": [skip_if_unchanged()]})
    await bench.fetch()
    bench.clock.advance(86_401)
    assert (await bench.service.maintenance.prune())["jobs"] == 2
    with pytest.raises(NotFound):
        await bench.find(job)


async def test_a_number_beyond_a_double_does_not_block_other_jobs(bench: Bench) -> None:
    """The server stores a number beyond the range of a double, but reactions cannot read it."""
    odd = {"on_success": [record("{job.args.0}")], "on_assignment": [skip_if_unchanged()]}
    body = b'{"type":"t","args":[1e400],"event_reactions":%b}' % msgspec.json.encode(odd)
    await bench.service.jobs.enqueue([read_members(body)])
    await bench.push("plain")
    jobs = await bench.fetch(count=2)
    assert [job.type for job in jobs] == ["t", "plain"]
    done = await bench.ack(jobs[0])
    assert [entry.type for entry in await bench.service.jobs.history(done.id)].count("job.reaction_failed") == 2


async def test_adopted_artifacts_replace_those_of_a_failed_attempt(bench: Bench) -> None:
    bench.service.store = MemoryStore()
    both = {"on_success": [record()], "on_assignment": [skip_if_unchanged()]}

    async def attach(job: Job, content: bytes) -> None:
        file = await bench.service.files.keep(content, NewFile(job_id=job.id))
        await bench.service.collections.add(Where(job_id=job.id), NewItem("out", b"null", file_id=file.id))

    slow = await push(bench, 1, reactions=both, options={"retry": {"jitter": False}})
    taken = await bench.fetch_one()
    await attach(taken, b"half")
    quick = await push(bench, 1, reactions=both)
    other = await bench.fetch_one()
    await attach(other, b"whole")
    await bench.ack(other, b"1")
    await bench.fail(taken)
    await bench.run_due(after=60)
    assert await bench.fetch() == []
    assert (await bench.find(slow)).outcome is Outcome.SKIPPED
    (item,) = await bench.service.collections.items(Where(job_id=slow.id))
    assert item.file is not None
    assert await content_of(bench.service, item.file) == b"whole"
    assert quick.id == other.id


async def test_the_inputs_of_an_attempt_that_failed_are_not_those_of_the_next(bench: Bench) -> None:
    await bench.service.collections.create("c")
    await bench.service.collections.add(Where("c"), NewItem("x", b"1"))
    both = {"on_success": [record()], "on_assignment": [skip_if_unchanged(found("c/x"))]}
    await push(bench, reactions=both, options={"retry": {"jitter": False}})
    await bench.fail(await bench.fetch_one())
    await bench.service.collections.remove(Where("c"), "x")
    await bench.run_due(after=60)
    await bench.ack(await bench.fetch_one(), b'"without x"')
    await bench.service.collections.add(Where("c"), NewItem("x", b"1"))
    await push(bench, reactions=both)
    assert len(await bench.fetch()) == 1, "nothing has succeeded with this x"


async def test_a_skipped_job_does_not_count_against_a_rate_limit(bench: Bench) -> None:
    both = {"on_success": [record("{job.args.0}")], "on_assignment": [skip_if_unchanged(subject="{job.args.0}")]}
    limited = {"rate_limit": {"key": "k", "rate": {"limit": 2, "period": "PT1H"}}}
    await run(bench, "a", reactions=both)
    for _ in range(5):
        await push(bench, "a", reactions=both, options=limited)
    needed = [await push(bench, name, reactions=both, options=limited) for name in "bcd"]
    first = await bench.fetch(count=1)
    assert [job.id for job in first] == [needed[0].id]
    assert [job.id for job in await bench.fetch(count=5)] == [needed[1].id]


async def test_a_claim_completes_a_bounded_number_of_jobs(bench: Bench) -> None:
    both = {"on_success": [record()], "on_assignment": [skip_if_unchanged()]}
    await run(bench, 1, reactions=both)
    for _ in range(150):
        await push(bench, 1, reactions=both)
    last = await bench.push("plain")
    fetched = [*await bench.fetch(), *await bench.fetch()]
    assert [job.id for job in fetched] == [last.id]


async def test_a_workflow_with_only_skipped_steps_starts_and_completes(flow: WorkflowBench) -> None:
    both = {"on_success": [record()], "on_assignment": [skip_if_unchanged()]}
    for _ in range(2):
        await flow.create({"type": "chain", "steps": [{"type": "a", "args": [], "event_reactions": both}]})
        await flow.work()
    info = await flow.look()
    assert (info.state, info.metadata["started_at"] is not None) == ("completed", True)
    assert (await flow.events()).count("workflow.started") == 2


async def test_many_that_need_not_run_are_passed_in_one_fetch(bench: Bench) -> None:
    both = {"on_success": [record()], "on_assignment": [skip_if_unchanged()]}
    await run(bench, 1, reactions=both)
    for _ in range(20):
        await push(bench, 1, reactions=both)
    last = await bench.push("plain")
    assert [job.id for job in await bench.fetch(count=3)] == [last.id]


# Outcomes


@given(
    st.sampled_from(["available", "active", "cancelled", "completed", "discarded", "failed", "skipped", "running"]),
    st.sampled_from(
        [
            None,
            b'{"code":"handler_error","type":"KeyError"}',
            b'{"code":"timeout"}',
            b'{"code":"rate_limit_dropped"}',
            b'{"code":"DISCARD"}',
            b'{"code":"mine"}',
            b"[]",
        ]
    ),
    st.booleans(),
)
def test_only_finished_jobs_and_steps_have_an_outcome(state: str, error: bytes | None, skipped: bool) -> None:
    outcome = outcome_of(state, error, skipped=skipped)
    expected: dict[str, Any] = {
        "completed": Outcome.SKIPPED if skipped else Outcome.SUCCESS,
        "skipped": Outcome.SKIPPED,
    }
    for failed in ("discarded", "failed"):
        is_decision = error is not None and (b"DISCARD" in error or b"mine" in error or error == b"[]")
        expected[failed] = Outcome.FAILURE if is_decision else Outcome.ERROR
    assert outcome == expected.get(state)


async def test_jobs_say_how_they_have_ended(bench: Bench) -> None:
    once: dict[str, Any] = {"retry": {"max_attempts": 1}}
    good, bad, gone, lost = [await bench.push("t", queue=name, **once) for name in "abcd"]
    for job, word in ((good, None), (bad, "failure")):
        taken = await bench.fetch_one("a" if job is good else "b")
        await (bench.ack(taken) if word is None else bench.fail(taken, code="out_of_stock"))
    await bench.service.jobs.cancel(gone.id)
    await bench.fetch_one("d", lease=1_000_000)
    await bench.run_due(after=2)
    words = [shown(await bench.find(job)).get("outcome") for job in (good, bad, gone, lost)]
    assert words == ["success", "failure", None, "error"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (KeyError("a bug"), Outcome.ERROR),
        (OSError("a machine"), Outcome.ERROR),
        (AssertionError(), Outcome.ERROR),
        (Discard("nobody wants it"), Outcome.FAILURE),
        (DeadLetter("look at it"), Outcome.FAILURE),
    ],
)
async def test_a_decision_of_a_handler_is_told_from_a_bug(bench: Bench, error: Exception, outcome: Outcome) -> None:
    job = await bench.push(retry={"max_attempts": 1})
    taken = await bench.fetch_one()
    await bench.service.jobs.fail([FailureReport(job.id, described(error), taken.worker_id, taken.attempt)])
    assert (await bench.find(job)).outcome is outcome


async def test_steps_say_how_they_have_ended(flow: WorkflowBench) -> None:
    once = {"retry": {"max_attempts": 1}}
    steps = [
        {"id": "good", "type": "a", "args": []},
        {"id": "bad", "type": "b", "args": [], "options": once, "allow_failure": True},
        {"id": "lost", "type": "c", "args": [{"$lookup": "internal/nothing"}], "allow_failure": True},
        {"id": "inner", "type": "group", "jobs": [{"type": "d", "args": []}]},
    ]
    await flow.create({"type": "graph", "steps": steps})
    await flow.work("b")
    found_outcomes = {name: (await flow.step(name)).outcome for name in ("good", "bad", "lost", "inner", "inner.0")}
    assert found_outcomes == {
        "good": Outcome.SUCCESS, "bad": Outcome.ERROR, "lost": Outcome.ERROR, "inner": Outcome.SUCCESS,
        "inner.0": Outcome.SUCCESS,
    }  # fmt: skip


def test_they_are_written_in_python(file_url: str) -> None:
    app = App(file_url)

    @app.job(reactions={"on_success": [record("{job.args.0}")], "on_assignment": [skip_if_unchanged()]})
    async def test(subject: str) -> None: ...

    handle = test.enqueue("core")
    assert b'"skip-if-unchanged"' in handle.job.envelope
    app.close()
