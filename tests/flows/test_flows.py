"""Flows: what their functions await is recorded, survives the end of the process, and happens once."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import psycopg
import psycopg.sql
import pytest

from ojster import (
    App,
    Depends,
    Flow,
    JobCancelled,
    JobFailed,
    NotInFlow,
    StepFailed,
    WorkflowFailed,
    chain,
    definition,
    group,
    result_of,
    saga,
    wait,
)
from ojster.core.errors import Conflict, InvalidRequest, NotFound, OjsterError, PayloadTooLarge
from ojster.core.json_objects import read_members
from ojster.fleet.workers import Heartbeat
from ojster.handlers.outcomes import Reported
from ojster.jobs.claim_policy import Claim
from ojster.service import Service
from ojster.storage.postgres.transaction import PostgresTransaction
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.sqlite.transaction import SqliteTransaction
from ojster.workflows.flow import FlowMessage, FlowRecords, NewRecord, Turn
from ojster.workflows.read import run_errors
from ojster.workflows.run.flow_turns import take_turns
from ojster.workflows.run.steps import StepAddress
from ojster.workflows.run.suspensions import WorkflowResumption
from tests.conftest import Clock
from tests.flows.driver import FlowBench

pytestmark = pytest.mark.anyio


class Approval(msgspec.Struct):
    ok: bool
    reason: str = ""


class Refused(Exception):
    """A flow's own error."""


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    made = App(url)
    made.done = []  # type: ignore[attr-defined]
    yield made
    await made.aclose()


@pytest.fixture
async def bench(service: Service, clock: Clock, app: App) -> FlowBench:
    bench = FlowBench(service, clock, app)

    @app.job("note")
    async def note(what: str) -> str:
        bench.done.append(what)
        return what.upper()

    @app.job("break", retry=1)
    async def breaks(what: str) -> None:
        bench.done.append(what)
        raise ValueError(f"{what} is broken")

    bench.note, bench.breaks = note, breaks
    return bench


async def result(bench: FlowBench) -> Any:
    return run_errors.result_of(await bench.finish())


async def test_jobs_local_steps_and_messages_are_awaited_as_ordinary_calls(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow, name: str) -> list[Any]:
        first = await flow.run(bench.note, name)
        both = await asyncio.gather(flow.run(bench.note, "b"), flow.run(bench.note, "c"))
        count = await flow.step("count", len, both)
        approval = await flow.receive("approval", Approval)
        return [first, both, count, approval.ok]

    await bench.start(order.s("a"))
    await bench.send("approval", {"ok": True})
    assert await result(bench) == ["A", ["B", "C"], 2, True]
    assert sorted(bench.done) == ["a", "b", "c"]


async def test_what_has_ended_comes_back_when_the_function_runs_again(bench: FlowBench) -> None:
    ran: list[str] = []

    def one_step() -> str:
        ran.append("step")
        return "one"

    @bench.app.flow("long")
    async def long(flow: Flow) -> list[str]:
        ran.append("begin")
        one = await flow.step("one", one_step)
        two = await flow.run(bench.note, "two")
        await flow.sleep(timedelta(days=7))
        return [one, two]

    await bench.start(long.s())
    await bench.finish(seconds=86_400)
    assert await result(bench) == ["one", "TWO"]
    assert ran == ["begin", "step", "begin", "begin"]
    assert bench.done == ["two"]


async def test_a_flow_that_waits_has_no_worker_and_its_deadline_does_not_move(bench: FlowBench) -> None:
    @bench.app.flow("patient")
    async def patient(flow: Flow) -> str:
        try:
            return await flow.receive("answer", str, timeout=100)
        except TimeoutError:
            return "too late"

    await bench.start(patient.s())
    await bench.work()
    (step,) = (await bench.look()).walk()
    job = await bench.find(step.job_id or "")
    assert (job.state, job.worker_id) == ("pending", None)
    bench.clock.advance(60)
    await bench.send("other", 1)
    await bench.work()
    assert (await bench.find(job)).due_at == job.due_at
    bench.clock.advance(41)
    await bench.run_all_due()
    await bench.work()
    assert run_errors.result_of(await bench.look()) == "too late"


async def test_messages_are_kept_before_anybody_waits_for_them_and_received_once_in_their_order(
    bench: FlowBench,
) -> None:
    @bench.app.flow("inbox")
    async def inbox(flow: Flow) -> list[Any]:
        return [await flow.receive("a"), await flow.receive("b"), await flow.receive("a"), await flow.receive("a")]

    await bench.start(inbox.s())
    for name, data in (("a", 1), ("a", 2), ("b", 3)):
        await bench.send(name, data)
    await bench.work()
    await bench.send("a", 4, idempotency_key="once")
    assert await result(bench) == [1, 3, 2, 4]


async def test_a_message_with_a_key_is_kept_once(bench: FlowBench) -> None:
    @bench.app.flow("inbox")
    async def inbox(flow: Flow) -> list[Any]:
        return [await flow.receive("a"), await flow.receive("a")]

    await bench.start(inbox.s())
    for data, key in ((1, "x"), (1, "x"), (2, "y")):
        await bench.send("a", data, idempotency_key=key)
    assert await result(bench) == [1, 2]


async def test_a_message_that_comes_as_the_wait_for_it_ends_is_not_lost(bench: FlowBench) -> None:
    @bench.app.flow("inbox")
    async def inbox(flow: Flow) -> list[Any]:
        try:
            return [await flow.receive("a", timeout=10), "in time"]
        except TimeoutError:
            return [await flow.receive("a"), "later"]

    await bench.start(inbox.s())
    await bench.work()
    bench.clock.advance(20)
    await bench.run_all_due()
    await bench.send("a", 1)
    assert (await result(bench))[0] == 1


async def test_messages_to_what_is_no_running_flow_are_refused(bench: FlowBench) -> None:
    @bench.app.flow("quick")
    async def quick(flow: Flow) -> None: ...

    with pytest.raises(NotFound):
        await bench.service.flows.send(FlowMessage("01900000-0000-7000-8000-000000000000", "a", b"1"))
    await bench.start(chain(bench.note.s("x")))
    with pytest.raises(Conflict, match="is no flow"):
        await bench.send("a", 1)
    await bench.start(quick.s())
    with pytest.raises(PayloadTooLarge):
        await bench.send("a", "x" * 300_000)
    await bench.finish()
    with pytest.raises(Conflict, match="receives no messages"):
        await bench.send("a", 1)


async def test_the_failure_of_a_job_is_an_exception_and_the_flow_may_go_on(bench: FlowBench) -> None:
    @bench.app.flow("careful")
    async def careful(flow: Flow) -> str:
        try:
            await flow.run(bench.breaks, "x")
        except JobFailed as failed:
            return f"{failed.error['type']}: {failed.error['message']}"
        return "no error"

    await bench.start(careful.s())
    assert await result(bench) == "ValueError: x is broken"
    assert (await bench.look()).state == "completed"


async def test_the_exception_of_a_local_step_is_the_same_when_the_function_runs_again(bench: FlowBench) -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one}{two}")

    def fails(kind: str) -> None:
        raise LookupError("gone") if kind == "known" else Odd(1, 2)

    seen: list[str] = []

    @bench.app.flow("steps")
    async def steps(flow: Flow) -> None:
        for kind in ("known", "odd"):
            try:
                await flow.step(kind, fails, kind)
            except LookupError as error:
                seen.append(repr(error))
            except StepFailed as error:
                seen.append(str(error))
            await flow.sleep(5)

    await bench.start(steps.s())
    await result(bench)
    assert len(seen) > 2
    assert {message for message in seen if "Odd" not in message} == {"LookupError('gone')"}
    assert len({message for message in seen if "Odd: 12" in message}) == 1


async def test_a_flow_whose_function_fails_has_failed_and_a_retry_runs_what_failed_again(bench: FlowBench) -> None:
    broken = True

    def check() -> str:
        bench.done.append("check")
        if broken:
            raise Refused("not yet")
        return "fine"

    @bench.app.flow("order")
    async def order(flow: Flow) -> list[str]:
        return [await flow.run(bench.note, "first"), await flow.step("check", check)]

    await bench.start(order.s())
    with pytest.raises(WorkflowFailed, match="not yet"):
        await result(bench)
    broken = False
    await bench.service.workflows.retry(bench.id)
    assert await result(bench) == ["FIRST", "fine"]
    assert bench.done == ["first", "check", "check"]


async def test_a_program_that_asks_for_something_else_stops_its_flow_until_it_is_corrected(bench: FlowBench) -> None:
    version = 1

    @bench.app.flow("order")
    async def order(flow: Flow) -> list[Any]:
        done = [await flow.keyed("first").run(bench.note if version != 2 else bench.breaks, "a")]
        if version == 3:
            done.append(await flow.run(bench.note, "added"))
        done.append(await flow.receive("go"))
        return done

    await bench.start(order.s())
    await bench.work()
    version = 2
    await bench.send("go", 1)
    with pytest.raises(WorkflowFailed, match="recorded run 'note'"):
        await result(bench)
    version = 3
    await bench.service.workflows.retry(bench.id)
    assert await result(bench) == ["A", "ADDED", 1]
    assert bench.done == ["a", "added"]


async def test_a_step_of_the_same_name_with_other_arguments_is_noticed_and_a_key_helps(bench: FlowBench) -> None:
    version = 1

    @bench.app.flow("order")
    async def order(flow: Flow) -> list[Any]:
        done = []
        if version > 1:
            done.append(await (flow if version == 2 else flow.keyed("new")).run(bench.note, "new"))
        done.append(await flow.run(bench.note, "old"))
        await flow.receive("go")
        return done

    await bench.start(order.s())
    await bench.work()
    version = 2
    await bench.send("go", 1)
    with pytest.raises(WorkflowFailed, match="with other arguments"):
        await result(bench)
    version = 3
    await bench.service.workflows.retry(bench.id)
    assert await result(bench) == ["NEW", "OLD"]


@pytest.mark.parametrize("reached", [False, True])
async def test_a_run_takes_the_new_way_of_a_changed_function_unless_it_had_passed_the_place(
    bench: FlowBench, reached: bool
) -> None:
    is_new = False

    @bench.app.flow("order")
    async def order(flow: Flow) -> list[str]:
        done = [await flow.run(bench.note, "first")]
        if not reached:
            await flow.receive("go")
        if is_new and flow.patched("check"):
            done.append(await flow.run(bench.note, "check"))
        done.append(await flow.step("count", str, len(done)))
        if reached:
            await flow.receive("go")
        await flow.sleep(10)
        return done

    await bench.start(order.s())
    await bench.work()
    is_new = True
    await bench.send("go", 1)
    assert await result(bench) == (["FIRST", "1"] if reached else ["FIRST", "CHECK", "2"])
    await bench.start(order.s())
    await bench.send("go", 1)
    assert await result(bench) == ["FIRST", "CHECK", "2"]


@pytest.mark.parametrize("reached", [False, True])
async def test_a_run_that_sleeps_behind_a_changed_place_sleeps_no_longer_for_the_change(
    bench: FlowBench, reached: bool
) -> None:
    is_new = False

    @bench.app.flow("order")
    async def order(flow: Flow) -> list[Any]:
        await flow.run(bench.note, "first")
        began_at = flow.now

        async def sleep_twice() -> float:
            await flow.sleep(300)
            await flow.sleep(300)
            return round((flow.now - began_at).total_seconds())

        slept = 0.0 if reached else await sleep_twice()
        is_patched = is_new and flow.patched("check")
        if is_patched:
            await flow.run(bench.note, "check")
        return [is_patched, await sleep_twice() if reached else slept]

    await bench.start(order.s())
    await bench.work()
    bench.clock.advance(400)
    await bench.run_all_due()
    await bench.work()  # it sleeps for the second time
    is_new = True
    assert await result(bench) == [not reached, 600]


async def test_an_old_run_takes_the_new_way_from_the_next_round_of_a_loop_on(bench: FlowBench) -> None:
    is_new = False

    @bench.app.flow("order")
    async def order(flow: Flow) -> list[str]:
        ways = []
        for _ in range(4):
            is_patched = is_new and flow.patched("way")
            ways.append("new" if is_patched else "old")
            await flow.run(bench.note, "new" if is_patched else "old")
            await flow.receive("go")
        return ways

    await bench.start(order.s())
    await bench.work()
    await bench.send("go", 1)
    await bench.work()
    is_new = True
    for _ in range(3):
        await bench.send("go", 1)
    assert await result(bench) == ["old", "old", "new", "new"]
    assert bench.done == ["old", "old", "new", "new"]


@pytest.mark.parametrize("crash", [(number, when) for number in range(6) for when in ("before", "after", "lost")])
async def test_a_mark_of_a_change_survives_each_death_of_the_worker(bench: FlowBench, crash: tuple[int, str]) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> list[bool]:
        async def branch(name: str) -> bool:
            await flow.step("begin", len, name)
            is_patched = flow.patched("branch")
            await flow.run(bench.note, f"{name} {is_patched}")
            return is_patched and flow.patched("branch")

        return [flow.patched("start"), *await asyncio.gather(branch("a"), branch("b")), flow.patched("end")]

    bench.when = lambda number: crash[1] if number == crash[0] else "never"
    await bench.start(order.s())
    assert await result(bench) == [True] * 4
    assert sorted(bench.done) == ["a True", "b True"]


@pytest.mark.parametrize("timeout", [10**12, timedelta.max, float("inf"), float("nan")], ids=str)
async def test_a_timeout_without_a_time_stamp_is_refused(bench: FlowBench, timeout: float | timedelta) -> None:
    @bench.app.flow("patient")
    async def patient(flow: Flow) -> str:
        refused = 0
        for receive in (flow.receive, flow.receive_many):
            try:
                await receive("answer", timeout=timeout)
            except ValueError:
                refused += 1
        return f"{refused} refused"

    await bench.start(patient.s())
    assert await result(bench) == "2 refused"


@pytest.mark.parametrize("seconds", [10**12, float("inf")])
async def test_what_waits_for_longer_than_times_can_be_shown_waits_for_ever(bench: FlowBench, seconds: float) -> None:
    @bench.app.flow("patient")
    async def patient(flow: Flow) -> str:
        sleeping = asyncio.create_task(asyncio.sleep(seconds))
        async with asyncio.timeout(seconds):
            answer: str = await flow.receive("answer", str)
        return f"{answer}, {sleeping.done()}"

    await bench.start(patient.s())
    await bench.work()
    (step,) = (await bench.look()).walk()
    assert (await bench.find(step.job_id or "")).due_at is None
    await bench.send("answer", "well")
    assert await result(bench) == "well, False"


async def test_a_timeout_that_is_over_before_it_begins_is_none_that_is_refused(bench: FlowBench) -> None:
    @bench.app.flow("hasty")
    async def hasty(flow: Flow) -> str:
        try:
            return await flow.receive("answer", str, timeout=-1)
        except TimeoutError:
            return "too late"

    await bench.start(hasty.s())
    assert await result(bench) == "too late"


async def test_a_path_leads_to_the_step_of_its_id_that_waits(bench: FlowBench) -> None:
    @bench.app.flow("rounds")
    async def rounds(flow: Flow) -> list[Any]:
        return [await flow.run(wait("ask")) for _ in range(3)]

    await bench.start(rounds.s())
    await bench.work()
    for answer in range(3):
        await bench.service.workflows.resume(WorkflowResumption(bench.id, "ask", msgspec.json.encode(answer)))
        await bench.work()
    assert await result(bench) == [0, 1, 2]


async def test_a_flow_appends_no_steps(bench: FlowBench) -> None:
    @bench.app.flow("growing")
    async def growing(flow: Flow) -> None:
        flow.job.append(bench.note.s("a"))

    await bench.start(growing.s())
    with pytest.raises(WorkflowFailed, match=r"await flow\.run"):
        await result(bench)


async def test_a_definition_that_fails_is_named(bench: FlowBench) -> None:
    steps = {"type": "chain", "steps": [bench.breaks.s("x").wire]}
    await bench.service.definitions.create("sheet", read_members(msgspec.json.encode(steps)))

    @bench.app.flow("using")
    async def using(flow: Flow) -> None:
        await flow.run(definition("sheet"))

    await bench.start(using.s())
    with pytest.raises(WorkflowFailed, match="sheet failed"):
        await result(bench)


async def test_words_for_steps_are_no_names_of_flows(bench: FlowBench) -> None:
    with pytest.raises(ValueError, match="word for steps"):
        bench.app.flow("chain")(_empty)
    with pytest.raises(TypeError, match="coroutine function"):
        bench.app.flow("plain")(len)  # type: ignore[arg-type]


async def _empty(flow: Flow) -> None: ...


async def test_a_key_is_used_once(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await asyncio.gather(flow.keyed("k").run(bench.note, "a"), flow.keyed("k").run(bench.note, "a"))

    await bench.start(order.s())
    with pytest.raises(WorkflowFailed, match="used twice"):
        await result(bench)


async def test_a_cancelled_flow_cleans_up_with_steps_and_undoes_what_it_has_done(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        try:
            async with flow.compensation() as undo:
                await undo.run(bench.note, "a", undo=bench.note.using(queue="default"))
                undo.add(bench.note, "undo b")
                await flow.receive("never")
        finally:
            await flow.run(bench.note, "last")

    await bench.start(order.s())
    await bench.work()
    info = await bench.service.workflows.cancel(bench.id)
    assert (info.state, info.finished) == ("cancelling", False)
    info = await bench.finish()
    assert info.state == "cancelled"
    assert bench.done == ["a", "undo b", "a", "last"]
    assert (await bench.find(next(iter(info.walk())).job_id or "")).state == "cancelled"


async def test_cancellation_comes_at_the_same_place_when_the_function_runs_again(bench: FlowBench) -> None:
    places: list[str] = []

    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        place = "first"
        try:
            await flow.run(bench.note, "a")
            place = "second"
            await flow.receive("go")
            place = "third"
            await flow.receive("never")
        except asyncio.CancelledError:
            places.append(place)
            await flow.sleep(10)
            await flow.run(bench.note, place)
            raise

    await bench.start(order.s())
    await bench.work()
    await bench.send("go", 1)
    await bench.work()
    await bench.service.workflows.cancel(bench.id)
    assert (await bench.finish()).state == "cancelled"
    assert set(places) == {"third"}
    assert bench.done == ["a", "third"]


async def test_a_flow_that_has_not_begun_is_cancelled_at_once(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.receive("never")

    await bench.start(order.s())
    await bench.service.workflows.cancel(bench.id)
    assert (await bench.look()).finished


async def test_a_flow_can_be_ended_without_being_asked(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        try:
            await flow.receive("never")
        finally:
            await flow.run(bench.note, "cleaned up")

    await bench.start(order.s())
    await bench.work()
    await bench.service.workflows.cancel(bench.id, stop_active=True)
    assert (await bench.look()).finished
    await bench.work()
    assert bench.done == []


async def test_a_timeout_cancels_the_job_that_the_flow_no_longer_awaits(bench: FlowBench) -> None:
    @bench.app.job("slow", queue="slow")
    async def slow() -> None: ...

    @bench.app.flow("order")
    async def order(flow: Flow) -> str:
        try:
            async with asyncio.timeout(300):
                await flow.run(slow)
        except TimeoutError:
            return await flow.run(bench.note, "late")
        return "in time"

    await bench.start(order.s())
    assert await result(bench) == "LATE"
    states = {step.type: step.state for step in (await bench.look()).walk()}
    assert states["slow"] == "cancelled"


async def test_a_cancelled_job_is_an_exception(bench: FlowBench) -> None:
    @bench.app.job("slow", queue="slow")
    async def slow() -> None: ...

    @bench.app.flow("order")
    async def order(flow: Flow) -> str:
        try:
            await flow.run(slow)
        except JobCancelled:
            return "cancelled"
        return "done"

    await bench.start(order.s())
    await bench.work()
    (job,) = await bench.fetch("slow")
    await bench.service.jobs.cancel(job.id)
    assert await result(bench) == "cancelled"


async def test_flows_nest_and_mix_with_declared_workflows(bench: FlowBench) -> None:
    @bench.app.flow("inner")
    async def inner(flow: Flow, word: str) -> str:
        return str(await flow.run(bench.note, word) + await flow.run(bench.note, "!"))

    @bench.app.flow("outer")
    async def outer(flow: Flow, word: str) -> list[Any]:
        return [await flow.run(inner, word), await flow.run(chain(bench.note.s("x"), bench.note.s("y")))]

    await bench.start(chain(bench.note.s("begin"), outer.s("mid").set(id="outer"), bench.note.s("end")))
    info = await bench.finish()
    assert info.state == "completed"
    (step,) = [step for step in info.walk() if step.path == "outer"]
    assert step.type == "flow"
    assert bench.done == ["begin", "mid", "!", "x", "y", "end"]


async def test_a_step_after_a_flow_gets_its_result(bench: FlowBench) -> None:
    @bench.app.flow("inner")
    async def inner(flow: Flow) -> str:
        return await flow.run(bench.note, "word")

    await bench.start(chain(inner.s().set(id="inner"), bench.note.s(result_of("inner"))))
    assert await result(bench) == "WORD"
    assert bench.done == ["word", "WORD"]


async def test_time_random_numbers_and_ids_are_the_same_when_the_function_runs_again(bench: FlowBench) -> None:
    seen: list[Any] = []

    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        seen.append((flow.now, flow.random.random(), flow.uuid()))
        await flow.sleep(100)
        seen.append((flow.now, flow.random.random(), flow.uuid()))
        await flow.sleep(100)

    await bench.start(order.s())
    await bench.finish()
    assert len(seen) == 5
    assert len(set(seen)) == 2
    assert max(seen)[0] - min(seen)[0] == timedelta(seconds=100)


async def test_only_steps_may_reach_outside(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow, how: str) -> None:
        if how == "thread":
            await asyncio.to_thread(len, "")
        elif how == "connection":
            await asyncio.open_connection("127.0.0.1", 1)
        elif how == "process":
            await asyncio.create_subprocess_exec("true")
        else:
            await flow.step("one", lambda: asyncio.run(flow.sleep(1)))

    for how in ("thread", "connection", "process"):
        await bench.start(order.s(how))
        with pytest.raises(WorkflowFailed, match="not possible in the function of a flow"):
            await result(bench)
    assert issubclass(NotInFlow, RuntimeError)


async def test_a_flow_takes_dependencies_like_a_job(bench: FlowBench) -> None:
    def rate() -> int:
        return 3

    @bench.app.flow("order")
    async def order(flow: Flow, number: int, factor: int = Depends(rate)) -> int:
        return number * factor

    assert order.signature.parameters.keys() == {"flow", "number"}


async def test_long_names_have_keys_of_their_own(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> list[int]:
        names = ["a" * 600, "b" + "a" * 599]
        return [await flow.step(name, len, name) for name in names]

    await bench.start(order.s())
    assert await result(bench) == [600, 600]
    with pytest.raises(ValueError, match="500 characters"):
        Flow(None).keyed("x" * 501)  # type: ignore[arg-type]


async def test_the_result_of_a_local_step_is_limited(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.step("large", lambda: "x" * (1 << 20))

    await bench.start(order.s())
    with pytest.raises(WorkflowFailed, match="1048578 bytes"):
        await result(bench)


async def test_what_ends_first_comes_first_again_also_where_python_has_no_order(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> list[str]:
        words = []
        for ended in asyncio.as_completed([flow.run(bench.note, word) for word in "abcdefgh"]):
            words.append(await ended)
            await flow.sleep(1)
        return words

    await bench.start(order.s())
    assert sorted(await result(bench)) == list("ABCDEFGH")
    assert sorted(bench.done) == list("abcdefgh")


@pytest.mark.parametrize("how", ["cancelled", "exit", "surrogate", "no message", "no json"])
async def test_however_a_local_step_ends_its_flow_goes_on(bench: FlowBench, how: str) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def ends() -> Any:
        match how:
            case "cancelled":
                raise asyncio.CancelledError
            case "exit":
                raise SystemExit(3)
            case "surrogate":
                raise ValueError("\udcff")
            case "no message":
                raise Silent
        return object()

    @bench.app.flow("order")
    async def order(flow: Flow) -> str:
        try:
            await flow.step("ends", ends)
        except Exception as error:
            return type(error).__name__
        return "nothing"

    await bench.start(order.s())
    assert await result(bench) in ("StepFailed", "ValueError", "TypeError")


async def test_cancellation_is_seen_between_local_steps(bench: FlowBench) -> None:
    async def pay(number: int) -> int:
        bench.done.append(f"pay {number}")
        if number == 2:
            await bench.service.workflows.cancel(bench.id)
        return number

    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        async with flow.compensation() as undo:
            for number in range(6):
                undo.add(bench.note, f"undo {number}")
                await flow.step("pay", pay, number)

    await bench.start(order.s())
    assert (await bench.finish()).state == "cancelled"
    assert bench.done == ["pay 0", "pay 1", "pay 2", "undo 3", "undo 2", "undo 1", "undo 0"]


async def test_what_has_ended_before_the_cancellation_comes_with_it(bench: FlowBench) -> None:
    async def cancel_behind_the_job() -> None:
        while not (jobs := await bench.claim()):
            await asyncio.sleep(0)
        await bench.run_job(jobs[0])
        await bench.service.workflows.cancel(bench.id)

    @bench.app.flow("f")
    async def f(flow: Flow) -> None:
        beside = asyncio.create_task(flow.run(bench.note, "job"))
        try:
            await asyncio.sleep(0)
            await flow.step("cancel", cancel_behind_the_job)
            await flow.receive("never")
        finally:
            await flow.step("clean up", bench.done.append, await beside)

    await bench.start(f.s())
    assert (await bench.finish()).state == "cancelled"
    assert bench.done == ["job", "JOB"]


async def test_a_cancelled_flow_can_be_retried(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> str:
        await flow.run(bench.note, "first")
        return await flow.receive("go", str)

    await bench.start(order.s())
    await bench.work()
    bench.clock.advance(1)
    await bench.service.workflows.cancel(bench.id)
    assert (await bench.finish()).state == "cancelled"
    await bench.service.workflows.retry(bench.id)
    await bench.send("go", "went")
    assert await result(bench) == "went"
    assert bench.done == ["first"]


async def test_a_cancelled_flow_that_is_retried_keeps_the_failure_that_it_had_caught(bench: FlowBench) -> None:
    @bench.app.job("charge", retry=1)
    async def charge() -> None:
        raise ValueError("declined")

    @bench.app.flow("order")
    async def order(flow: Flow) -> str:
        try:
            await flow.run(charge)
        except JobFailed:
            return await flow.receive("other card", str)
        return "charged"

    await bench.start(order.s())
    await bench.work()
    bench.clock.advance(1)
    await bench.service.workflows.cancel(bench.id)
    bench.clock.advance(1)
    assert (await bench.finish()).state == "cancelled"
    await bench.service.workflows.retry(bench.id)
    await bench.send("other card", "charged another card")
    assert await result(bench) == "charged another card"
    assert bench.attempts["charge"] == 1


async def test_a_flow_that_cleans_up_receives_messages_and_can_be_ended(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        try:
            await flow.receive("never")
        finally:
            bench.done.append(await flow.receive("reason", str))
            await flow.receive("never again")

    await bench.start(order.s())
    await bench.work()
    await bench.service.workflows.cancel(bench.id)
    await bench.work()
    await bench.send("reason", "because")
    await bench.work()
    assert bench.done == ["because"]
    assert not (await bench.look()).finished
    await bench.service.workflows.cancel(bench.id, stop_active=True)
    assert (await bench.look()).finished


ASKED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a job": lambda flow, job, inner: flow.run(job, "a"),
    "a declared job": lambda flow, job, inner: flow.run(job.s("a")),
    "a chain": lambda flow, job, inner: flow.run(chain(job.s("a"), job.s("b"))),
    "a group in a chain": lambda flow, job, inner: flow.run(chain(group(job.s("a"), job.s("b")), job.s("c"))),
    "a saga": lambda flow, job, inner: flow.run(saga(job.s("a").set(compensate=job.s("b")), job.s("c"))),
    "a map": lambda flow, job, inner: flow.map(job, ["a", "b"]),
    "a flow": lambda flow, job, inner: flow.run(inner, "a"),
    "a flow in a chain": lambda flow, job, inner: flow.run(chain(job.s("a"), inner.s("b"))),
}
"""What a flow may ask for with a job and a flow that have options."""

CHANGED: dict[str, Any] = {
    "retry": 7,
    "priority": 5,
    "version": "2.0",
    "requires": {},
    "resources": {"cpu": 1},
    "agent": {"agent_id": "a"},
    "reactions": {},
    "expiration_delay": 3600,
    "meta": {"release": 2},
}


@pytest.mark.parametrize("what", ASKED)
async def test_options_of_jobs_may_change_while_a_flow_runs(bench: FlowBench, what: str) -> None:
    options: dict[str, Any] = {"retry": 3}

    @bench.app.flow("inner")
    async def inner(flow: Flow, name: str) -> Any:
        return await flow.run(bench.note, name)

    @bench.app.flow("order")
    async def order(flow: Flow) -> Any:
        done = await ASKED[what](flow, bench.note.using(**options), inner.using(**options))
        return [done, await flow.receive("go")]

    await bench.start(order.s())
    await bench.work()
    options = CHANGED
    await bench.send("go", 1)
    (_, received) = await result(bench)
    assert received == 1


@pytest.mark.parametrize("name", ["options", "meta", "version"])
async def test_a_parameter_is_no_option_whatever_its_name(bench: FlowBench, name: str) -> None:
    noted = {"type": "chain", "steps": [{"type": "note", "args": [{"$ref": f"params.{name}"}]}]}
    await bench.service.definitions.create("noted", read_members(msgspec.json.encode(noted)))
    value = "a"

    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.run(definition("noted", params={name: value}))
        await flow.receive("go")

    await bench.start(order.s())
    await bench.work()
    value = "b"
    await bench.send("go", 1)
    with pytest.raises(WorkflowFailed, match="with other arguments"):
        await result(bench)


async def test_what_flows_give_to_jobs_are_values(bench: FlowBench) -> None:
    @bench.app.job("show")
    async def show(value: Any) -> Any:
        return value

    @bench.app.flow("order")
    async def order(flow: Flow) -> Any:
        return await flow.run(show, await flow.receive("data"))

    await bench.start(order.s(), params={"secret": 1})
    await bench.send("data", {"$ref": "params.secret"})
    assert await result(bench) == {"$ref": "params.secret"}


async def test_many_messages_of_a_name_come_in_their_order(bench: FlowBench) -> None:
    @bench.app.flow("inbox")
    async def inbox(flow: Flow) -> list[int]:
        return list(await asyncio.gather(*(flow.receive("a", int) for _ in range(12))))

    await bench.start(inbox.s())
    for number in range(12):
        await bench.send("a", number)
    assert await result(bench) == list(range(12))


async def test_a_failed_flow_that_is_retried_asks_again_for_what_ran_beside(bench: FlowBench) -> None:
    broken = [True]

    @bench.app.job("check", retry=1)
    async def check() -> str:
        bench.clock.advance(1)
        if broken:
            raise ValueError("broken")
        return "checked"

    @bench.app.flow("both")
    async def both(flow: Flow) -> list[str]:
        return list(await asyncio.gather(flow.run(check), flow.run(bench.note.using(queue="slow"), "a")))

    await bench.start(both.s())
    assert (await bench.finish()).state == "failed"
    broken.clear()
    await bench.service.workflows.retry(bench.id)
    await bench.work()
    for job in await bench.service.jobs.fetch(Claim(("slow",), 10, "w1")):
        await bench.run_job(job)
    assert await result(bench) == ["checked", "A"]


async def test_a_cancelled_flow_that_has_cleaned_up_with_jobs_is_not_done_half_again(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        async with flow.compensation() as undo:
            await undo.run(bench.note, "one", undo=bench.note)
            await undo.run(bench.note, "two", undo=bench.note)
            await flow.receive("approval")

    for options, state, code in ({}, "cancelled", None), ({"timeout": 10}, "failed", "workflow_timeout"):
        bench.done.clear()
        await bench.start(order.s(), **options)
        await bench.work()
        if not options:
            await bench.service.workflows.cancel(bench.id)
        ended = await bench.finish()
        await bench.service.workflows.retry(bench.id)
        again = await bench.finish()
        assert [(info.state, info.error and info.error.code) for info in (ended, again)] == [(state, code)] * 2
        assert bench.done == ["one", "two", "two", "one"]


async def test_a_cancellation_during_a_compensation_lets_it_end(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        async with flow.compensation() as undo:
            undo.add(bench.note, "first")
            undo.add(bench.note.using(delay=100), "second")
            raise ValueError("fails")

    await bench.start(order.s())
    await bench.work()
    assert bench.done == []
    await bench.service.workflows.cancel(bench.id)
    assert (await bench.finish()).state == "cancelled"
    assert bench.done == ["second", "first"]


async def test_a_timeout_around_a_container_stops_that_alone(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> str:
        async with flow.compensation() as undo:
            undo.add(bench.note, "undone")
            try:
                async with asyncio.timeout(300):
                    await flow.run(chain(bench.note.using(delay=1_000).s("late")))
            except TimeoutError:
                await flow.run(bench.note, "in time")
            return "went on"

    await bench.start(order.s())
    assert await result(bench) == "went on"
    assert bench.done == ["in time"]


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_saga_that_is_stopped_while_it_compensates_with_a_flow_goes_on(
    bench: FlowBench, is_whole: bool
) -> None:
    @bench.app.flow("undo")
    async def undo(flow: Flow) -> None:
        try:
            await flow.receive("undo", timeout=100)
        except asyncio.CancelledError:
            bench.done.append("asked to cancel")
            raise
        except TimeoutError:
            bench.done.append("undone")

    order = saga(bench.note.s("done").set(compensate=undo.s()), bench.breaks.s("next"), name="order")
    await bench.start(order if is_whole else group(order))
    await bench.work()
    if is_whole:
        await bench.service.workflows.cancel(bench.id)
    else:
        await bench.service.workflows.cancel_step(StepAddress(bench.id, "order"))
    await bench.finish()
    assert bench.done == ["done", "next", "undone"]


async def test_a_map_takes_no_references(bench: FlowBench) -> None:
    @bench.app.flow("all")
    async def note_all(flow: Flow) -> str:
        try:
            await flow.map(bench.note, [{"$ref": "params.x"}])
        except ValueError:
            return "refused"
        return "resolved"

    await bench.start(note_all.s())
    assert await result(bench) == "refused"


async def test_messages_that_have_come_are_received_together(bench: FlowBench) -> None:
    @bench.app.flow("inbox")
    async def inbox(flow: Flow) -> list[Any]:
        first = await flow.receive_many("a", Approval)
        try:
            await flow.receive_many("a", timeout=10)
        except TimeoutError:
            second = await flow.receive_many("a", int)
        return [len(first), [approval.ok for approval in first], second]

    await bench.start(inbox.s())
    for ok in (True, False, True):
        await bench.send("a", {"ok": ok})
    await bench.work()
    bench.clock.advance(11)
    await bench.run_all_due()
    await bench.work()
    await bench.send("a", 4)
    assert await result(bench) == [3, [True, False, True], [4]]


async def test_messages_that_were_given_up_are_received_later(bench: FlowBench) -> None:
    """The messages come together with the end of the wait, which the flow sees first."""

    @bench.app.flow("inbox")
    async def inbox(flow: Flow) -> list[Any]:
        waiting = asyncio.create_task(flow.receive_many("a"))
        await flow.sleep(10)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return await flow.receive_many("a")

    await bench.start(inbox.s())
    await bench.work()
    bench.clock.advance(11)
    await bench.send("a", 1)
    await bench.send("a", 2)
    await bench.run_all_due()
    assert await result(bench) == [1, 2]


async def test_keys_of_the_house_are_refused(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.step("!cancel", len, "")

    await bench.start(order.s())
    with pytest.raises(WorkflowFailed, match="do not begin with"):
        await result(bench)


async def test_the_log_of_a_flow_says_each_thing_once(bench: FlowBench, caplog: pytest.LogCaptureFixture) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        flow.log.info("begins")
        await flow.run(bench.note, "a")
        flow.log.info("has a")
        await flow.sleep(5)
        flow.log.info("has slept")

    caplog.set_level("INFO", "ojster.flow.order")
    await bench.start(order.s())
    await bench.finish()
    said = [record.message for record in caplog.records if record.name == "ojster.flow.order"]
    assert said == ["begins", "has a", "has slept"]


async def test_a_flow_is_no_plain_job(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None: ...

    with pytest.raises(TypeError, match="is a flow: start it"):
        await order.aenqueue()
    with pytest.raises(TypeError, match="is a flow: start it"):
        await order.aenqueue_many([(), ()])


async def test_what_a_flow_has_asked_for_ends_with_it(bench: FlowBench) -> None:
    @bench.app.job("slow", queue="slow")
    async def slow() -> None: ...

    @bench.app.flow("inner")
    async def inner(flow: Flow) -> None:
        await flow.receive("never")

    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await asyncio.gather(flow.run(slow), flow.run(inner))

    await bench.start(order.s())
    await bench.work()
    function = next(step for step in (await bench.look()).walk() if step.type == "order")
    await bench.service.jobs.cancel(function.job_id or "")
    info = await bench.finish()
    assert info.state == "cancelled"
    assert {step.type: step.state for step in info.walk() if step.type == "slow"} == {"slow": "cancelled"}


async def test_a_local_step_that_is_given_up_while_it_is_recorded_gives_nothing(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> str:
        async def quick() -> str:
            return "quick"

        async def failing() -> None:
            raise LookupError("failing")

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(flow.step("failing", failing))
                tasks.create_task(flow.step("quick", quick))
        except* LookupError:
            pass
        return await flow.run(bench.note, "after")

    await bench.start(order.s())
    assert await result(bench) == "AFTER"


async def test_the_deaths_of_workers_are_forgotten_when_a_flow_has_come_further(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.receive("never")

    await bench.start(order.s())
    for place, losses in enumerate((1, 1, 1, 2)):
        (job,) = await bench.fetch(worker_id="w")
        await bench.service.fleet.beat(Heartbeat("w", (job.id,)))
        bench.clock.advance(1)
        step = NewRecord(f"step {place}", "step", "step", 1, ended_at=bench.clock.now, result=msgspec.Raw(b"1"))
        if losses == 1:  # it records a step before its worker dies
            await bench.service.flows.turn(Turn(job.id, "w", job.attempt, job.started_at, (step,)))
        await bench.run_due(after=30)
        job = await bench.find(job)
        assert (job.losses, job.counted_attempts) == (losses, 0)
    await bench.run_due(after=10)
    (job,) = await bench.fetch()
    await bench.run_job(job)
    job = await bench.find(job)
    assert (job.state, job.losses, job.attempt) == ("pending", 0, 0)


@pytest.mark.parametrize("together", [True, False])
async def test_a_flow_inside_that_is_given_up_as_it_begins_to_wait_is_cancelled(
    bench: FlowBench, together: bool
) -> None:
    @bench.app.flow("inner")
    async def inner(flow: Flow) -> None: ...

    @bench.app.flow("outer")
    async def outer(flow: Flow) -> None: ...

    calls = bench.service.flows
    await bench.start(outer.s())
    (around,) = await bench.fetch(worker_id="w")
    step = msgspec.Raw(msgspec.json.encode({"type": "flow", "job": {"type": "inner", "args": []}}))
    asks = NewRecord("inner", "run", "inner", 1, step=step)
    await calls.turn(Turn(around.id, "w", around.attempt, around.started_at, (asks,)))
    (inside,) = await bench.fetch(worker_id="w")
    version = (await calls.records(inside.id)).version
    waits = NewRecord("m", "receive", "m", 1)
    gives_up = Turn(around.id, "w", around.attempt, around.started_at, cancelled=("inner",))
    suspends = Turn(inside.id, "w", inside.attempt, inside.started_at, (waits,), suspends=True, version=version)
    if together:
        _, answer = await bench.service.database.run_many(take_turns, [gives_up, suspends])
    else:
        await calls.turn(gives_up)
        answer = await calls.turn(suspends)
    assert not isinstance(answer, OjsterError)
    assert not answer.suspended
    assert [record.kind for record in answer.records] == ["cancel"]


async def test_a_flow_that_waits_for_nothing_fails(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await asyncio.Event().wait()

    await bench.start(order.s())
    with pytest.raises(WorkflowFailed, match="neither asked of the flow nor a time"):
        await result(bench)


async def test_a_step_that_the_server_refuses_is_an_exception_of_its_await(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> list[Any]:
        steps = [chain(bench.note.s("x").set(id="a"), bench.note.s("y").set(id="a")), chain(bench.note.s("fine"))]
        ends = await asyncio.gather(*(flow.run(step) for step in steps), return_exceptions=True)
        return [type(end).__name__ if isinstance(end, Exception) else end for end in ends]

    await bench.start(order.s())
    assert await result(bench) == ["JobFailed", "FINE"]


async def test_a_step_that_a_flow_has_awaited_is_not_retried_alone(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.run(bench.breaks, "x")

    await bench.start(order.s())
    await bench.finish()
    with pytest.raises(Conflict, match="belongs to a flow"):
        await bench.service.workflows.retry_step(StepAddress(bench.id, "1"))


async def test_a_function_that_catches_everything_does_not_hold_its_worker(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # Python says that it cannot close such a coroutine

    @bench.app.flow("order")
    async def order(flow: Flow) -> str:
        while True:
            try:
                return await flow.receive("m", str)
            except BaseException:
                bench.done.append("caught")

    await bench.start(order.s())
    await bench.work()
    assert (await bench.look()).state == "running"
    gc.collect()
    assert 0 < len(bench.done) < 100


class Payments:
    """Something large that a local step refers to."""

    def __call__(self) -> int:
        return 1

    def charge(self) -> int:
        return 1


@pytest.mark.parametrize(
    "step_of",
    [
        lambda payments: lambda: payments() and 1,
        lambda payments: payments.charge,
        lambda payments: payments,
        lambda payments: partial(Payments.charge, payments),
    ],
    ids=["closure", "method", "object", "partial"],
)
async def test_what_a_local_step_refers_to_is_freed_with_its_flow(
    bench: FlowBench, step_of: Callable[[Payments], Callable[[], int]]
) -> None:
    seen: list[weakref.ref[Payments]] = []

    @bench.app.flow("order")
    async def order(flow: Flow) -> int:
        payments = Payments()
        seen.append(weakref.ref(payments))
        return await flow.step("charge", step_of(payments))

    await bench.start(order.s())
    assert await result(bench) == 1
    gc.collect()
    assert {payments() for payments in seen} == {None}


async def test_groups_and_maps_are_lists(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> Any:
        both = await flow.run(group(bench.note.s("a"), bench.note.s("b")))
        return [both, await flow.map(bench.note, ["c", "d", "e"]), await flow.map(bench.note, [])]

    await bench.start(order.s())
    assert await result(bench) == [["A", "B"], ["C", "D", "E"], []]


async def test_the_results_of_a_map_have_the_type_of_its_job(bench: FlowBench) -> None:
    @bench.app.job("approve")
    async def approve(approval: Approval) -> Approval:
        return Approval(not approval.ok)

    @bench.app.flow("all")
    async def approve_all(flow: Flow) -> list[bool]:
        return [approval.ok for approval in await flow.map(approve, [Approval(True), Approval(False)])]

    await bench.start(approve_all.s())
    assert await result(bench) == [False, True]


async def test_a_failed_job_of_a_map_is_an_exception(bench: FlowBench) -> None:
    @bench.app.flow("all")
    async def break_all(flow: Flow) -> str:
        try:
            await flow.map(bench.breaks, ["a", "b"])
        except JobFailed:
            return "caught"
        return "not caught"

    await bench.start(break_all.s())
    assert await result(bench) == "caught"


async def test_a_worker_that_no_longer_holds_the_flow_can_record_nothing(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None: ...

    await bench.start(order.s())
    (job,) = await bench.fetch(worker_id="one", lease=60_000_000)
    bench.clock.advance(100)
    await bench.run_all_due()
    (again,) = await bench.fetch(worker_id="two")
    assert again.id == job.id
    record = NewRecord("a", "step", "a", 1, ended_at=2)
    for stale in (job, msgspec.structs.replace(again, started_at=1)):
        with pytest.raises(Conflict):
            await bench.service.flows.turn(Turn(job.id, "one", stale.attempt, stale.started_at, (record,)))
    await bench.service.flows.turn(Turn(job.id, "two", again.attempt, again.started_at, (record,)))
    assert [one.key for one in (await bench.service.flows.records(job.id)).records] == ["a"]


async def test_a_record_is_written_once(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None: ...

    await bench.start(order.s())
    (job,) = await bench.fetch(worker_id="one")
    turn = Turn(job.id, "one", job.attempt, job.started_at, (NewRecord("a", "step", "a", 1, ended_at=2),))
    await bench.service.flows.turn(turn)
    with pytest.raises(Conflict, match="already"):
        await bench.service.flows.turn(turn)


Begin = Callable[[int], Awaitable[list[Turn]]]


@pytest.fixture(params=["with its number", "without it"])
def begun(bench: FlowBench, request: pytest.FixtureRequest) -> Begin:
    """Start flows, and return a turn of each with the outcome of a local step: as a worker says it in the process of
    the service, and as one does over HTTP."""

    async def begin(count: int) -> list[Turn]:
        @bench.app.flow(f"order-{count}")
        async def order(flow: Flow) -> None: ...

        for _ in range(count):
            await bench.start(order.s())
        jobs = await bench.fetch(count=count, worker_id="one")
        record = NewRecord("a", "step", "a", 1, ended_at=2)
        return [
            Turn(
                job.id,
                "one",
                job.attempt,
                job.started_at,
                (record,),
                flow=job.node if request.param == "with its number" else None,
            )
            for job in jobs
        ]

    return begin


async def test_of_turns_that_come_together_only_what_another_worker_has_recorded_is_refused(
    bench: FlowBench, begun: Begin
) -> None:
    first, second, third = await begun(3)
    await bench.service.flows.turn(second)
    more = (NewRecord("b", "step", "b", 1, ended_at=2),)
    repeated = msgspec.structs.replace(second, records=more + second.records)
    stale = msgspec.structs.replace(third, worker_id="two")
    turns = [first, repeated, stale]
    results = await asyncio.gather(*map(bench.service.flows.turn, turns), return_exceptions=True)
    assert isinstance(results[0], FlowRecords)
    assert [type(result) for result in results[1:]] == [Conflict, Conflict]
    known = [[record.key for record in (await bench.service.flows.records(turn.job_id)).records] for turn in turns]
    assert known == [["a"], ["a"], []]


_SAYS: dict[str, Callable[[Turn], Turn]] = {
    "a step": lambda turn: turn,
    "another step": lambda turn: msgspec.structs.replace(turn, records=(NewRecord("b", "step", "b", 1, ended_at=2),)),
    "asks": lambda turn: msgspec.structs.replace(turn, records=(NewRecord("m", "receive", "m", 1),)),
    "gives up": lambda turn: msgspec.structs.replace(turn, records=(), cancelled=("m",)),
    "waits": lambda turn: msgspec.structs.replace(turn, records=(), suspends=True, version=1_000),
    "was cancelled": lambda turn: msgspec.structs.replace(turn, records=(), was_cancelled=True),
}


@pytest.mark.parametrize("second", _SAYS)
@pytest.mark.parametrize("first", _SAYS)
async def test_two_turns_of_a_flow_are_taken_in_their_order_whatever_else_comes_with_them(
    bench: FlowBench, begun: Begin, first: str, second: str
) -> None:
    alone, together, other = await begun(3)
    one_by_one = [
        (await bench.service.database.run_many(take_turns, [_SAYS[says](alone)]))[0] for says in (first, second)
    ]
    turns = [_SAYS["asks"](other), _SAYS[first](together), _SAYS["gives up"](other), _SAYS[second](together)]
    answers = await bench.service.database.run_many(take_turns, turns)
    assert [type(answers[place]) for place in (1, 3)] == [type(answer) for answer in one_by_one]
    assert [getattr(answers[place], "suspended", None) for place in (1, 3)] == [
        getattr(answer, "suspended", None) for answer in one_by_one
    ]
    known = [(await bench.service.flows.records(turn.job_id)).records for turn in (alone, together)]
    assert {record.key: record for record in known[0]} == {record.key: record for record in known[1]}


def _waiting(turn: Turn, version: int) -> Turn:
    """Return the turn of a flow that asks for a job, and waits for it."""
    step = msgspec.Raw(b'{"type": "note", "args": ["x"], "allow_failure": true}')
    asked = NewRecord("note", "run", "note", 1, step=step)
    return msgspec.structs.replace(turn, records=(asked,), suspends=True, version=version)


async def test_of_flows_that_wait_together_only_those_are_refused_that_were_stopped(
    bench: FlowBench, begun: Begin
) -> None:
    turns = await begun(3)
    flows = [await bench.service.flows.records(turn.job_id) for turn in turns]
    waiting = [_waiting(turn, flow.version) for turn, flow in zip(turns, flows, strict=True)]
    wrong = msgspec.Raw(b'{"type": "note", "args": 1}')
    waiting[0] = msgspec.structs.replace(
        waiting[0], records=(msgspec.structs.replace(waiting[0].records[0], step=wrong),)
    )
    await bench.service.workflows.cancel(flows[1].workflow_id, stop_active=True)
    first, second, third = await bench.service.database.run_many(take_turns, waiting)
    assert isinstance(first, FlowRecords)
    assert not first.suspended
    assert [record.key for record in first.records if record.error is not msgspec.UNSET] == ["note"]
    assert isinstance(second, Conflict)
    assert isinstance(third, FlowRecords)
    assert third.suspended


async def test_many_flows_are_recorded_with_as_many_statements_as_a_few(
    bench: FlowBench, begun: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to three rows are updated one by one, so that one flow cannot be the measure."""
    statements = 0

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal statements
            statements += 1
            return method(*arguments, **named)

        return call

    for transaction in (SqliteTransaction, PostgresTransaction):
        for name in ("execute", "execute_together", "insert_new_rows", "lock_jobs"):
            monkeypatch.setattr(transaction, name, counted(getattr(transaction, name)))

    async def number_for(turns: list[Turn]) -> int:
        nonlocal statements
        statements = 0
        results = await bench.service.database.run_many(take_turns, turns)
        assert all(isinstance(result, FlowRecords) for result in results)
        return statements

    many, few = await begun(10), await begun(4)
    assert await number_for(many) == await number_for(few)

    async def waiting(turns: list[Turn]) -> list[Turn]:
        return [_waiting(turn, (await bench.service.flows.records(turn.job_id)).version) for turn in turns]

    assert await number_for(await waiting(many)) == await number_for(await waiting(few))


@pytest.mark.parametrize("awaited", [False, True])
async def test_records_belong_to_flows_alone(bench: FlowBench, awaited: bool) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.run(bench.note, "x")

    await bench.start(order.s() if awaited else chain(bench.note.s("x")))
    if awaited:
        (job,) = await bench.fetch(worker_id="w1")
        await bench.run_job(job)
    (job,) = await bench.fetch(worker_id="one")
    assert job.type == "note"
    step, asks = NewRecord("a", "step", "a", 1, ended_at=2), NewRecord("b", "receive", "b", 1)
    said: list[dict[str, Any]] = [{"records": (step,)}, {"records": (asks,)}, {"records": (step, asks)}]
    said += [{"records": (step,), "suspends": True}, {"suspends": True}, {"was_cancelled": True}, {"restarts": True}]
    turns = [Turn(job.id, "one", job.attempt, job.started_at, **more) for more in said]
    for together in [*([turn] for turn in turns), turns, [turns[0], turns[0]]]:
        answers = await bench.service.database.run_many(take_turns, together)
        assert [type(answer) for answer in answers] == [InvalidRequest] * len(together)
        assert all("runs no flow" in str(answer) for answer in answers)
    assert (await bench.service.flows.records(job.id)).records == []


async def test_records_and_messages_are_deleted_with_the_workflow(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.run(bench.note, "a")
        await flow.receive("m")

    await bench.start(order.s(), expiration_delay=1)
    await bench.send("m", 1)
    await bench.send("m", 2)
    await bench.finish()
    await bench.run_all_due()
    bench.clock.advance(100)
    await bench.service.maintenance.prune()
    with pytest.raises(NotFound):
        await bench.look()
    counts = [await bench.run(_count, table) for table in ("flow_records", "flow_messages")]
    assert counts == [0, 0]


def _count(tx: Any, tables: Any) -> list[int]:
    return [tx.execute(f"SELECT count(*) FROM {table}")[0][0] for table in tables]


async def test_the_outcome_of_a_flow_that_waits_is_known_to_the_server(bench: FlowBench) -> None:
    assert issubclass(Reported, BaseException)
    assert not issubclass(Reported, Exception)


async def test_a_flow_is_woken_although_a_heartbeat_holds_its_job(bench: FlowBench, url: str) -> None:
    @bench.app.job("slow", queue="slow")
    async def slow() -> None: ...

    @bench.app.flow("order")
    async def order(flow: Flow) -> str:
        await flow.run(slow)
        return "done"

    await bench.start(order.s())
    await bench.work()
    (job,) = await bench.fetch("slow")
    if not url.startswith("postgresql"):
        await bench.ack(job)
    else:
        at = parse_postgres_url(url)
        async with await psycopg.AsyncConnection.connect(at.conninfo) as other:
            held = psycopg.sql.SQL("SELECT 1 FROM {} WHERE suspension = 'flow' FOR UPDATE")
            await other.execute(held.format(psycopg.sql.Identifier(at.schema, "jobs")))
            acknowledging = asyncio.create_task(bench.ack(job))
            await asyncio.wait([acknowledging], timeout=0.2)  # if it does not wait for the row, it has ended by then
            await other.commit()
            await acknowledging
    assert await result(bench) == "done"
