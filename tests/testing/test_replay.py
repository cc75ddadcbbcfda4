"""``replay``: today's function with the records of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ojster import App, Depends, Flow, FlowChanged, JobFailed, Worker, chain
from ojster.cli.main import cli
from ojster.service import Service
from ojster.testing import areplay, replay
from tests.serving import serving
from tests.waiting import PATIENCE
from tests.worker.test_worker import working

pytestmark = pytest.mark.anyio

Function = Callable[..., Any]


def rate() -> int:
    return 3


def declare(url: str, change: str = "") -> App:
    """Return an application with a flow, as it was or with a change."""
    app = App(url, migrate=True)
    app.ran = []  # type: ignore[attr-defined]

    @app.job("double")
    async def double(number: int) -> int:
        return 2 * number

    @app.job("bad", retry=1)
    async def bad() -> None:
        raise LookupError("gone")

    def length(text: str) -> int:
        app.ran.append(text)  # type: ignore[attr-defined]
        return len(text)

    @app.flow("order")
    async def order(flow: Flow, number: int, factor: int = Depends(rate)) -> list[Any]:
        seen: list[Any] = [factor, str(flow.uuid()), flow.now.isoformat()]
        if change == "added":
            await flow.step("check", length, "")
        for ended in asyncio.as_completed([flow.run(double, number), flow.run(double, number + 1)]):
            seen.append(await ended)
        if change != "removed":
            seen.append(await flow.step("length", length, "abc" if change != "argument" else "abcd"))
        try:
            await flow.run(bad)
        except JobFailed as error:
            seen.append(error.error["message"])
        await flow.sleep(0.01)
        seen.append(await flow.receive("go", str))
        if change == "goes on":
            await flow.run(double, 9)
        if change == "fails":
            raise ValueError("new")
        return seen

    app.order = order  # type: ignore[attr-defined]
    return app


def export(id: str, url: str, *more: str) -> str:
    done = CliRunner().invoke(cli, ["flows", "export", id, "--url", url, *more])
    assert done.exit_code == 0, done.output
    return done.output


async def recorded(url: str, tmp_path: Path, *, message: bool = True) -> tuple[Path, Any, App]:
    app = declare(url)
    run = await app.order.astart(4)  # type: ignore[attr-defined]
    result = None
    if message:
        await run.asend("go", "went")
        async with working(app):
            result = await run.aresult(PATIENCE)
    else:
        await Worker(app).run(until_empty=True)
    file = tmp_path / "run.json"
    file.write_text(await asyncio.to_thread(export, run.id, url))
    await app.aclose()
    return file, result, app


async def test_a_run_is_replayed_with_its_result_and_nothing_runs(file_url: str, tmp_path: Path) -> None:
    file, result, app = await recorded(file_url, tmp_path)
    app.ran.clear()  # type: ignore[attr-defined]
    assert await areplay(app.order, file) == result  # type: ignore[attr-defined]
    assert await asyncio.to_thread(replay, app.order, file) == result  # type: ignore[attr-defined]
    assert app.ran == []  # type: ignore[attr-defined]
    assert set(json.loads(file.read_text())) >= {"workflow_id", "type", "args", "records"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("added", "asks for step 'check'. The run has recorded run 'double', run 'double#2'"),
        ("removed", "asks for nothing more. The run has recorded step 'length' instead"),
        ("argument", "with other arguments"),
        ("goes on", "asks for run 'double#3'. The run has ended there"),
    ],
)
async def test_what_the_new_code_asks_for_in_addition_or_no_longer_is_shown(
    file_url: str, tmp_path: Path, change: str, message: str
) -> None:
    file, _, _ = await recorded(file_url, tmp_path)
    app = declare(file_url, change)
    with pytest.raises(FlowChanged) as changed:
        await areplay(app.order, file)  # type: ignore[attr-defined]
    assert message in str(changed.value)
    assert app.ran == []  # type: ignore[attr-defined]
    await app.aclose()


async def test_the_replay_of_a_running_flow_ends_with_its_records(file_url: str, tmp_path: Path) -> None:
    file, _, app = await recorded(file_url, tmp_path, message=False)
    assert await areplay(app.order, file) is None  # type: ignore[attr-defined]
    changed = declare(file_url, "goes on")
    assert await areplay(changed.order, file) is None  # type: ignore[attr-defined]
    await changed.aclose()


async def test_what_the_function_raises_comes_out(file_url: str, tmp_path: Path) -> None:
    file, _, _ = await recorded(file_url, tmp_path)
    app = declare(file_url, "fails")
    with pytest.raises(ValueError, match="new"):
        await areplay(app.order, file)  # type: ignore[attr-defined]
    other = app.flow("other")(_empty)
    with pytest.raises(ValueError, match="'order', not of 'other'"):
        await areplay(other, file)
    await app.aclose()


async def test_the_replay_of_a_cancelled_run_is_cancelled(file_url: str, tmp_path: Path) -> None:
    app = declare(file_url)
    run = await app.order.astart(4)  # type: ignore[attr-defined]
    await Worker(app).run(until_empty=True)
    await run.acancel()
    await Worker(app).run(until_empty=True)
    file = tmp_path / "run.json"
    file.write_text(await asyncio.to_thread(export, run.id, file_url))
    with pytest.raises(asyncio.CancelledError):
        await areplay(app.order, file)  # type: ignore[attr-defined]
    await app.aclose()


async def test_a_flow_that_is_a_step_is_exported_from_a_server(service: Service, tmp_path: Path) -> None:
    async with serving(service) as (_, port):
        url = f"http://127.0.0.1:{port}"
        app = App(url)

        @app.job("note")
        async def note(word: str) -> str:
            return word.upper()

        @app.flow("inner")
        async def inner(flow: Flow) -> str:
            return await flow.run(note, "word") + str(flow.uuid())

        async with working(app):
            run = await app.astart(chain(note.s("first"), inner.s().set(id="inner")))
            result = await run.aresult(PATIENCE)
        file = tmp_path / "run.json"
        file.write_text(await asyncio.to_thread(export, run.id, url, "--step", "inner"))
        assert await areplay(inner, file) == result
        refused = await asyncio.to_thread(CliRunner().invoke, cli, ["flows", "export", run.id, "--url", url])
        assert "is no flow" in str(refused.exception)
        await app.aclose()


async def _empty(flow: Flow) -> None: ...
