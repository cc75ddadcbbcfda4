"""Eager mode: jobs run where they are enqueued, before the call returns, as a worker would run them."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from contextvars import copy_context
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from ojster import App, Depends, Flow, InvalidRequest, JobFailed, Retry, chain, current_job, gate, wait
from ojster.api import eager
from ojster.api.eager import _FOLLOWED, _REPORTS, _Turns
from ojster.cli.main import cli
from ojster.core.calls import Calls, calls_of
from ojster.jobs.bulk import Action
from ojster.jobs.filter_walk import JobFilter
from ojster.service import Service
from ojster.testing import JobTester
from tests.waiting import PATIENCE

app = App("postgresql://nobody@nowhere.test/jobs")
mail = App()
done: list[tuple[str, int]] = []


def note(name: str) -> None:
    done.append((name, threading.get_ident()))


def session() -> Iterator[str]:
    try:
        yield "session"
    finally:
        note("closed")


@app.job
def double(number: int) -> int:
    note("double")
    return 2 * number


@app.job(retry=Retry(max_attempts=3, initial_interval=3600))
def flaky(session: str = Depends(session)) -> int:
    if current_job().attempt < 3:
        raise ConnectionError("try again")
    letter.enqueue()
    return double.enqueue(4).result(timeout=PATIENCE)


@app.job(retry=1)
async def broken() -> None:
    raise ValueError("no such address")


@mail.job
def letter() -> None:
    note("letter")


@app.cron("* * * * *")
@app.job
def every_minute() -> None:
    note("cron")


@app.flow()
async def order(flow: Flow, number: int) -> list[object]:
    doubled = await flow.run(double, number)
    await flow.sleep(86_400)
    return [doubled, await flow.receive("paid")]


@app.flow()
async def count(flow: Flow) -> int:
    numbers = flow.stream("numbers", int)
    for number in range(3):
        numbers.append(number)
        await flow.sleep(86_400)
    return await flow.receive("paid", int)


@count.update
async def add(flow: Flow, number: int) -> int:
    await flow.sleep(3_600)
    return number + await flow.run(double.using(delay=3_600), number)


app.include(mail)


@pytest.fixture(autouse=True)
def nothing_is_done() -> None:
    done.clear()


def test_jobs_run_in_the_thread_of_the_caller_with_retries_delays_results_and_errors() -> None:
    with app.eager():
        assert double.enqueue(21).refresh().state == "completed"
        assert flaky.enqueue().result(timeout=PATIENCE) == 8
        with app.eager():  # a block in a block changes nothing
            assert double.using(delay=86_400).enqueue(3).result(timeout=PATIENCE) == 6
        failed = broken.enqueue()  # raises nothing, as with a worker
        with pytest.raises(JobFailed, match="no such address"):
            failed.result()
    names = ["double", "closed", "closed", "double", "closed", "letter", "double"]
    assert sorted(done) == sorted((name, threading.get_ident()) for name in names)
    assert (app.url, app._service, app.is_eager) == ("postgresql://nobody@nowhere.test/jobs", None, False)


def test_workflows_and_flows_run_to_their_end_when_somebody_waits() -> None:
    with app.eager():
        run = app.start(chain(double.s(1), wait(delay=3600), double.s(2)))
        assert run.refresh().state == "running"
        assert run.result(timeout=PATIENCE) == 4
        flow = order.start(5)
        flow.send("paid", "yes")
        assert flow.result(timeout=PATIENCE) == [10, "yes"]
        held = app.start(chain(gate("ok"), double.s(3)))
        with pytest.raises(TimeoutError):
            held.result(timeout=0)
        held.approve("ok")
        assert held.refresh().state == "completed"


def test_time_jumps_for_whoever_follows_a_run_or_asks_it() -> None:
    with app.eager():
        assert list(islice(count.start().stream("numbers", int), 3)) == [0, 1, 2]
        flow = count.start()
        assert flow.update(add, 7) == 21
        flow.send("paid", 9)
        watched = list(flow.watch())
        assert (watched[0].state, watched[-1].state, watched[-1].finished) == ("running", "completed", True)
        assert flow.result(timeout=PATIENCE) == 9


def test_what_was_due_before_somebody_waits_runs_before_the_clock_jumps_on() -> None:
    with app.eager():
        steps = chain(gate("ok", timeout=60).set(fallback=double.using(expires_in=60).s(4)), wait(delay=86_400))
        run = app.start(steps)
        mode = app._eager
        assert mode is not None
        mode._clock.move_to(mode._clock() + 61_000_000)  # as if the program took so long
        run.result(timeout=PATIENCE)
        assert [step.state for step in run.info.walk() if step.type == "double"] == ["completed"]


def test_a_thread_of_a_handler_belongs_to_its_run_with_its_context_and_is_told_so_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its context it would wait for the run, and the run for it."""
    monkeypatch.setattr(eager, "LONG_WAIT_SECONDS", 0.0)
    local = App(eager=True)
    ran: list[str] = []
    waits = threading.Event()

    def warn(text: str) -> None:
        ran.append(text)
        waits.set()

    monkeypatch.setattr(eager.log, "warning", warn)

    @local.job
    def inner(name: str) -> None:
        ran.append(name)

    @local.job
    def outer() -> None:
        def enqueue(name: str) -> None:
            inner.enqueue(name)

        own = threading.Thread(target=copy_context().run, args=(enqueue, "with"))
        own.start()
        own.join(PATIENCE)
        threading.Thread(target=enqueue, args=("without",)).start()
        assert waits.wait(PATIENCE)

    with local:
        outer.enqueue()
        while "without" not in ran:
            inner.enqueue("waits for its turn")
    assert ran[0].startswith("A call in eager mode waits")
    assert "copy_context().run" in ran[0]
    assert {"with", "without"} <= set(ran)


def test_each_thread_runs_its_own_jobs_and_can_be_waited_for_in_another() -> None:
    local = App(eager=True)
    seen: set[tuple[int, int]] = set()

    @local.job
    def where(thread: int) -> int:
        seen.add((thread, threading.get_ident()))
        return thread

    def enqueue() -> None:
        where.enqueue_many([(threading.get_ident(),)] * 5)

    threads = [threading.Thread(target=enqueue) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    local.close()
    assert seen == {(thread.ident, thread.ident) for thread in threads}


def test_a_turn_that_nobody_waits_for_any_more_is_passed_on() -> None:
    async def main() -> None:
        turns, order = _Turns(), []

        async def take(name: str) -> None:
            async with turns:
                order.append(name)

        async with turns:
            first, second = asyncio.create_task(take("first")), asyncio.create_task(take("second"))
            await asyncio.sleep(0)
            first.cancel()
        await second
        async with turns:
            order.append("third")
        assert (order, first.cancelled()) == (["second", "third"], True)

    asyncio.run(main())


@pytest.mark.anyio
async def test_coroutines_run_in_the_loop_of_the_caller_also_after_a_disconnection() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    local = App("http://server.test", tenant="acme")

    @local.job
    async def here() -> str:
        loops.append(asyncio.get_running_loop())
        return current_job().job.tenant or ""

    async with local.eager():
        handles = await asyncio.gather(*(here.aenqueue() for _ in range(3)))
        assert [await handle.aresult() for handle in handles] == ["acme"] * 3
        await local.aclose()  # such as at the end of the lifespan of a web application
        assert (await (await here.aenqueue()).aresult()) == "acme"
        assert await here.aenqueue_in(object()) is not None  # there is no transaction to wait for
        await local.aclose()
    assert loops == [asyncio.get_running_loop()] * 5
    assert local.url == "http://server.test"


def test_the_environment_and_an_option_make_an_application_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OJSTER_EAGER", "1")
    local = App("postgresql://nobody@nowhere.test/jobs")

    @local.job
    def one() -> int:
        return 1

    assert one.enqueue().result(timeout=PATIENCE) == 1
    assert one.enqueue_in(object()).refresh().state == "completed"
    with JobTester(local) as jobs:  # a tester comes first
        assert one.enqueue().state == "available"
        assert jobs.drain().attempts == 1
    assert local.is_eager
    local.close()
    assert App(eager=False).is_eager is False
    monkeypatch.setenv("OJSTER_EAGER", "maybe")
    with pytest.raises(InvalidRequest, match="is 1 or 0, not 'maybe'"):
        App()


def test_what_would_have_no_effect_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with JobTester(app), pytest.raises(RuntimeError, match="Use its eager"):
        app.eager().__enter__()
    monkeypatch.setenv("OJSTER_EAGER", "1")
    (tmp_path / "eager_shop.py").write_text("from ojster import App\napp = App()\napp.job('a')(lambda: None)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ended = CliRunner().invoke(cli, ["worker", "eager_shop:app", "--until-empty"])
    assert (ended.exit_code, "runs its jobs itself" in ended.output) == (2, True)


def test_cron_jobs_do_not_run() -> None:
    with app.eager():
        double.using(delay=86_400).enqueue(1)
        double.enqueue(1)
        names = [cron.name for cron in asyncio.run(app.service().schedules.all())]
    assert (names, {name for name, _ in done}) == ([], {"double"})


MAKE_NOTHING_AVAILABLE = {
    "agents": {"account"},
    "audit": {"record"},
    "bulk": {"answer_once"},  # of calls that are followed themselves
    "collections": {"add", "change", "create", "delete", "items", "remove"},
    "definitions": {"all", "create", "delete", "find", "update"},
    "events": {"delete_channel", "last", "newest", "put_channel", "read_on", "select"},
    "files": {"create", "delete", "keep", "prune", "read", "write"},
    "fleet": {"beat", "direct", "find", "give_time_to_report", "jobs_of"},
    "job_types": {"announce", "delete", "put"},
    "jobs": {
        *(
            "add_to_log",
            "adjust_priority",
            "clear_checkpoint",
            "count",
            "delete_dead",
            "find",
            "history",
            "preparation",
        ),
        *("prepare", "prepare_body", "purge_history", "report", "results", "save_checkpoint", "select", "wait_for"),
        *("fetch", "acknowledge_and_fetch"),  # a worker makes them, which goes on by itself
    },
    "maintenance": {"go_on", "prune", "retain_by_walks", "stop"},
    "notes": {"add_to_job", "add_to_workflow"},
    "push": {"delete", "note_trouble", "pause", "put", "recover", "resume", "rotate", "stored"},  # servers send
    "queues": {"create", "pause", "preview"},
    "rate_limits": {"page"},
    "schedules": {"page", "register", "switch", "unregister"},  # cron jobs do not run
    "schemas": {"delete", "delete_by_uri", "register", "versions"},
    "tokens": {"begin_session", "create", "revoke", "rotate"},
    "webhooks": {"change", "delete", "retry", "rotate", "stored", "subscribe"},  # servers deliver
    "workflow_bulk": {"delete", "hold"},
    "workflows": {"change_properties", "check", "count", "hold", "prepare", "select", "show"},
    "flows": {"admit", "append", "records", "turn", "update"},  # ``update`` is followed in another way
}


def test_each_call_that_can_make_jobs_available_is_followed() -> None:
    for name, part in vars(Service).items():
        if not hasattr(part, "func"):
            continue
        kind = inspect.get_annotations(part.func, eval_str=True)["return"]
        declaring = [base for base in kind.__mro__ if issubclass(base, Calls)]
        reading = {call.name for base in declaring for call in calls_of(base) if call.call.method == "GET"}
        methods = {method for method, _ in inspect.getmembers(kind, inspect.iscoroutinefunction) if method[0] != "_"}
        followed = {*_FOLLOWED.get(name, ()), *_REPORTS.get(name, ())}
        assert followed <= methods
        assert methods - reading - {"make"} - followed == MAKE_NOTHING_AVAILABLE.get(name, set()), name


def test_jobs_run_that_operators_make_available() -> None:
    local = App(eager=True)
    fails = True

    @local.job(retry=1)
    def once(number: int) -> int:
        if fails:
            raise ValueError("no")
        return number

    async def main() -> list[str]:
        nonlocal fails
        service = local.service()
        failed = await once.aenqueue(1)
        fails = False
        await service.queues.pause("default")
        held = await once.aenqueue(2)
        states = [(await held.arefresh()).state]
        await service.queues.resume("default")
        await service.bulk.sweep_part(Action.RETRY, JobFilter(states=("discarded",)), None)
        return [*states, (await held.arefresh()).state, (await failed.arefresh()).state]

    assert asyncio.run(main()) == ["available", "completed", "completed"]
    local.close()


def test_a_task_that_a_handler_has_started_may_enqueue_when_the_run_is_over() -> None:
    local = App(eager=True)
    tasks: list[asyncio.Task[str]] = []

    async def later(begins: asyncio.Event) -> str:
        await begins.wait()
        return (await (await child.aenqueue(3)).arefresh()).state

    @local.job
    async def child(number: int) -> int:
        return number

    async def main() -> str:
        begins = asyncio.Event()

        @local.job
        async def parent() -> None:
            tasks.append(asyncio.create_task(later(begins)))

        await parent.aenqueue()
        begins.set()
        return await asyncio.wait_for(tasks[0], PATIENCE)

    assert asyncio.run(main()) == "completed"
    local.close()


def test_a_jump_of_the_clock_keeps_results() -> None:
    with app.eager():
        kept = double.enqueue(1)
        double.using(delay=100 * 86_400).enqueue(2)
        asyncio.run(app.service().maintenance.prune())
        assert kept.result(timeout=PATIENCE) == 2


def test_blocks_that_overlap_share_the_mode_until_the_last_one_ends() -> None:
    first, second = app.eager(), app.eager()
    with second:
        with first, app.eager():
            early = double.enqueue(1)
        assert (double.enqueue(2).result(timeout=PATIENCE), early.refresh().state) == (4, "completed")
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert double.enqueue(3).result(timeout=PATIENCE) == 6
    second.__exit__()
    assert (app.url, app._service, app.is_eager) == ("postgresql://nobody@nowhere.test/jobs", None, False)
