"""Flows on real workers: over HTTP, with workers that are killed, and with a clock that jumps."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ojster import App, Flow, SkipRest, Worker, chain
from ojster.cli.main import cli
from ojster.handlers import flow_execution
from ojster.service import Service
from ojster.testing import JobTester
from ojster.worker import worker as worker_module
from ojster.workflows.flow import MAX_RECORDS_AT_ONCE
from tests import forked
from tests.flows import handlers
from tests.serving import serving
from tests.waiting import PATIENCE
from tests.worker.test_worker import working

pytestmark = pytest.mark.anyio


def declare(app: App) -> None:
    @app.job("double")
    async def double(number: int) -> int:
        return 2 * number

    @app.flow("sum")
    async def total(flow: Flow, numbers: list[int]) -> int:
        doubled = await asyncio.gather(*(flow.run(double, number) for number in numbers))
        added = await flow.step("sum", sum, doubled)
        return added + await flow.receive("more", int)

    app.total = total  # type: ignore[attr-defined]


async def test_a_worker_runs_flows_of_a_server(service: Service) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")
        declare(app)
        async with working(app):
            run = await app.total.astart([1, 2, 3])  # type: ignore[attr-defined]
            await run.asend("more", 100)
            assert await run.aresult(PATIENCE) == 112
            assert [step.type for step in run.info.walk()] == ["sum", "double", "double", "double"]
        await app.aclose()


async def test_each_flow_of_a_workflow_has_random_numbers_of_its_own_also_over_http(service: Service) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")

        @app.flow("draw")
        async def draw(flow: Flow) -> list[str]:
            return [str(flow.uuid()), await flow.step("kept", str, flow.uuid())]

        @app.flow("two")
        async def two(flow: Flow) -> list[list[str]]:
            return list(await asyncio.gather(flow.run(draw), flow.run(draw)))

        async with working(app):
            run = await two.astart()
            drawn = [number for pair in await run.aresult(PATIENCE) for number in pair]
            assert len(set(drawn)) == 4
        await app.aclose()


async def test_a_run_is_forked_in_the_process_and_over_http(service: Service, url: str) -> None:
    async with serving(service) as (_, port):
        for at in (url, f"http://127.0.0.1:{port}"):
            app = App(at)

            @app.job("twice")
            async def twice(number: int) -> int:
                return 2 * number

            @app.flow("sum")
            async def add(flow: Flow, number: int) -> int:
                return await flow.run(twice, number) + await flow.run(twice, 10)

            async with working(app):
                run = await add.astart(1)
                assert await run.aresult(PATIENCE) == 22
                forked = await run.afork("twice#2", args=[20])
                assert await forked.aresult(PATIENCE) == 42
                again = await forked.afork("twice", result=0)
                assert await again.aresult(PATIENCE) == 20
                assert (again.info.forked_from, (await forked.arefresh()).forks) == (forked.id, [again.id])
            await app.aclose()


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
async def test_the_example_in_javascript_runs_a_flow(service: Service) -> None:
    async with serving(service) as (_, port):
        url = f"http://127.0.0.1:{port}"
        app = App(url)

        @app.job("price")
        async def price(number: int) -> int:
            return 10 * number

        @app.flow("js.order")
        async def order(flow: Flow, numbers: list[int]) -> str:
            return "not run here"

        runs = [await order.astart([1, 2, 3]), await order.astart([4])]
        app.handlers.pop("js.order")
        program = Path(__file__).parents[2] / "examples" / "flows" / "flow.mjs"
        node = await asyncio.create_subprocess_exec("node", str(program), url, "2", stderr=asyncio.subprocess.PIPE)
        async with working(app):
            await runs[0].asend("approval", True)
            await runs[1].asend("approval", False)
            _, said = await asyncio.wait_for(node.communicate(), PATIENCE)
            assert node.returncode == 0, said.decode()
            assert [await run.aresult(PATIENCE) for run in runs] == ["approved: 60", "refused"]
        await app.aclose()


async def test_a_flow_is_not_handed_back_while_a_thread_of_it_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "LAST_REPORT_SECONDS", PATIENCE)
    app = App(url, migrate=True)
    begun, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow() -> None:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(PATIENCE)

    @app.flow("slow")
    async def flow(flow: Flow) -> None:
        await flow.step("slow", slow)

    run = await flow.astart()
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await begun.wait()
    (step,) = run.info.walk()
    worker.stop(grace=0)
    await asyncio.sleep(0.3)  # a hand-back would be there by now
    assert (await app.client().jobs.find(step.job_id or "")).state == "active"
    may_end.set()
    await running
    assert (await app.client().jobs.find(step.job_id or "")).state == "available"
    await app.aclose()


async def test_messages_are_sent_from_the_command_line(file_url: str) -> None:
    app = App(file_url)

    @app.flow("inbox")
    async def inbox(flow: Flow) -> list[Any]:
        return [await flow.receive("a"), await flow.receive("a")]

    run = await inbox.astart()
    for words in (["a", "--data", '{"ok": true}'], ["a", "--data", "plain", "--idempotency-key", "k"]):
        done = await asyncio.to_thread(CliRunner().invoke, cli, ["flows", "send", run.id, *words, "--url", file_url])
        assert done.exit_code == 0, done.output
        assert "gets the message 'a'" in done.output
    await Worker(app).run(until_empty=True)
    assert await run.aresult(PATIENCE) == [{"ok": True}, "plain"]
    await app.aclose()


async def test_a_flow_that_is_woken_at_once_runs_on_in_the_same_worker(url: str) -> None:
    app = App(url, migrate=True)

    @app.job("quick")
    async def quick(number: int) -> int:
        return number + 1

    @app.flow("count")
    async def count(flow: Flow, most: int) -> int:
        number = 0
        while number < most:
            number = await flow.run(quick, number)
        return number

    runs = [await count.astart(5) for _ in range(10)]
    await Worker(app, concurrency=20).run(until_empty=True)
    assert [await run.aresult(PATIENCE) for run in runs] == [5] * 10
    await app.aclose()


async def test_a_branch_goes_on_while_a_local_step_of_another_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_execution, "POLL_SECONDS", 0.01)
    app = App(url, migrate=True)
    opened = asyncio.Event()

    @app.job("quick")
    async def quick() -> None: ...

    async def open_it() -> None:
        opened.set()

    async def wait_for_it() -> str:
        await opened.wait()
        return "opened"

    @app.flow("two")
    async def two(flow: Flow) -> str:
        async def branch() -> None:
            await flow.run(quick)
            await flow.step("open", open_it)

        both = await asyncio.gather(flow.step("wait", wait_for_it), branch())
        return both[0]

    run = await two.astart()
    await Worker(app).run(until_empty=True)
    assert await run.aresult(PATIENCE) == "opened"
    await app.aclose()


async def test_a_flow_asks_for_more_than_one_call_may_hold(service: Service) -> None:
    number = MAX_RECORDS_AT_ONCE + 5
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")

        @app.job("double")
        async def double(of: int) -> int:
            return 2 * of

        async def add(one: int, other: int) -> int:
            return one + other

        @app.flow("many")
        async def many(flow: Flow) -> int:
            steps = await asyncio.gather(*(flow.step("add", add, place, 1) for place in range(number)))
            return len(steps) + sum(await asyncio.gather(*(flow.run(double, 1) for _ in range(3))))

        async with working(app, concurrency=50):
            run = await many.astart()
            assert await run.aresult(PATIENCE) == number + 6
        await app.aclose()


def test_time_jumps_in_tests(tmp_path: Path) -> None:
    app = App("sqlite:///:memory:")

    @app.flow("reminder")
    async def reminder(flow: Flow) -> str:
        began = flow.now
        try:
            return await flow.receive("answer", str, timeout=timedelta(days=3))
        except TimeoutError:
            return str(flow.now - began)

    with JobTester(app) as tester:
        run = reminder.start()
        tester.drain()
        tester.advance(timedelta(days=2))
        tester.drain()
        assert run.refresh().state == "running"
        tester.advance(timedelta(days=2))
        tester.drain()
        assert run.result().startswith("3 days")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    file = tmp_path / "ledger"
    file.touch()
    return file


@pytest.fixture
def workers(shared_url: str, ledger: Path, tmp_path: Path) -> Iterator[list[forked.Popen]]:
    running: list[forked.Popen] = []
    yield running
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.slow
async def test_flows_survive_the_death_of_their_workers(
    shared_url: str, ledger: Path, workers: list[forked.Popen], tmp_path: Path
) -> None:
    app = App(shared_url, migrate=True)
    app.include(_copy())
    variables = os.environ | {"OJSTER_DATABASE_URL": shared_url, handlers.LEDGER: str(ledger)}
    command = [sys.executable, "-m", "ojster", "worker", "tests.flows.handlers:app", "--lease", "2"]

    def begin() -> forked.Popen:
        with (tmp_path / "log").open("ab") as log:
            process = forked.Popen([*command, "--concurrency", "10"], stdout=log, stderr=log, env=variables)
        workers.append(process)
        return process

    flow = app.handlers["journey"]
    runs = [await flow.astart(place) for place in range(30)]  # type: ignore[attr-defined]
    for run in runs[::2]:
        await run.asend("go", "early")
    living = [begin(), begin()]
    dice = random.Random(1)
    for _ in range(8):
        await asyncio.sleep(dice.uniform(0.3, 0.8))
        dead = dice.randrange(2)
        living[dead].kill()
        living[dead] = begin()
    for run in runs[1::2]:
        await run.asend("go", "late")
    results = [await run.aresult(90) for run in runs]
    written: dict[tuple[int, str], set[str]] = defaultdict(set)
    for line in ledger.read_text().splitlines():
        place, what, token = line.split()
        written[int(place), what].add(token)
    for number, (first, left, right, message, last) in enumerate(results):
        assert message == ("late" if number % 2 else "early")
        for what, token in (("first", first), ("left", left), ("right", right), ("last", last)):
            assert token in written[number, what]
        steps = [step for step in runs[number].info.walk() if step.type == "work"]
        assert len(steps) == 3  # each was asked for once
    await app.aclose()


def _copy() -> App:
    """Return an application with the flow of the workers, for callers."""
    app = App()
    app.flow("journey")(handlers.run.function.__wrapped__)  # type: ignore[attr-defined]
    return app


@pytest.mark.parametrize(("how", "expected"), [("job", [1, 2]), ("chain", [5, 1, 2]), ("own", [])])
async def test_a_step_that_skips_the_rest_gives_its_flow_a_result(url: str, how: str, expected: list[int]) -> None:
    app, ran = App(url), list[int]()

    @app.job("check")
    async def check(number: int) -> Any:
        ran.append(number)
        if number == 1:
            raise SkipRest({"changed": 0})
        return number

    @app.flow("checks")
    async def checks(flow: Flow) -> Any:
        match how:
            case "job":
                first: Any = await flow.run(check, 1)
            case "chain":
                first = await flow.run(chain(check.s(5), check.s(1), check.s(6)))
            case _:
                raise SkipRest("nothing to do")
        return [first, await flow.run(check, 2)]

    run = await checks.astart()
    await Worker(app).run(until_empty=True)
    results = {
        "job": [{"changed": 0}, 2],
        "chain": [None, 2],
        "own": "nothing to do",
    }
    assert (await run.aresult(PATIENCE), ran) == (results[how], expected)
    await app.aclose()
