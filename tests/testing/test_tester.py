"""``ojster.testing``: what applications test their jobs with."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pydantic
import pytest
from _pytest.outcomes import OutcomeException
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import deferred

from ojster import (
    App,
    Depends,
    Flow,
    Gzip,
    JobContext,
    JobFailed,
    JobHandle,
    Retry,
    UpdateFailed,
    chain,
    current_job,
    gate,
)
from ojster.api import in_memory
from ojster.api.calling_thread import CallersLoop
from ojster.testing import FakeContext, JobTester, tester
from ojster.testing.strategies import arguments_of, failures, json_values
from tests.time_limits import exhaust_time
from tests.waiting import PATIENCE, until

app = App("postgresql://nobody@localhost:1/nowhere")
done: list[str] = []


@app.job("mail.send", queue="mail", retry=Retry(max_attempts=5, initial_interval=600, jitter=False))
def send(to: str, on: date | None = None) -> str:
    if current_job().attempt < 3 and to == "flaky":
        raise ConnectionError("try again")
    if to == "nobody":
        raise ValueError("no such address")
    done.append(to)
    return f"sent to {to}"


@app.job("mail.many")
async def send_many(*names: str) -> None:
    for name in names:
        await send.aenqueue(name)


@app.job("endless")
async def endless() -> None:
    await endless.aenqueue()


@app.cron("0 5 * * *")
@app.job("nightly")
def nightly() -> None:
    done.append(f"{current_job().job.created_at}")


class Order(pydantic.BaseModel):
    number: int


def _interrupt(reason: str) -> None:
    raise KeyboardInterrupt(reason)


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


@pytest.fixture
def jobs() -> Iterator[JobTester]:
    with JobTester(app, at=datetime(2026, 12, 1, 10, 0, tzinfo=UTC)) as tester:
        yield tester


def test_what_was_enqueued_is_asserted_by_type_arguments_and_options(jobs: JobTester) -> None:
    send.using(priority=5).enqueue("ada", date(2026, 12, 1))
    send.enqueue("grace")
    assert jobs.assert_enqueued(send, "ada", date(2026, 12, 1), priority=5, queue="mail").args == ["ada", "2026-12-01"]
    jobs.assert_enqueued("mail.send", count=2)
    jobs.refute_enqueued(send, "joan")
    jobs.refute_enqueued("mail.many")
    with pytest.raises(AssertionError, match=r"Not enqueued: mail.send\('joan'\).*Enqueued: mail.send\('ada', '2026"):
        jobs.assert_enqueued(send, "joan")
    with pytest.raises(AssertionError, match=r"Enqueued 2 times, not 3: mail\.send"):
        jobs.assert_enqueued(send, count=3)
    with pytest.raises(AssertionError, match=r"Not enqueued: nightly\. Nothing of this type.*other types: mail.send"):
        jobs.assert_enqueued(nightly)
    with pytest.raises(AssertionError, match=r"Enqueued 1 times: mail.send\('grace'\)"):
        jobs.refute_enqueued(send, "grace")
    assert done == []


def test_arguments_are_asserted_by_place_or_by_name(jobs: JobTester) -> None:
    send.enqueue("ada")
    send.enqueue(to="grace", on=date(2026, 12, 1))
    jobs.assert_enqueued(send, to="ada", queue="mail")
    jobs.assert_enqueued(send, "ada", None)
    jobs.assert_enqueued("mail.send", "grace", on=date(2026, 12, 1))
    jobs.refute_enqueued(send, to="grace")
    with pytest.raises(AssertionError, match=r"Not enqueued: mail.send\('joan', on=None\) priority=3\."):
        jobs.assert_enqueued(send, "joan", on=None, priority=3)


@pytest.mark.parametrize(
    ("type", "args", "named", "said"),
    [
        (send, ("ada",), {"queu": "mail"}, r"mail.send: .*'queu'.* Conditions beside arguments are count, meta, prio"),
        (send, ("ada", None, 3), {}, "mail.send: too many positional arguments"),
        ("unknown", (), {"queu": "mail"}, "unknown: unexpected argument 'queu'"),
        (print, ("ada",), {}, "<built-in function print> is no job type. Pass the name of the type"),
    ],
)
def test_what_no_job_could_match_is_refused(
    jobs: JobTester, type: object, args: tuple[object, ...], named: dict[str, object], said: str
) -> None:
    for check in (jobs.assert_enqueued, jobs.refute_enqueued):
        with pytest.raises(TypeError, match=said):
            check(type, *args, **named)


def test_plain_functions_run_in_the_thread_of_the_test() -> None:
    local, mail = App("sqlite:///unused.db"), App()
    threads: list[tuple[str, int]] = []

    def note(name: str) -> None:
        threads.append((name, threading.get_ident()))

    def session() -> Iterator[str]:
        note("opened")
        yield "session"
        note("closed")

    @local.job("plain")
    def plain() -> None:
        note("plain")
        greet.enqueue()

    @local.job("apart", process=True)
    def apart() -> None:
        note("apart")

    @local.job("injected")
    def injected(session: str = Depends(session)) -> None:
        note(session)

    @local.job("asynchronous")
    async def asynchronous(session: str = Depends(session)) -> None: ...

    @mail.job("greet")
    def greet() -> None:
        note("greet")

    local.include(mail)
    with JobTester(local) as jobs:
        for job in (plain, apart, injected, asynchronous):
            job.enqueue()
        jobs.drain(concurrency=3)
        with jobs.eager():
            greet.enqueue()
            plain.enqueue()
    names = ["apart", "closed", "closed", "greet", "greet", "greet", "opened", "opened", "plain", "plain", "session"]
    assert sorted(threads) == [(name, threading.get_ident()) for name in names]


def test_each_thread_that_enqueues_eagerly_runs_its_own_jobs() -> None:
    local = App("sqlite:///unused.db")
    threads: list[int] = []

    @local.job("note")
    def note() -> None:
        threads.append(threading.get_ident())

    with JobTester(local) as jobs, jobs.eager():
        thread = threading.Thread(target=note.enqueue)
        thread.start()
        thread.join()
    assert threads == [thread.ident]


def test_a_handler_that_waits_for_another_job_lets_it_run() -> None:
    local = App("sqlite:///unused.db")
    handles: list[JobHandle[int]] = []

    @local.job("outer")
    def outer() -> int:
        return handles[0].result() + 1

    @local.job("inner")
    def inner() -> int:
        return 1

    with JobTester(local) as jobs:
        handle = outer.enqueue()
        handles.append(inner.enqueue())
        jobs.drain(concurrency=2)
        assert handle.result() == 2


def test_a_handler_beyond_its_timeout_ends_in_the_test_and_its_dependency_is_closed() -> None:
    local = App("sqlite:///unused.db")
    is_stopped, is_closed = threading.Event(), threading.Event()

    def session() -> Iterator[None]:
        try:
            yield
        finally:
            is_closed.set()

    @local.job("long", timeout=2 * PATIENCE, retry=1)
    def long(context: JobContext, session: None = Depends(session)) -> None:
        exhaust_time(context)
        if context.wait_cancelled(PATIENCE):
            is_stopped.set()

    with JobTester(local) as jobs:
        long.enqueue()
        assert [job.error["code"] for job in jobs.drain(check=False).failed if job.error] == ["timeout"]
        assert is_stopped.is_set()
        assert is_closed.wait(PATIENCE)


@pytest.mark.parametrize("end", [pytest.skip, pytest.fail, _interrupt])
def test_what_ends_a_test_in_a_handler_ends_it(end: Callable[[str], None]) -> None:
    local = App("sqlite:///unused.db")
    attempts: list[int] = []

    @local.job("ending")
    def ending() -> None:
        attempts.append(1)
        end("enough")

    with JobTester(local) as jobs:
        ending.enqueue()
        with pytest.raises((OutcomeException, KeyboardInterrupt), match="enough"):
            jobs.drain()
    assert attempts == [1]


def test_what_ends_a_test_in_a_handler_ends_it_also_if_the_thread_of_the_test_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = App("sqlite:///unused.db")
    attempts: list[int] = []

    @local.job("ending")
    def ending() -> None:
        attempts.append(1)
        pytest.skip("enough")

    end = CallersLoop._end

    def end_late(coroutine: Any, loop: Any) -> None:
        until(lambda: inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED)
        end(coroutine, loop)

    with JobTester(local) as jobs:
        ending.enqueue()
        monkeypatch.setattr(CallersLoop, "_end", staticmethod(end_late))
        with pytest.raises(OutcomeException, match="enough"):
            jobs.drain()
    assert attempts == [1]


def test_draining_runs_all_jobs_and_those_that_they_enqueue(jobs: JobTester) -> None:
    send_many.enqueue("ada", "grace")
    ran = jobs.drain()
    assert ([job.type for job in ran.completed], ran.attempts) == (["mail.many", "mail.send", "mail.send"], 3)
    assert done == ["ada", "grace"]
    assert jobs.drain().attempts == 0


def test_failed_attempts_are_repeated_at_once_with_the_clock_moved(jobs: JobTester) -> None:
    began = jobs.now
    handle = send.enqueue("flaky")
    assert jobs.drain().attempts == 3
    assert handle.result() == "sent to flaky"
    assert jobs.now - began >= timedelta(minutes=20)


def test_a_job_that_fails_for_good_fails_the_test_with_its_traceback(jobs: JobTester) -> None:
    send.enqueue("nobody")
    message = (
        r"mail.send\('nobody'\) failed: ValueError: no such address\n  File \".*test_tester.py\", line \d+, in send"
    )
    with pytest.raises(JobFailed, match=message):
        jobs.drain()
    send.using(retry=1).enqueue("nobody")
    ran = jobs.drain(check=False)
    assert [job.error["message"] for job in ran.failed if job.error] == ["no such address"]


def test_scheduled_jobs_run_when_their_time_has_come(jobs: JobTester) -> None:
    send.using(delay=3600).enqueue("ada")
    jobs.drain()
    jobs.advance(3500)
    jobs.drain()
    assert done == []
    jobs.advance(timedelta(seconds=101))
    jobs.drain()
    assert done == ["ada"]
    send.using(delay=7200).enqueue("grace")
    jobs.drain(scheduled=True)
    assert done == ["ada", "grace"]


def test_a_test_begins_at_the_time_that_it_names_and_cron_jobs_fire() -> None:
    with JobTester(app, at=datetime(2026, 12, 1, 4, 0, tzinfo=UTC)) as jobs:
        assert jobs.now.replace(microsecond=0, second=0) == datetime(2026, 12, 1, 4, 0, tzinfo=UTC)
        send.enqueue("ada")
        jobs.drain()  # a worker registers the cron jobs when it starts
        jobs.advance(timedelta(hours=1))
        jobs.drain()
    assert len(done) == 2
    assert datetime.fromtimestamp(int(done[1]) / 1e6, UTC).hour == 5


def test_workflows_run_to_their_end(jobs: JobTester) -> None:
    run = app.start(chain(send.s("ada"), send.s("grace")))
    jobs.drain()
    assert run.refresh().state == "completed"
    assert done == ["ada", "grace"]


def test_a_workflow_that_was_due_before_runs_to_its_end(jobs: JobTester) -> None:
    run = app.start(chain(gate("ok", timeout=60).set(fallback=send.using(expires_in=60).s("ada")), send.s("grace")))
    jobs._clock.move_to(jobs._clock() + 61_000_000)  # as if the test took so long
    jobs.finish(run)
    assert (run.state, done) == ("completed", ["ada", "grace"])


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_cron_jobs_do_not_stop_the_clock_of_a_workflow_that_waits(tenant: str | None) -> None:
    local = App("sqlite:///unused.db", tenant=tenant)

    @local.cron("@every 5s")
    @local.job("tick")
    def tick() -> None:
        done.append("tick")

    @local.flow("order")
    async def order(flow: Flow, days: int | None) -> bool:
        with suppress(TimeoutError):
            return await flow.receive("approval", bool, timeout=None if days is None else timedelta(days=days))
        return False

    with JobTester(local, at=datetime(2026, 12, 1, tzinfo=UTC)) as jobs:
        forgotten = order.start(None)
        with pytest.raises(
            AssertionError, match=r"does not end: nothing is left to run.* If a cron job does so, advance"
        ):
            jobs.finish(forgotten)
        late = order.start(30)
        jobs.finish(late)
        assert (late.result(), done) == (False, [])
        assert jobs.now >= datetime(2026, 12, 31, tzinfo=UTC)
        jobs.advance(5)
        jobs.drain()
        assert done == ["tick"]


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_blocking_update_runs_the_flow_that_answers_it(tenant: str | None) -> None:
    local = App("sqlite:///unused.db", tenant=tenant)

    @local.flow("basket")
    async def basket(flow: Flow) -> None:
        await flow.receive("paid")

    @basket.update
    async def put(flow: Flow, item: str) -> int:
        return await flow.step("count", len, item)

    @basket.update
    async def wait(flow: Flow) -> None:
        await flow.receive("delivery")

    @basket.update
    async def refuse(flow: Flow) -> None:
        raise ValueError("no such item")

    with JobTester(local) as jobs:
        run = basket.start()
        assert run.update(put, "tea") == 3
        assert run.update(put, "coffee") == 6
        with pytest.raises(UpdateFailed, match="no such item"):
            run.update(refuse)
        with pytest.raises(AssertionError, match=r"does not answer the update 'wait': nothing is left to run\."):
            run.update(wait)
        run.send("paid")
        jobs.finish(run)


@pytest.mark.anyio
async def test_an_update_in_a_task_is_answered_when_the_test_lets_the_flow_run() -> None:
    local = App("sqlite:///unused.db")

    @local.flow("basket")
    async def basket(flow: Flow) -> None:
        await flow.receive("paid")

    @basket.update
    async def wait(flow: Flow) -> str:
        return await flow.receive("delivery", str)

    async with JobTester(local) as jobs:
        run = await basket.astart()
        answer = asyncio.create_task(run.aupdate(wait))
        await jobs.adrain()
        await run.asend("delivery", "tea")
        while not answer.done():
            await jobs.adrain()
        assert await answer == "tea"


def test_a_flow_that_polls_without_an_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tester, "MAX_JUMPS", 3)
    local = App("sqlite:///unused.db")

    @local.flow("poll")
    async def poll(flow: Flow) -> None:
        while True:
            await flow.sleep(60)

    with JobTester(local) as jobs, pytest.raises(AssertionError, match="is running after 3 jumps of the clock"):
        jobs.finish(poll.start())


def test_an_endless_chain_of_jobs_is_told(jobs: JobTester, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_memory.MAX_ATTEMPTS == 10_000
    monkeypatch.setattr(in_memory, "MAX_ATTEMPTS", 1_200)  # more than a worker claims at once
    endless.enqueue()
    with pytest.raises(RuntimeError, match="1,200 attempts were made, and jobs still wait"):
        jobs.drain()


def test_what_a_request_enqueues_in_its_own_transaction_is_tested_without_a_database(jobs: JobTester) -> None:
    connection = object()  # any: there is no transaction to wait for
    send.enqueue_in(connection, "ada")
    send.enqueue_many_in(connection, [("bob",)])
    run = app.start_in(connection, chain(send.s("cyd"), send.s("dan")))
    jobs.assert_enqueued(send, "bob", queue="mail")
    jobs.drain()
    assert (done, run.refresh().state) == (["ada", "bob", "cyd", "dan"], "completed")
    with jobs.eager():
        send.enqueue_in(connection, "eve")
    assert done[-1] == "eve"


@pytest.mark.anyio
async def test_so_is_what_a_coroutine_enqueues_in_its_transaction() -> None:
    async with JobTester(app) as jobs:
        await send.aenqueue_in(object(), "ada")
        run = await app.astart_in(object(), chain(send.s("bob")))
        await jobs.adrain()
        assert (await run.arefresh()).state == "completed"
    assert sorted(done) == ["ada", "bob"]


def test_jobs_run_eagerly_before_enqueue_returns(jobs: JobTester) -> None:
    with jobs.eager():
        send_many.enqueue("ada", "grace")
        assert done == ["ada", "grace"]
        with pytest.raises(JobFailed, match="no such address"):
            send.enqueue("nobody")
    send.enqueue("joan")
    assert "joan" not in done


def test_the_application_has_its_own_database_again_afterwards() -> None:
    with JobTester(app):
        assert app.url == "sqlite:///:memory:"
    assert (app.url, app._service, list(app.execution_middleware)) == (
        "postgresql://nobody@localhost:1/nowhere",
        None,
        [],
    )
    with pytest.raises(RuntimeError, match="Enter the tester first"):
        _ = JobTester(app).service


@pytest.mark.anyio
async def test_asynchronous_tests_await_the_same() -> None:
    async with JobTester(app) as jobs:
        await send.aenqueue("ada")
        await jobs.aassert_enqueued(send, "ada")
        await jobs.adrain()
        await jobs.aadvance(1)
        await jobs.arefute_enqueued(send, "grace")
    assert done == ["ada"]


def test_an_application_that_others_include_is_tested_with_the_whole() -> None:
    mail, whole = App(), App("postgresql://nobody@localhost:1/nowhere")

    @mail.job("greet")
    def greet(name: str) -> None:
        done.append(name)

    whole.include(mail)
    with JobTester(mail) as jobs:
        greet.enqueue("ada")
        jobs.assert_enqueued(greet, "ada")
        jobs.drain()
    assert done == ["ada"]


def test_handlers_with_a_process_find_no_context_as_in_a_child_process() -> None:
    with App("sqlite:///unused.db") as local:

        @local.execution_middleware.append
        async def around(context: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
            try:
                return await call_next()
            finally:
                assert current_job() is context

        @local.job("apart", process=True)
        def apart() -> None:
            with pytest.raises(LookupError, match="process=True"):
                current_job()
            done.append("apart")

        with JobTester(local) as jobs:
            apart.enqueue()
            jobs.drain()
    assert done == ["apart"]


def test_handlers_with_a_process_run_in_threads_on_the_same_database() -> None:
    local = App("postgresql://nobody@localhost:1/nowhere")

    @local.job("apart", process=True)
    def apart() -> int:
        inner.enqueue()
        return os.getpid()

    @local.job("inner")
    def inner() -> None:
        done.append("inner")

    with JobTester(local) as jobs:
        handle = apart.enqueue()
        jobs.drain()
        assert handle.result() == os.getpid()
    assert done == ["inner"]


def test_cron_jobs_do_not_fire_while_what_has_failed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ojster.api.in_memory.MAX_ATTEMPTS", 20)
    local, attempts = App(), list[int]()

    @local.cron("* * * * *", overlap_policy="enqueue")
    @local.job("flaky", retry=Retry(max_attempts=2, initial_interval=600))
    def flaky() -> None:
        attempts.append(len(attempts))
        if len(attempts) % 2:
            raise OSError

    with JobTester(local) as jobs:
        jobs.advance(60)
        assert [job.type for job in jobs.drain().completed] == ["flaky"]
        jobs.advance(60)
        assert len(jobs.drain().completed) == 1, "afterwards they do"


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_each_occurrence_of_a_cron_job_fires_without_a_drain_before(tenant: str | None) -> None:
    local = App("sqlite:///unused.db", tenant=tenant)

    @local.cron("@hourly", overlap_policy="allow")
    @local.job("hourly")
    def hourly() -> None:
        done.append("hourly")

    with JobTester(local, at=datetime(2026, 12, 1, 4, 30, tzinfo=UTC)) as jobs:
        jobs.advance(timedelta(hours=3))
        jobs.drain()
    assert done == ["hourly"] * 3


def test_many_jobs_of_unknown_types_hide_no_others(jobs: JobTester) -> None:
    with App("sqlite:///:memory:") as other:

        @other.job("unknown", queue="aside")
        def unknown() -> None: ...

        other.work_on(jobs.service, "sqlite:///:memory:")
        send.enqueue("ada")
        unknown.enqueue_many([()] * 1_100)
        unknown.using(delay=3600).enqueue_many([()] * 1_100)
        send.using(delay=10, expires_in=60).enqueue("grace")
        jobs.drain(scheduled=True)
        other._service = None
    assert done == ["ada", "grace"]


def test_arguments_are_compared_whatever_encodes_them() -> None:
    with App("sqlite:///unused.db", codecs=[Gzip()]) as local:

        @local.job("ship")
        def ship(order: Order) -> None: ...

        with JobTester(local) as jobs:
            ship.enqueue(Order(number=7))
            jobs.assert_enqueued(ship, Order(number=7))
            jobs.assert_enqueued("ship", {"number": 7})
            with pytest.raises(AssertionError, match=r"Enqueued: ship\({'number': 7}\)"):
                jobs.assert_enqueued(ship, Order(number=8))


def test_an_application_of_one_tenant_is_tested_too() -> None:
    local = App("sqlite:///unused.db", tenant="acme")

    @local.job("one")
    def one() -> None:
        done.append("one")

    with JobTester(local) as jobs:
        with jobs.eager():
            one.enqueue()
        assert done == ["one"]
        jobs.assert_enqueued(one, tenant="acme", state="completed")


def test_times_without_a_zone_and_steps_back_are_refused(jobs: JobTester) -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        JobTester(app, at=datetime(2026, 12, 1))
    with pytest.raises(ValueError, match="Time does not run backwards"):
        jobs.advance(-1)


@settings(max_examples=20, deadline=None)
@given(failures())
def test_whatever_attempts_fail_the_job_completes_and_has_run_once_more(errors: list[BaseException | None]) -> None:
    done.clear()
    with JobTester(app, at=datetime(2026, 12, 1, 10, 0, tzinfo=UTC)) as jobs:  # far from the time of the cron job
        jobs.fail_next(*errors)
        send.enqueue("ada")
        jobs.drain()
    lost = next((number for number, error in enumerate(errors) if error is None), len(errors))
    assert done == ["ada"] * (lost + 1)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deferred(lambda: arguments_of(send)))  # at the import, it would cost each test process a second
def test_arguments_fit_the_annotations(jobs: JobTester, args: tuple[str, date | None]) -> None:
    to, on = args
    assert isinstance(to, str)
    assert on is None or isinstance(on, date)
    assert send.enqueue(*args).job.args == [to, None if on is None else on.isoformat()]


@given(json_values())
def test_json_values_are_json(value: object) -> None:
    import json

    assert json.loads(json.dumps(value)) == value


def test_a_fake_context_remembers_what_a_handler_reports() -> None:
    context = FakeContext(args=[1], meta={"a": 1}, attempt=3, restored={"row": 5})
    context.progress(1, 4, "a quarter")
    context.checkpoint({"row": 6})
    context.note("seen")
    assert (context.restored(), context.progress_reports) == ({"row": 5}, [(0.25, "a quarter")])
    assert (context.checkpoints, context.notes) == ([{"row": 6}], ["seen"])
    assert (context.attempt, context.is_last_attempt, context.meta, context.job.args) == (3, True, {"a": 1}, [1])
    assert not context.cancelled
    context.stop()
    assert context.cancelled
    assert isinstance(context, JobContext)
    with pytest.raises(TypeError):
        context.checkpoint(object())
    with pytest.raises(AttributeError, match=r"'client', which needs a worker\. Run the job with a JobTester"):
        _ = context.client


PROJECT = """
from ojster import App
app = App("postgresql://nobody@localhost:1/nowhere")

@app.job
def double(n: int) -> int:
    return 2 * n
"""

TESTS = """
from mine import double

def test_it(ojster_jobs):
    handle = double.enqueue(21)
    ojster_jobs.assert_enqueued(double, 21)
    ojster_jobs.drain()
    assert handle.result() == 42

def test_nothing_is_left(ojster_jobs):
    ojster_jobs.refute_enqueued(double)
"""


@pytest.mark.parametrize(
    ("setting", "passed", "said"),
    [("ojster_app = mine:app", 2, "2 passed"), ("", 0, "Which application? Set ojster_app")],
    ids=["with its setting", "without its setting"],
)
def test_the_fixtures_of_pytest_find_the_application(tmp_path: Path, setting: str, passed: int, said: str) -> None:
    (tmp_path / "mine.py").write_text(PROJECT)
    (tmp_path / "test_mine.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = .\n{setting}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert said in run.stdout
    assert (run.returncode == 0) == (passed == 2), run.stdout


@pytest.mark.parametrize(
    "claim",
    [
        lambda jobs: jobs.assert_enqueued(send, "nobody else"),
        lambda jobs: jobs.refute_enqueued(send),
        lambda jobs: jobs.finish(jobs.app.start(chain(gate("approval"), send.s("nobody")))),
        lambda jobs: jobs.drain(),
    ],
    ids=["assert_enqueued", "refute_enqueued", "finish", "drain"],
)
def test_pytest_shows_the_line_of_the_test_if_a_claim_about_jobs_fails(
    jobs: JobTester, claim: Callable[[JobTester], object]
) -> None:
    send.enqueue("nobody")
    with pytest.raises((AssertionError, JobFailed)) as failed:
        claim(jobs)
    assert {entry.path for entry in failed.traceback.filter(failed)} == {Path(__file__)}


def test_jobs_whose_retention_ends_while_others_are_retried_are_told_of(jobs: JobTester) -> None:
    app = jobs.app

    @app.job("fine")
    def fine() -> None: ...

    @app.job("fails", retry=Retry(max_attempts=3, initial_interval=90_000, max_interval=90_000))
    def fails() -> None:
        raise ValueError("no")

    fine.enqueue()
    fails.enqueue()
    done = jobs.drain(check=False)
    assert "fine" in [one.type for one in done.completed]
    assert [one.type for one in done.failed] == ["fails"]


@pytest.mark.parametrize("way", ["drain", "eager"])
@pytest.mark.parametrize(
    "needed",
    [
        {"requires": {"region": "eu", "memory_mb": 4096, "ssd": True}},
        {"resources": {"gpu_type": "nvidia-a100", "gpu_count": 4, "memory_gb": 256}},
    ],
    ids=["requires", "resources"],
)
def test_a_job_gets_whatever_it_requires(needed: dict[str, Any], way: str) -> None:
    tested = App("sqlite:///nowhere.db")

    @tested.job("train", **needed)
    def train(number: int) -> int:
        return 2 * number

    if way == "eager":
        with tested.eager():
            assert [train.enqueue(number).result(timeout=0) for number in (1, 2)] == [2, 4]
        return
    with JobTester(tested) as jobs:
        handles = [train.enqueue(number) for number in (1, 2)]
        assert jobs.drain(concurrency=2).attempts == 2
        assert [handle.result(timeout=0) for handle in handles] == [2, 4]
