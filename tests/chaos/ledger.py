"""A ledger of what handlers do, kept outside of Ojster, and its judgement.

Each handler appends a line when it starts and when it ends; a line is written whole or not at all, whatever is killed.
All processes of a machine share the clock of the ledger.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import msgspec

HANDLERS = """
import asyncio, os, random, time
from ojster import App, JobContext
from tests.chaos import journeys
app = App()
ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(what, job):
    os.write(ledger, f"{what} {job.id} {os.getpid()} {time.monotonic_ns()}\\n".encode())
@app.job("work")
async def work(job: JobContext, n):
    note("start", job)
    try:
        await asyncio.sleep(random.random() * 0.02)
    except asyncio.CancelledError:  # its lease has expired, because the machine was busy: it may begin here again
        note("fail", job)
        raise
    if random.random() < 0.05:
        note("fail", job)
        raise ConnectionError("now and then")
    note("end", job)
    return n
@app.job("work.thread")
def work_thread(job: JobContext, n):
    note("start", job)
    note("end", job)
    return n
@app.job("callback")
async def callback(job: JobContext, n):
    note("start", job)
    note("end", job)
journeys.Journeys(app, note)
"""
"""Source of the application."""


class Run(msgspec.Struct):
    """A run of a handler: when it started and ended, in nanoseconds; a run that was killed has no end."""

    process: int
    started: int
    ended: int | None = None
    succeeded: bool = False


class Judgement(msgspec.Struct):
    """The figures of a ledger, and what is wrong."""

    jobs: int
    runs: int
    cut: int
    """Runs that were killed."""
    repeated: int
    """Jobs whose handler succeeded again, because a process was killed before it had acknowledged the first success."""
    wrong: list[str]


def read(path: Path) -> dict[str, list[Run]]:
    """Return the runs of each job, by its id, in their order."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for line in path.read_text().splitlines():
        what, job, process, at = line.split()
        if what == "start":
            runs[job].append(Run(int(process), int(at)))
        else:
            (run,) = [run for run in runs[job] if run.process == int(process) and run.ended is None]
            run.ended, run.succeeded = int(at), what == "end"
    return runs


def judge(runs: dict[str, list[Run]], completed: Iterable[str]) -> Judgement:
    """Judge the runs of completed jobs.

    Each completed job has a run that succeeded, no job has been run that does not exist, and no run of a job began
    before a run of it in another process had ended, if that was not killed.
    """
    known = set(completed)
    wrong = [f"{job} is completed, but no run of it succeeded" for job in known if not _succeeded(runs.get(job, []))]
    wrong += [f"{job} was run and is not completed" for job in runs.keys() - known]
    for job, all_runs in runs.items():
        whole = sorted((run for run in all_runs if run.ended is not None), key=lambda run: run.started)
        for before, after in pairwise(whole):
            if before.ended is not None and after.started < before.ended:
                wrong.append(f"{job} ran twice at the same time")
    counts = Counter(len([run for run in all_runs if run.succeeded]) for all_runs in runs.values())
    return Judgement(
        jobs=len(runs),
        runs=sum(map(len, runs.values())),
        cut=sum(run.ended is None for all_runs in runs.values() for run in all_runs),
        repeated=sum(number for times, number in counts.items() if times > 1),
        wrong=wrong,
    )


def _succeeded(runs: Iterable[Run]) -> bool:
    return any(run.succeeded for run in runs)
