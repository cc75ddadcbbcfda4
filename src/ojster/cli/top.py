"""The ``ojster top`` command: queues, workers and running jobs, live in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ojster.cli.declared import Seconds
from ojster.cli.option_rules import excludes
from ojster.cli.options import ask, examples, with_url
from ojster.cli.output import ago, console, state_text
from ojster.client.interface import Client
from ojster.core.errors import NotFound
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.core.timestamps import system_clock
from ojster.fleet.unrunnable import Unrunnable
from ojster.fleet.workers import KnownWorker
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.queues.queues import QueueStatistics

MAX_RUNNING: Final = 20
"""Maximum number of running jobs that are shown, those that have run longest first."""

MAX_LOOKED_AT: Final = 200
"""Maximum number of running jobs among which those are found."""

SHOWN_STATES: Final = (
    JobState.AVAILABLE,
    JobState.SCHEDULED,
    JobState.ACTIVE,
    JobState.RETRYABLE,
    JobState.PENDING,
    JobState.DISCARDED,
)


class Look(msgspec.Struct, frozen=True):
    """What there is at a moment, in seconds of the monotonic clock."""

    at: float
    queues: Sequence[QueueStatistics]
    workers: Sequence[KnownWorker]
    running: Sequence[Job]
    unrunnable: Sequence[Unrunnable]


@click.command(
    epilog=examples("ojster top", "ojster top --interval 5 --url http://127.0.0.1:8080", "ojster top --once")
)
@click.option(
    "--interval",
    type=Seconds(0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between looks.",
)
@click.option("--once", is_flag=True, help="Look once and end; so does a command whose output is no terminal.")
@with_url
@excludes("once", "interval")
def top(interval: float, once: bool, url: str) -> None:
    """Show queues, workers, running jobs, and jobs that no worker can run, until Ctrl-C."""

    async def follow(client: Client) -> None:
        before = await look(client)
        if once or not console.is_terminal:
            console.print(show(before, before))
            return
        with Live(show(before, before), console=console, screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(interval)
                now = await look(client)
                live.update(show(before, now), refresh=True)
                before = now

    with contextlib.suppress(KeyboardInterrupt):
        ask(url, follow)


async def look(client: Client) -> Look:
    """Return what there is now."""
    queues, workers, page, unrunnable = await asyncio.gather(
        client.queues.all(),
        client.fleet.all(),
        client.jobs.select(JobFilter(states=(JobState.ACTIVE.value,)), Page(MAX_LOOKED_AT)),
        client.fleet.unrunnable(),
    )
    answers = await asyncio.gather(*[client.queues.statistics(queue.name) for queue in queues], return_exceptions=True)
    statistics = []
    for answer in answers:
        if isinstance(answer, QueueStatistics):
            statistics.append(answer)
        elif not isinstance(answer, NotFound):  # a queue may be deleted in between
            raise answer
    running = sorted(page.jobs, key=lambda job: job.started_at or 0)[:MAX_RUNNING]
    return Look(time.monotonic(), statistics, workers, running, unrunnable)


def show(before: Look, now: Look) -> Group:
    """Return a picture of a moment, with rates since the moment before."""
    parts: list[Any] = [_summary(now), _queues(before, now)]
    if now.workers:
        parts.append(_workers(now))
    if now.unrunnable:
        parts.append(_unrunnable(now))
    if now.running:
        parts.append(_running(now))
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    """Return an empty table. Columns with ``#`` in front of their name are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, expand=False)
    for name in columns:
        table.add_column(name.removeprefix("# "), justify="right" if name.startswith("#") else "left", no_wrap=True)
    return table


def _summary(now: Look) -> Text:
    waiting = sum(queue.counts.get(JobState.AVAILABLE, 0) for queue in now.queues)
    active = sum(queue.counts.get(JobState.ACTIVE, 0) for queue in now.queues)
    room = sum(worker.concurrency or 0 for worker in now.workers)
    said = f"{waiting:,} jobs wait, {active:,} run; {len(now.workers)} workers with room for {room:,}"
    lacks = waiting and not now.workers
    return Text(f"{said}. No worker takes them.\n" if lacks else f"{said}.\n", style="bold red" if lacks else "")


def _queues(before: Look, now: Look) -> Table:
    table = _table("Queues", "queue", *(f"# {state}" for state in SHOWN_STATES), "# completed/s", "# discarded/s", "")
    seconds = max(now.at - before.at, 0.001)
    known = {queue.queue.name: queue for queue in before.queues}
    for queue in now.queues:
        old = known.get(queue.queue.name, queue)
        ended = [
            max(0, queue.counts.get(state, 0) - old.counts.get(state, 0))
            for state in (JobState.COMPLETED, JobState.DISCARDED)
        ]
        table.add_row(
            Text(queue.queue.name),
            *(_number(queue.counts.get(state, 0), state) for state in SHOWN_STATES),
            *(f"{jobs / seconds:.1f}" if jobs else "" for jobs in ended),
            Text("paused", style="yellow") if queue.queue.paused_at else "",
        )
    return table


def _number(jobs: int, state: JobState) -> Text:
    return Text(f"{jobs:,}" if jobs else "·", style=str(state_text(state).style) if jobs else "bright_black")


def _workers(now: Look) -> Table:
    table = _table("\nWorkers", "worker", "state", "# jobs", "queues", "last seen")
    for worker in now.workers:
        state = worker.state if worker.enabled else "disabled"
        busy = f"{worker.active_jobs}/{worker.concurrency}"
        table.add_row(Text(worker.id), state, busy, Text(", ".join(worker.queues)), ago(worker.last_seen_at))
    return table


def _unrunnable(now: Look) -> Table:
    table = _table("\nNo worker can run", "queue", "type", "# jobs", "because")
    for group in now.unrunnable:
        reasons = Text("; ".join(group.reasons), style="red")
        least = "" if group.is_complete else "≥ "
        table.add_row(Text(group.queue), Text(group.type or ""), f"{least}{group.jobs:,}", reasons)
    return table


def _running(now: Look) -> Table:
    table = _table("\nRunning longest", "job", "type", "queue", "# attempt", "# seconds", "worker")
    clock = system_clock()
    for job in now.running:
        seconds = "" if job.started_at is None else f"{max(0, clock - job.started_at) / 1e6:,.0f}"
        table.add_row(job.id, Text(job.type), Text(job.queue), f"{job.attempt}", seconds, Text(job.worker_id or ""))
    return table
