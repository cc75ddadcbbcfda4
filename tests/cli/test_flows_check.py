"""``ojster flows check`` finds what comes out otherwise when a flow runs again, and workers warn of it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ojster import App, FlowWarning, Worker
from ojster.api.loading import load_app
from ojster.cli.main import cli

pytestmark = pytest.mark.anyio

HEAD = """\
import asyncio, datetime as dt, os, random, secrets, subprocess, threading, time, uuid
from datetime import date, datetime
from os import urandom
from pathlib import Path
from random import randint as draw
from time import time as clock
from urllib.request import urlopen
from uuid import uuid4

import httpx

from ojster import App, Flow

app = App("sqlite:///:memory:")


def plain(number: int) -> int:
    return number


def ask(number: int) -> float:
    return plain(number) + time.time()


async def again(flow: Flow) -> None:
    await flow.step("clock", clock)


@app.flow("order")
async def order(flow: Flow, number: int = 0) -> None:
"""

FOUND = {
    "time.time()": "time.time",
    "clock()": "time.time",
    "time.monotonic()": "time.monotonic",
    "datetime.now()": "datetime.datetime.now",
    "dt.datetime.now(dt.UTC)": "datetime.datetime.now",
    "date.today()": "datetime.date.today",
    "random.random()": "random.random",
    "draw(1, 6)": "random.randint",
    "uuid.uuid4()": "uuid.uuid4",
    "str(uuid4())": "uuid.uuid4",
    "os.urandom(8)": "os.urandom",
    "urandom(8)": "os.urandom",
    "secrets.token_hex()": "secrets.token_hex",
    "open('x')": "io.open",
    "Path('x').read_text()": "read_text",
    "httpx.get('x')": "httpx.get",
    "urlopen('x')": "urllib.request.urlopen",
    "subprocess.run(['x'])": "subprocess.run",
    "threading.Thread()": "threading.Thread",
    "await asyncio.to_thread(plain, 1)": "asyncio.to_thread",
    "await asyncio.gather(asyncio.open_connection('x', 1))": "asyncio.open_connection",
    "time.sleep(1)": "time.sleep",
    "import time as t; t.time()": "time.time",
    "await flow.step('x', plain, time.time())": "time.time",
    "[random.choice('ab') for _ in range(3)]": "random.choice",
    "ask(1)": "time.time",
}

FINE = [
    "flow.now, flow.random.random(), flow.uuid()",
    "await flow.step('x', time.time)",
    "await flow.step('x', lambda: random.random())",
    "await flow.step('x', uuid4)",
    "random.Random(5).random()",
    "await flow.sleep(1)",
    "await asyncio.gather(again(flow), again(flow))",
    "async with asyncio.timeout(5): await asyncio.sleep(1)",
    "dt.timedelta(days=1), datetime(2026, 1, 1), plain(1), len('x')",
    "print(time.time())  # flow: ignore",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


_number = 0


def written(folder: Path, *lines: str) -> str:
    """Write a module with a flow, and return its name."""
    global _number
    _number += 1
    name = f"checked_{_number}"
    (folder / f"{name}.py").write_text(HEAD + "".join(f"    {line}\n" for line in lines))
    return name


def check(module: str) -> Result:
    return CliRunner().invoke(cli, ["flows", "check", f"{module}:app"], standalone_mode=False)


def test_each_call_is_found_at_its_place(folder: Path) -> None:
    module = written(folder, *FOUND)
    result = check(module)
    assert result.return_value == 1
    first = HEAD.count("\n") + 1
    lines = {int(line.split(":")[1]): line for line in result.stdout.splitlines()}
    own = {number: line for number, line in lines.items() if number >= first}
    assert own.keys() == set(range(first, first + len(FOUND) - 1)), result.stdout
    for number, (written_line, call) in enumerate(list(FOUND.items())[:-1], first):
        assert lines[number].startswith(f"{module}.py:{number}:"), written_line
        assert f": {call}() comes out otherwise when the flow order runs again. " in lines[number]
    (helper,) = lines.keys() - own.keys()
    assert "return plain(number) + time.time()" in HEAD.splitlines()[helper - 1]


def test_what_is_done_in_steps_and_what_is_the_same_each_time_is_in_order(folder: Path) -> None:
    inner = ("def pay() -> float:", "    return time.time()", "await flow.step('pay', pay)")
    result = check(written(folder, *FINE, *inner))
    assert (result.return_value, result.stdout, result.stderr) == (0, "", "1 flow is in order.\n")


def test_a_module_without_flows_is_in_order(folder: Path) -> None:
    (folder / "no_flows.py").write_text("from ojster import App\napp = App('sqlite:///:memory:')\n")
    assert "has no flows" in check("no_flows").output


async def test_a_worker_warns_once_for_each_place(folder: Path, file_url: str) -> None:
    module = written(folder, "time.time(), random.random()", "await flow.step('x', time.time)", "time.time()")
    app: App = load_app(f"{module}:app")
    app.url = file_url
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            await app.handlers["order"].astart()  # type: ignore[attr-defined]
        await Worker(app).run(until_empty=True)
    places = [(Path(str(one.filename)).name, one.lineno) for one in caught if one.category is FlowWarning]
    first = HEAD.count("\n") + 1
    assert places == [(f"{module}.py", first), (f"{module}.py", first), (f"{module}.py", first + 2)]
    await app.aclose()
    del sys.modules[module]


async def test_a_flow_runs_also_if_its_source_cannot_be_checked(
    folder: Path, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(source: str) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr("ojster.handlers.flow_check._parsed", fails)
    module = written(folder, "time.time()")
    app: App = load_app(f"{module}:app")
    app.url = file_url
    run = await app.handlers["order"].astart()  # type: ignore[attr-defined]
    await Worker(app).run(until_empty=True)
    assert (await run.arefresh()).state == "completed"
    await app.aclose()
    del sys.modules[module]
