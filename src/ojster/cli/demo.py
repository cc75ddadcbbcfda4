"""The ``ojster demo`` command: a server, a worker and a set of jobs, shown live in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ojster.api.app import App
from ojster.cli.options import examples, with_json
from ojster.cli.output import STATE_STYLES, print_json, state_text
from ojster.core.errors import BackendError
from ojster.core.job import Job
from ojster.core.states import FINISHED
from ojster.handlers.job_handle import JobHandle
from ojster.handlers.job_type import JobType
from ojster.storage.database import URL_VARIABLE

TIME_LIMIT_SECONDS: Final = 50.0
"""Time limit of the demonstration, in seconds."""

THUMBNAIL_COUNT: Final = 60


class _DemoJob:
    """A job of the demonstration, with its description and its expected final state."""

    def __init__(self, handle: JobHandle[Any], story: str, ends: str) -> None:
        self.handle = handle
        self.story = story
        self.ends = ends
        self.states: list[str] = []

    def look(self, console: Console) -> None:
        """Record the job's current state if it has changed."""
        state = self.handle.state
        if not self.states or self.states[-1] != state:
            self.states.append(state)
            if not console.is_terminal:
                job = self.handle.job
                console.print(f"{job.type:16} {state:10} attempt {job.attempt}/{job.possible_attempts}  {_note(job)}")


@click.command(
    epilog=examples(
        "ojster demo",
        "ojster demo --stay            # until Ctrl-C, with a dashboard to look at",
        "ojster demo --keep jobs.db    # and look at it afterwards",
    )
)
@click.option("--keep", type=click.Path(dir_okay=False), help="Keep the database in this file.")
@click.option("--stay", is_flag=True, help="Go on until Ctrl-C, with jobs and workflows that keep coming.")
@with_json
def demo(keep: str | None, stay: bool, as_json: bool) -> int:
    """Start a server and a worker on a new database, run a set of jobs, and show them live.

    With --json, progress goes to standard error, and the summary is printed as JSON.
    """
    console = Console(highlight=False, stderr=as_json)
    with tempfile.TemporaryDirectory(prefix="ojster-demo-") as folder:
        database = Path(keep).resolve() if keep else Path(folder) / "jobs.db"
        if database.exists():
            raise click.UsageError(f"{database} already exists. Give --keep a path that does not exist.")
        with _server(database, folder) as url, _worker(url, folder):
            console.print(
                f"[bold]Ojster[/] demo: a server at {url} on {database.name} (SQLite), "
                "and a worker with concurrency 8.\n"
            )
            summary = asyncio.run(_run_jobs(url, Path(folder), console))
            if stay:
                console.print(f"\nJobs keep coming. Look at them: [bold]{url}/dashboard/[/]  Ctrl-C ends the demo.")
                with contextlib.suppress(KeyboardInterrupt):
                    asyncio.run(_keep_coming(url))
        if not summary["ok"]:
            for name in ("server.log", "worker.log"):
                console.print(f"[bold]{name}[/]", (Path(folder) / name).read_text()[-2000:], sep="\n", markup=False)
    if as_json:
        print_json(summary)
    return 0 if summary["ok"] else 1


async def _run_jobs(url: str, folder: Path, console: Console) -> dict[str, Any]:
    os.environ[URL_VARIABLE] = url
    from ojster.cli import demo_jobs

    app = demo_jobs.app
    app.url = url
    started = time.monotonic()
    try:
        invoice = folder / "invoice-7.txt"
        acts = [
            await _act(demo_jobs.send_email, ("ada@example.com",), "succeeds", "completed"),
            await _act(demo_jobs.build_report, (12,), "reports its progress", "completed"),
            await _act(demo_jobs.charge, (4999,), "fails twice, then succeeds", "completed"),
            await _act(demo_jobs.remind.using(delay=2), ("Grace",), "is scheduled 2 s ahead", "completed"),
            await _act(demo_jobs.encode_video, ("holiday.mp4",), "is cancelled while it runs", "cancelled"),
            await _act(demo_jobs.import_invoice, (str(invoice),), "becomes a dead letter, and is retried", "completed"),
        ]
        thumbnails = await demo_jobs.make_thumbnail.aenqueue_many([(number,) for number in range(THUMBNAIL_COUNT)])
        with Live(console=console, auto_refresh=False, transient=False) as live:
            await _follow(app, acts, thumbnails, invoice, console, live, started)
    finally:
        await app.aclose()
    return _summarize(acts, thumbnails, console, time.monotonic() - started)


async def _keep_coming(url: str) -> None:
    from ojster.cli import demo_traffic

    await demo_traffic.keep_coming(url)


async def _act(job: JobType[Any, Any], args: tuple[Any, ...], story: str, ends: str) -> _DemoJob:
    return _DemoJob(await job.aenqueue(*args), story, ends)


async def _follow(
    app: App,
    acts: list[_DemoJob],
    thumbnails: list[JobHandle[Any]],
    invoice: Path,
    console: Console,
    live: Live,
    started: float,
) -> None:
    """Poll the jobs until all are finished; cancel one, and retry a dead letter, on the way."""
    by_type = {act.handle.job.type: act for act in acts}
    video, dying = by_type["video.encode"], by_type["invoice.import"]
    note = ""
    fixed = False
    while time.monotonic() - started < TIME_LIMIT_SECONDS:
        unfinished = [act.handle for act in acts if act.handle.state not in FINISHED]
        unfinished += [handle for handle in thumbnails if handle.state not in FINISHED][:8]
        await asyncio.gather(*(handle.arefresh() for handle in unfinished))
        for act in acts:
            act.look(console)
        if video.handle.state == "active" and time.monotonic() - started > 2.5:
            await video.handle.acancel()
            note = f"cancelled {video.handle.id}"
        if dying.handle.state == "discarded" and not fixed:
            fixed = True
            invoice.write_text("invoice 7, paid\n")  # noqa: ASYNC240  (a few bytes)
            await app.client().jobs.retry_dead(dying.handle.id)
            note = f"put the missing file in place, then: ojster dead-letter retry {dying.handle.id}"
            await dying.handle.arefresh()
            dying.look(console)
        if console.is_terminal:
            live.update(_render(acts, thumbnails, note), refresh=True)
        if not unfinished and dying.handle.state in FINISHED:
            return
        await asyncio.sleep(0.1)


def _render(acts: list[_DemoJob], thumbnails: list[JobHandle[Any]], note: str) -> Group:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("job", "what it does", "state", "attempt", "progress", ""):
        table.add_column(column)
    for act in acts:
        job = act.handle.job
        table.add_row(
            job.type,
            act.story,
            state_text(job.state),
            f"{job.attempt}/{job.possible_attempts}",
            _bar(_fraction(job)),
            Text(_note(job)[:48], style="bright_black"),
        )
    done = sum(handle.state in FINISHED for handle in thumbnails)
    table.add_row(
        "thumbnail.make",
        f"{THUMBNAIL_COUNT} at once, in threads",
        f"{done} of {THUMBNAIL_COUNT}",
        "",
        _bar(done / THUMBNAIL_COUNT),
        "",
    )
    return Group(table, Text(f"\n{note}", style="bright_black"))


def _bar(fraction: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=fraction, width=24)


def _fraction(job: Job) -> float:
    if job.state in FINISHED:
        return 1.0 if job.state == "completed" else 0.0
    return float(msgspec.json.decode(job.progress)["progress"]) if job.progress else 0.0


def _note(job: Job) -> str:
    if job.state == "completed":
        return (job.result or b"").decode()
    if job.error is not None:
        return f"{job.error['type']}: {job.error['message']}"
    if job.progress is not None and job.state == "active":
        return msgspec.json.decode(job.progress)["message"] or ""
    return ""


def _summarize(
    acts: list[_DemoJob], thumbnails: list[JobHandle[Any]], console: Console, seconds: float
) -> dict[str, Any]:
    """Print the summary, and return it for ``--json``."""
    table = Table(title="Summary", title_justify="left", title_style="bold", header_style="bold")
    for column in ("job", "states", "attempts", "result"):
        table.add_column(column)
    fine = True
    for act in acts:
        job = act.handle.job
        as_told = job.state == act.ends
        fine &= as_told
        path = Text(" → ").join([Text(state, style=STATE_STYLES.get(state, "")) for state in act.states])
        table.add_row(job.type, path, str(job.attempt), _note(job) if as_told else f"expected {act.ends}")
    done = sum(handle.state == "completed" for handle in thumbnails)
    fine &= done == THUMBNAIL_COUNT
    table.add_row("thumbnail.make", Text("completed", style="green"), "1 each", f"{done} of {THUMBNAIL_COUNT}")
    console.print(table)
    console.print(
        f"{len(acts) + len(thumbnails)} jobs in {seconds:.1f} s. " + ("[green]All as expected.[/]" if fine else "")
    )
    return {
        "ok": fine,
        "seconds": round(seconds, 3),
        "jobs": [
            {"id": act.handle.id, "type": act.handle.job.type, "states": act.states, "attempt": act.handle.job.attempt}
            for act in acts
        ],
        "thumbnails": {"completed": done, "of": THUMBNAIL_COUNT},
    }


@contextmanager
def _server(database: Path, folder: str) -> Iterator[str]:
    import httpx  # imported here, because it would slow down all other commands

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ("serve", "--database", f"sqlite:///{database}", "--port", str(port), "--log-level", "warning")
    url = f"http://127.0.0.1:{port}"
    with _process(command, Path(folder) / "server.log", dict(os.environ)) as process:
        deadline = time.monotonic() + 20
        while True:
            try:
                httpx.get(f"{url}/ojs/v1/health", timeout=1).raise_for_status()
                break
            except httpx.HTTPError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = (Path(folder) / "server.log").read_text()
                    raise BackendError(f"The server did not start: {log[-1000:] or error}") from None
                time.sleep(0.05)
        yield url


@contextmanager
def _worker(url: str, folder: str) -> Iterator[None]:
    command = ("worker", "ojster.cli.demo_jobs:app", "--concurrency", "8")
    with _process(command, Path(folder) / "worker.log", os.environ | {URL_VARIABLE: url}):
        yield


@contextmanager
def _process(command: tuple[str, ...], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ojster", *command], stdout=file, stderr=file, env=environment
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)  # a worker hands back its running jobs at once
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
