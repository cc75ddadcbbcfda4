"""Flows that begin anew in the same run: what they have done is forgotten, and nothing that waits for them is lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ojster import Flow, Graph, JobFailed, chain, result_of
from ojster.core.errors import InvalidRequest, NotFound, PayloadTooLarge
from ojster.core.job import Job
from ojster.core.shared_value import SHARED_FROM
from ojster.handlers.flow_export import export_flow
from ojster.jobs import history
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.interventions import DeadLetterRetry
from ojster.testing import areplay
from ojster.workflows.broadcast import Broadcast
from ojster.workflows.flow import NewRecord, Turn
from ojster.workflows.run import flow_restarts
from ojster.workflows.run.fork import Fork
from tests.flows.driver import FlowBench
from tests.flows.test_flows import app, bench, result

__all__ = ["app", "bench"]

pytestmark = pytest.mark.anyio


class Account(msgspec.Struct):
    balance: int
    rounds: int = 0


def declare_account(bench: FlowBench, rounds: int) -> Any:
    @bench.app.flow("account")
    async def account(flow: Flow, account: Account) -> list[Any]:
        if account.rounds == rounds:
            return [account.balance, account.rounds]
        await flow.run(bench.note, f"round {account.rounds}")
        account.balance += await flow.receive("booking", int)
        await flow.step("local", bench.done.append, "local")
        flow.publish(account.balance)
        return await flow.restart(Account(account.balance, rounds=account.rounds + 1))

    return account


async def test_a_flow_begins_anew_with_other_arguments_and_keeps_its_messages(bench: FlowBench) -> None:
    await bench.start(declare_account(bench, 4).s(Account(100)))
    for number in range(4):
        await bench.send("booking", number)
    assert await result(bench) == [106, 4]
    assert bench.done == [text for number in range(4) for text in (f"round {number}", "local")]
    assert await bench.service.flows.published(bench.id) == 106


@pytest.mark.parametrize("when", ["before", "after", "lost"])
async def test_it_does_so_once_wherever_its_process_dies(bench: FlowBench, when: str) -> None:
    account = declare_account(bench, 2)
    for number in range(12):
        bench.calls.count = 0
        bench.when = lambda call, number=number: when if call == number else "never"  # type: ignore[misc]
        await bench.start(account.s(Account(100)))
        await bench.send("booking", 1)
        await bench.send("booking", 2)
        assert await result(bench) == [103, 2], number


async def test_what_a_flow_leaves_behind_does_not_grow(bench: FlowBench) -> None:
    @bench.app.flow("loop")
    async def loop(flow: Flow, number: int) -> int:
        await asyncio.gather(*(flow.run(bench.note, str(place)) for place in range(3)))
        await flow.run(chain(bench.note.s("x"), bench.note.s("y")))
        if number == 0:
            return 7
        return await flow.restart(number - 1)

    await bench.start(loop.s(0))
    assert await result(bench) == 7
    once = await bench.look()
    await bench.start(loop.s(5))
    assert await result(bench) == 7
    often = await bench.look()
    assert [step.path for step in often.walk()] == [step.path for step in once.walk()]
    assert (often.jobs_total, often.steps_total) == (once.jobs_total, once.steps_total)
    assert often.metadata["completed_count"] == once.metadata["completed_count"]
    assert bench.done.count("x") == 7


async def test_what_a_flow_still_waits_for_is_cancelled(bench: FlowBench) -> None:
    @bench.app.flow("hasty")
    async def hasty(flow: Flow, number: int) -> int:
        if number == 0:
            return 7
        other = asyncio.ensure_future(flow.run(bench.note.using(queue="slow"), "never"))
        await flow.run(bench.note, "one")
        assert not other.done()
        return await flow.restart(0)

    await bench.start(hasty.s(1))
    assert await result(bench) == 7
    assert bench.done == ["one"]


async def test_updates_without_an_answer_come_again_and_answers_stay(bench: FlowBench) -> None:
    @bench.app.flow("basket")
    async def basket(flow: Flow, items: list[str]) -> list[str]:
        flow.state = items
        await flow.receive("next")
        if len(flow.state) > 1:
            return list(flow.state)
        return await flow.restart(flow.state)

    @basket.update
    async def put(flow: Flow, item: str) -> int:
        if item == "slow" and len(flow.state) < 2:
            await flow.receive("hurry")
        flow.state.append(item)
        return len(flow.state)

    await bench.start(basket.s([]))
    await bench.work()
    first = await bench.service.flows.update(bench.id, "put", ["tea"], idempotency_key="one")
    await bench.work()
    slow = await bench.service.flows.update(bench.id, "put", ["slow"])
    await bench.work()
    await bench.send("next", 1)
    await bench.work()
    assert (await bench.service.flows.find_update(bench.id, str(first.id))).result == msgspec.Raw(b"1")
    assert (await bench.service.flows.find_update(bench.id, str(slow.id))).state == "waiting"
    again = await bench.service.flows.update(bench.id, "put", ["tea"], idempotency_key="one")
    assert again.id == first.id
    await bench.send("hurry", None)
    await bench.work()
    await bench.send("next", 2)
    assert await result(bench) == ["tea", "slow"]


async def test_the_handler_of_an_update_cannot_restart_its_flow(bench: FlowBench) -> None:
    @bench.app.flow("basket")
    async def basket(flow: Flow, rounds: int) -> int:
        await flow.receive("end")
        return rounds

    @basket.update
    async def again(flow: Flow) -> None:
        await flow.restart(1)

    await bench.start(basket.s(0))
    await bench.work()
    asked = await bench.service.flows.update(bench.id, "again", [])
    await bench.work()
    answer = await bench.service.flows.find_update(bench.id, str(asked.id))
    assert (answer.state, b"Let its function do it" in bytes(answer.error or b"")) == ("failed", True)
    await bench.send("end", None)
    assert await result(bench) == 0


async def test_a_run_whose_next_step_is_a_restart_is_replayed_to_there(bench: FlowBench, tmp_path: Path) -> None:
    @bench.app.flow("looping")
    async def looping(flow: Flow, number: int) -> int:
        await flow.receive("next")
        return await flow.restart(number + 1)

    await bench.start(looping.s(0))
    await bench.work()
    await bench.send("next", None)  # it has come, and no worker has run the flow yet
    file = tmp_path / "run.json"
    file.write_bytes(msgspec.json.encode(await export_flow(bench.service, bench.id)))
    assert await areplay(looping, file) is None


async def test_the_last_received_messages_are_remembered(bench: FlowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_restarts, "MAX_REMEMBERED", 2)

    @bench.app.flow("counter")
    async def counter(flow: Flow, got: list[int]) -> list[int]:
        got = [*got, await flow.receive("a", int)]
        if len(got) < 5:
            await flow.restart(got)
        return got

    await bench.start(counter.s([]))
    for number in (1, 2, 3, 3, 2, 1):  # when the third has come, the first is no longer known
        await bench.send("a", number, idempotency_key=str(number))
        await bench.work()
    assert (await bench.look()).state == "running"
    await bench.send("a", 9)
    assert await result(bench) == [1, 2, 3, 1, 9]


async def test_broadcasts_are_received_once_by_all_rounds_and_by_a_fork_again(bench: FlowBench) -> None:
    fails = True

    @bench.app.flow("payments")
    async def payments(flow: Flow, got: list[int]) -> list[int]:
        got = [*got, await flow.receive("payment", int, key="7")]
        if len(got) == 3 and fails:
            raise ValueError("no")
        if len(got) == 3:
            return got
        await flow.run(bench.note, "between")
        return await flow.restart(got)

    await bench.start(payments.s([]))
    await bench.work()
    for number in range(3):
        await bench.service.flows.broadcast(Broadcast("payment", "7", msgspec.json.encode(number)))
        await bench.work()
    assert (await bench.finish()).state == "failed"
    fails = False
    await bench.service.workflows.retry(bench.id)
    assert await result(bench) == [0, 1, 2]
    first = bench.id
    bench.id = (await bench.service.workflows.fork(Fork(first, "payment"))).id
    assert await result(bench) == [0, 1, 2]
    bench.id = (await bench.service.workflows.fork(Fork(first, "payment", result=b"9"))).id
    assert await result(bench) == [0, 1, 9]


async def test_a_cancellation_is_not_lost(bench: FlowBench) -> None:
    @bench.app.flow("loop")
    async def loop(flow: Flow, number: int) -> None:
        try:
            await flow.receive("next")
        except asyncio.CancelledError:
            await flow.run(bench.note, f"clean up {number}")
            raise
        await flow.restart(number + 1)

    await bench.start(loop.s(0))
    await bench.send("next", 1)
    await bench.work()
    await bench.service.workflows.cancel(bench.id)
    assert (await bench.finish()).state == "cancelled"
    assert bench.done == ["clean up 1"]


async def test_the_history_of_its_job_does_not_grow(bench: FlowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_HISTORY_ENTRIES", 10)

    @bench.app.flow("loop")
    async def loop(flow: Flow, number: int) -> int:
        await flow.receive("next")
        if number == 20:
            return number
        return await flow.restart(number + 1)

    def stored(tx: Any, _: Any) -> list[int]:
        return [int(tx.execute("SELECT count(*) FROM job_history")[0][0])]

    await bench.start(loop.s(0))
    await bench.work()
    (job_id,) = [step.job_id for step in (await bench.look()).walk() if step.job_id]
    await bench.service.jobs.purge_history(job_id)
    for _ in range(20):
        bench.clock.advance(1)
        await bench.send("next", 1)
        await bench.work()
    (count,) = await bench.service.database.run_many(stored, [0])
    assert 10 <= count < 20
    entries = await bench.service.jobs.history(job_id)
    assert len(entries) == 10
    assert entries[-1].at == bench.clock.now


async def test_a_retried_round_appends_all_that_it_has_to_say(bench: FlowBench) -> None:
    broken = [True]

    @bench.app.job("check", retry=1)
    async def check() -> None:
        bench.clock.advance(1)
        if broken:
            raise ValueError("broken")

    @bench.app.flow("speak", retry=1)
    async def speak(flow: Flow, number: int) -> None:
        words = flow.stream("words", str)
        if number < 2:
            words.append(f"{number} a")
            words.append(f"{number} b")
            await flow.restart(number + 1)
        words.append("last a")
        await flow.run(check)
        words.append("last b")
        words.append("last c")

    await bench.start(speak.s(0))
    assert (await bench.finish()).state == "failed"
    broken.clear()
    await bench.service.workflows.retry(bench.id)
    assert (await bench.finish()).state == "completed"
    said, _ = await bench.stream("words")
    assert said == ["0 a", "0 b", "1 a", "1 b", "last a", "last b", "last c"]


async def test_a_restart_ends_a_cancellation_that_the_function_has_seen(bench: FlowBench) -> None:
    rounds: list[int] = []

    @bench.app.flow("stubborn")
    async def stubborn(flow: Flow, number: int) -> int:
        rounds.append(number)
        assert len(rounds) < 10
        try:
            return await flow.receive("end", int)
        except asyncio.CancelledError:
            pass
        return await flow.restart(number + 1)

    await bench.start(stubborn.s(0))
    await bench.work()
    await bench.service.workflows.cancel(bench.id)
    await bench.work()
    assert set(rounds) == {0, 1}
    await bench.send("end", 7)
    await bench.finish()
    assert set(rounds) == {0, 1}


async def test_each_round_has_its_own_random_numbers_and_its_time_goes_on(bench: FlowBench) -> None:
    @bench.app.flow("dice")
    async def dice(flow: Flow, drawn: list[float], times: list[float]) -> list[Any]:
        drawn, times = [*drawn, flow.random.random()], [*times, flow.now.timestamp()]
        flow.publish(len(drawn))
        if len(drawn) == 3:
            return [drawn, times]
        await flow.sleep(10)
        return await flow.restart(drawn, times=times)

    await bench.start(dice.s([], []))
    drawn, times = await result(bench)
    assert len(set(drawn)) == 3
    assert times[1] - times[0] >= 10
    assert times[2] - times[1] >= 10


async def test_a_fork_from_the_start_begins_with_the_last_arguments_and_a_failed_round_is_retried(
    bench: FlowBench,
) -> None:
    fails = True

    @bench.app.flow("loop")
    async def loop(flow: Flow, number: int) -> int:
        await flow.run(bench.note, f"round {number}")
        if number == 1 and fails:
            raise ValueError("no")
        if number < 2:
            await flow.restart(number + 1)
        return number

    await bench.start(loop.s(0))
    assert (await bench.finish()).state == "failed"
    bench.done.clear()
    fails = False
    forked = await bench.service.workflows.fork(Fork(bench.id))
    await bench.service.workflows.retry(bench.id)
    assert await result(bench) == 2
    bench.id = forked.id
    assert await result(bench) == 2
    assert sorted(bench.done) == ["round 1", "round 2", "round 2"]


async def test_wrong_arguments_and_calls_are_errors_of_the_function(bench: FlowBench) -> None:
    wrong: list[str] = []

    @bench.app.flow("wrong")
    async def wrongly(flow: Flow, number: int) -> int:
        calls: list[Any] = [flow.restart, lambda: flow.restart(1, 2), lambda: flow.restart(object())]
        for call in calls:
            try:
                await call()
            except TypeError as error:
                wrong.append(str(error))
        return number

    await bench.start(wrongly.s(7))
    assert await result(bench) == 7
    assert len(wrong) == 3


async def test_a_restart_without_arguments_or_with_too_large_ones_is_refused(bench: FlowBench) -> None:
    @bench.app.flow("plain")
    async def plain(flow: Flow) -> None:
        await flow.receive("x")

    await bench.start(plain.s())
    (job,) = await bench.fetch()

    async def turn(*records: NewRecord) -> None:
        await bench.service.flows.turn(Turn(job.id, "w1", job.attempt, records=records, restarts=True))

    with pytest.raises(InvalidRequest, match="the arguments as its 'result'"):
        await turn()
    with pytest.raises(InvalidRequest, match="the arguments as its 'result'"):
        await turn(NewRecord("!begin", "begin", "", 1, result=msgspec.Raw(b"{}")))
    large = msgspec.Raw(b'["%b"]' % (b"x" * bench.service.database.settings.largest_job))
    with pytest.raises(PayloadTooLarge):
        await turn(NewRecord("!begin", "begin", "", 1, result=large))


@pytest.fixture
async def former(bench: FlowBench) -> Job:
    """A dead letter of an earlier round of a flow that has ended, whose arguments have a large value that it shared."""

    @bench.app.job("make")
    async def make() -> str:
        return "x" * SHARED_FROM

    @bench.app.job("fail", retry=1)
    async def fail(text: str) -> None:
        raise ValueError

    @bench.app.flow("rounds")
    async def rounds(flow: Flow, left: int) -> None:
        if left:
            with suppress(JobFailed):
                await flow.run(Graph().add("make", make.s()).add("fail", fail.s(result_of("make")), after="make"))
            await flow.restart(left - 1)

    await bench.start(rounds.s(1), expiration_delay=60)
    assert (await bench.finish()).state == "completed"
    (job,) = (await bench.service.jobs.select(JobFilter(type="fail"))).jobs
    return job


async def test_a_job_of_an_earlier_round_is_changed_and_runs_again(bench: FlowBench, former: Job) -> None:
    await bench.service.jobs.retry_dead(former.id, DeadLetterRetry(former.id, meta={"why": "again"}))
    job = await bench.fetch_one()
    assert (job.id, job.args, job.meta["why"]) == (former.id, ["x" * SHARED_FROM], "again")


async def test_a_job_of_an_earlier_round_that_runs_again_outlives_its_flow(bench: FlowBench, former: Job) -> None:
    await bench.service.jobs.retry_dead(former.id)
    bench.clock.advance(3600)
    await bench.service.maintenance.prune()
    with pytest.raises(NotFound):
        await bench.look()
    job = await bench.fetch_one()
    assert (job.id, job.args) == (former.id, ["x" * SHARED_FROM])
