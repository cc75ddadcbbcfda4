"""``ojster top``: what it shows, and how it ends."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from ojster import App
from ojster.cli.main import cli
from ojster.cli.top import Look, look, show
from ojster.fleet.workers import Heartbeat
from ojster.jobs.claim_policy import Claim
from ojster.queues.queues import Queue, QueueStatistics
from tests.conftest import Bench, request
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


def shown(before: Look, now: Look) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(show(before, now))
    return re.sub(r" +", " ", console.export_text())


async def test_it_shows_queues_workers_running_jobs_and_what_nobody_can_run(bench: Bench) -> None:
    await bench.service.fleet.beat(Heartbeat("worker-1", queues=("mail",), concurrency=4))
    await bench.service.jobs.enqueue([request("send", queue="mail"), request("send", queue="mail")])
    await bench.service.jobs.enqueue([request("build", queue="reports")])
    await bench.service.queues.pause("reports")
    (job,) = await bench.service.jobs.fetch(Claim(("mail",), 1, "worker-1"))
    now = await look(bench.service)
    text = shown(now, now)
    assert "2 jobs wait, 1 run; 1 workers with room for 4." in text
    assert "mail 1 · 1 · · ·" in text
    assert "reports 1 · · · · · paused" in text
    assert "worker-1 running 0/4 mail" in text
    assert f"{job.id} send mail 1" in text
    assert "reports 1 no worker takes jobs of this queue" in text


async def test_it_says_at_once_that_no_worker_takes_the_jobs(bench: Bench) -> None:
    await bench.push()
    now = await look(bench.service)
    assert "1 jobs wait, 0 run; 0 workers with room for 0. No worker takes them." in shown(now, now)


def test_rates_are_those_between_two_looks() -> None:
    queue = QueueStatistics(Queue("mail", 0), {"completed": 10, "discarded": 3}, 9, 10, 1, waited=0, ran=0)
    before = Look(100.0, [queue], [], [], [])
    later = msgspec.structs.replace(queue, counts={"completed": 20, "discarded": 1})
    text = shown(before, Look(102.0, [later], [], [], []))
    assert re.search(r"mail .* 5\.0 *\n", text), "jobs that were deleted are no rate"


async def test_a_queue_that_is_deleted_meanwhile_is_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.push()
    queues = await bench.service.queues.all()

    async def stale() -> list[Queue]:
        return [*queues, Queue("gone", 0)]

    monkeypatch.setattr(bench.service.queues, "all", stale)
    assert [one.queue.name for one in (await look(bench.service)).queues] == ["default"]


def test_it_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = App(url)

    @app.job("late")
    def late() -> None: ...

    late.enqueue()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ojster", "top", "--interval", "0.1", "--url", url],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "30"},
    )
    os.close(theirs)
    seen = b""

    def read_until(word: bytes) -> None:
        nonlocal seen
        ends = time.monotonic() + PATIENCE
        while word not in seen and time.monotonic() < ends:
            seen += os.read(ours, 65_536)
        assert word in seen

    try:
        read_until(b"Queues")
        late.using(queue="arrives").enqueue()
        read_until(b"arrives")
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # the terminal ends with the process, which waits as long as nobody reads it
            while os.read(ours, 65_536):
                pass
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        app.close()
        os.close(ours)


def test_it_looks_once_if_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with App(url) as app:
        app.service()
    output = io.StringIO()
    monkeypatch.setattr("ojster.cli.top.console", Console(force_terminal=True, file=output))
    assert CliRunner().invoke(cli, ["top", "--once", "--url", url]).exit_code == 0
    assert "0 jobs wait" in output.getvalue()
