"""Fail a PostgreSQL cluster over under load, many times, and judge by what is known outside of it.

``python -m tests.chaos.patroni_trial --rounds 5`` starts etcd and a Patroni cluster with synchronous replication,
servers and workers with a URL of several hosts, clients that push, and a reader of the event stream that resumes. In
each round the primary fails in one of these ways, and is a standby again afterwards:

* ``kill``: SIGKILL for its Patroni and all of its PostgreSQL, as if the machine had lost its power;
* ``switchover``: ``patronictl switchover``;
* ``by hand``: with Patroni paused, the primary is killed, and the standby promoted with ``pg_ctl promote``;
* ``freeze``: SIGSTOP, as if the machine hung; it is reset after another has taken its place.

Everything is on 127.0.0.1, in a temporary folder, which is removed at the end. Needs the packages patroni, etcd-server
and postgresql of Debian, or the like.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec
import psycopg

from ojster.client.client import HttpClient
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.handlers.job_options import JobOptions, request_of
from ojster.storage.open import migrate_database
from tests.chaos import ledger
from tests.chaos.cluster import Cluster, missing_programs
from tests.chaos.fleet import OPTIONS, Fleet, Load, settle
from tests.chaos.follower import Follower

HANDLERS = (
    ledger.HANDLERS
    + """
@app.job("work.slow")
async def work_slow(job: JobContext, n):
    note("start", job)
    try:
        await asyncio.sleep(0.5 + random.random() * 3)
    except BaseException:
        note("fail", job)
        raise
    note("end", job)
"""
)
"""Source of the application: the handlers of the ledger, and one that may run while the primary fails."""

SERVERS = ("one", "two")

IDLE_JOBS = 10
"""Number of jobs of each worker by which wake-ups are measured."""

LEASE_SECONDS = "10"
"""Leases of jobs, in seconds: longer than a worker may need to find a new primary while the old one hangs."""

RECOVERY_SECONDS = 90.0
"""Maximum time after a promotion until all servers and workers work again, in seconds."""

LOAD_SECONDS = 3.0
"""Time under load before and after each failover, in seconds."""

BLURRED_SECONDS = 1.0
"""Time before a failure in which a job may have ended unacknowledged, or an event may be lost, in seconds."""


class Round(msgspec.Struct):
    """What happened in a round; durations in seconds, points in time on the monotonic clock."""

    kind: str
    failed_at: float
    promoted_at: float
    enqueues: dict[str, float]
    """For each server, the time from the promotion to the first acknowledged enqueue."""
    starts: dict[str, float]
    """For each worker, the time from the promotion to the first start of a job."""
    idle: list[float] = []
    """Times from an enqueue to the start of its job, without any other load."""
    over_at: float = 0.0
    """When all servers and workers worked again."""


class Producer:
    """A client that pushes one job after the other to a server, and notes when each is acknowledged."""

    def __init__(self, url: str) -> None:
        self.acknowledged: dict[str, float] = {}
        self.longest = 0.0
        """The longest time that an enqueue has taken, with the client's retries, in seconds."""
        self.refused = 0
        self._client = HttpClient(url, patience=RECOVERY_SECONDS)
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._push())

    async def stop(self) -> None:
        """Wait for the last answer, and stop."""
        self._stop.set()
        await self._task
        await self._client.close()

    async def _push(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            began = time.monotonic()
            try:
                kind = "work.thread" if number % 5 else "work.slow"
                (pushed,) = await self._client.jobs.enqueue([request_of(kind, [number], OPTIONS)])
                self.acknowledged[pushed.job.id] = time.monotonic()
            except OjsterError as error:
                print(f"an enqueue has failed: {error}", file=sys.stderr)
                self.refused += 1
            self.longest = max(self.longest, time.monotonic() - began)
            await asyncio.sleep(0.05)


class Trial:
    """A cluster, servers and workers, and the rounds in which the primary fails."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.fleet = Fleet(folder, cluster.url, None, HANDLERS)
        self.ledger = folder / "ledger"
        self.rounds: list[Round] = []
        self.acknowledged: set[str] = set()
        self.workflows = 0
        self.refused = 0
        self.longest = 0.0

    def start(self) -> None:
        """Start two servers, a worker of one of them, and two workers of the database, each also with its own queue."""
        for name in SERVERS:
            self.fleet.server(name)
        for name, url in (("a", "one"), ("b", self.cluster.url), ("c", self.cluster.url)):
            self.fleet.worker(name, url, queues=f"default,only-{name}", lease=LEASE_SECONDS)

    @property
    def workers(self) -> list[str]:
        return [name for name in self.fleet.processes if name not in SERVERS]

    async def round(self, kind: str) -> None:
        """Let the primary fail under load, wait until everything works again, and bring the primary back."""
        await asyncio.to_thread(self.cluster.wait_until_whole)
        load = Load(self.fleet, list(SERVERS), pause=0.2, workflows=0.1)
        producers = {name: Producer(self.fleet.url_of(name)) for name in SERVERS}
        await asyncio.sleep(LOAD_SECONDS)
        failed_at, promoted_at = await asyncio.to_thread(self.cluster.fail, kind)
        one = Round(kind, failed_at, promoted_at, {}, {})
        self.rounds.append(one)
        while len(one.enqueues) < len(SERVERS) or len(one.starts) < len(self.workers):
            if time.monotonic() > promoted_at + RECOVERY_SECONDS:
                print(f"not everything has recovered: {one}\n{self.fleet.logs()}", file=sys.stderr)
                break
            await asyncio.sleep(0.2)
            self._note_recovery(one, producers)
        one.over_at = time.monotonic()
        await asyncio.sleep(LOAD_SECONDS)
        await load.stop()
        for producer in producers.values():
            await producer.stop()
            self.acknowledged |= producer.acknowledged.keys()
            self.refused += producer.refused
            self.longest = max(self.longest, producer.longest)
        self.acknowledged |= load.acknowledged
        self.workflows += len(load.workflows)
        self.refused += load.refused
        await settle(self.cluster.url, self.acknowledged)
        one.idle = await self._idle()
        await asyncio.to_thread(self.cluster.bring_back)
        print(line_of(one), flush=True)

    def _note_recovery(self, one: Round, producers: dict[str, Producer]) -> None:
        for name, producer in producers.items():
            if after := [at for at in producer.acknowledged.values() if at > one.promoted_at]:
                one.enqueues[name] = min(after) - one.promoted_at
        starts = self._starts()
        for name in self.workers:
            pid = self.fleet.processes[name].pid
            if after := [at for process, at in starts.values() if process == pid and at > one.promoted_at]:
                one.starts[name] = min(after) - one.promoted_at

    def _starts(self) -> dict[tuple[str, int], tuple[int, float]]:
        """Return the process and the time of each start, by the job and the number of its run."""
        found = {}
        for job, runs in ledger.read(self.ledger).items():
            for number, run in enumerate(runs):
                found[job, number] = (run.process, run.started / 1e9)
        return found

    async def _idle(self) -> list[float]:
        """Return how long jobs of idle workers wait for their start: each worker's, pushed to each server in turn."""
        clients = [HttpClient(self.fleet.url_of(name)) for name in SERVERS]
        sent: dict[str, float] = {}
        for name in self.workers:
            for number in range(IDLE_JOBS):
                request = request_of("work.thread", [number], JobOptions(queue=f"only-{name}"))
                began = time.monotonic()
                (pushed,) = await clients[number % len(clients)].jobs.enqueue([request])
                sent[pushed.job.id] = began
                await asyncio.sleep(0.15)
        await settle(self.cluster.url, set(sent))
        self.acknowledged |= sent.keys()
        for client in clients:
            await client.close()
        starts = self._starts()
        return [starts[id, 0][1] - began for id, began in sent.items()]

    def judge(self, completed: dict[str, Job], follower: Follower, *, events_may_be_missed: bool) -> list[str]:
        """Return what is wrong."""
        runs = ledger.read(self.ledger)
        found = ledger.judge(runs, completed)
        wrong = found.wrong + follower.wrong
        windows = [(one.failed_at - BLURRED_SECONDS, one.over_at) for one in self.rounds]
        for job, all_runs in runs.items():
            ends = [run.ended / 1e9 for run in all_runs if run.ended is not None and run.succeeded]
            if len(ends) > 1 and not _is_in(min(ends), windows):
                wrong.append(f"{job} succeeded {len(ends)} times, and the first was not about a failover")
        blind = windows if events_may_be_missed else []
        unseen = [job for id, job in completed.items() if id not in follower.completed]
        offset = time.time() - time.monotonic()
        silent = [job for job in unseen if not _is_in((job.finished_at or 0) / 1e6 - offset, blind)]
        wrong += [f"{job.id} was completed, and the stream did not say so" for job in silent]
        wrong += [f"a gap in the stream at {at:.1f}, after {id}" for at, id in follower.gaps if not _is_in(at, blind)]
        if len(follower.gaps) > len(self.rounds):
            wrong.append(f"{len(follower.gaps)} gaps in the stream, in {len(self.rounds)} rounds: {follower.gaps}")
        wrong += [f"{name} has ended" for name, one in self.fleet.processes.items() if one.poll() is not None]
        print(
            f"\n{len(self.acknowledged)} jobs and {self.workflows} workflows acknowledged, {self.refused} calls "
            f"refused, longest enqueue {self.longest:.1f} s; {found.jobs} jobs in {found.runs} runs, "
            f"{found.repeated} succeeded again; {len(follower.numbers)} events, {follower.resumed} resumptions, "
            f"{len(follower.gaps)} gaps told, {len(unseen)} completions lost to them"
        )
        return wrong


def _is_in(moment: float, windows: list[tuple[float, float]]) -> bool:
    return any(begin <= moment <= end for begin, end in windows)


HEAD = f"{'round':<11}{'promoted':>9}{'enqueue':>9}{'all':>7}{'start':>8}{'all':>7}{'idle p50':>10}{'max':>8}"


def line_of(one: Round) -> str:
    """Return a round as a line of the table: seconds, and milliseconds where idle."""
    enqueues, starts = one.enqueues.values() or [float("nan")], one.starts.values() or [float("nan")]
    return (
        f"{one.kind:<11}{one.promoted_at - one.failed_at:9.1f}{min(enqueues):9.2f}{max(enqueues):7.2f}"
        f"{min(starts):8.2f}{max(starts):7.2f}{median(one.idle) * 1e3:7.1f} ms{max(one.idle) * 1e3:5.0f} ms"
    )


async def run(cluster: Cluster, folder: Path, kinds: list[str], *, events_may_be_missed: bool) -> bool:
    """Run the rounds, print the table, and return whether anything is wrong."""
    trial = Trial(cluster, folder)
    trial.start()
    try:
        await trial.fleet.ready()
        follower = Follower([trial.fleet.url_of(name) for name in SERVERS])
        await follower.began.wait()
        await asyncio.sleep(1)  # until all processes have heard that somebody follows
        print(HEAD, flush=True)
        for kind in kinds:
            await trial.round(kind)
        completed = await settle(cluster.url, trial.acknowledged)
        await asyncio.sleep(2)
        await follower.stop()
        wrong = trial.judge(completed, follower, events_may_be_missed=events_may_be_missed)
    except BaseException:
        print(trial.fleet.logs(), cluster.logs(), file=sys.stderr)
        raise
    finally:
        trial.fleet.stop()
    print(f"\n{HEAD}\n" + "\n".join(map(line_of, trial.rounds)))
    print(
        "\nSeconds: from the failure to the promotion; from the promotion to the first acknowledged enqueue, and until "
        "every server had one;\nto the first start of a job, and until every worker had one. Idle: from an enqueue to "
        "the start of its job."
    )
    print("\n".join(["WRONG:", *wrong[:50]]) if wrong else "\nNothing is wrong.")
    return bool(wrong)


def main() -> None:
    """Run a trial."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.patroni_trial", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="Number of times the primary is killed (default: 5).")
    parser.add_argument("--switchovers", type=int, default=1, help="Number of switchovers (default: 1).")
    parser.add_argument("--by-hand", type=int, default=2, help="Number of promotions by hand (default: 2).")
    parser.add_argument("--freezes", type=int, default=0, help="Number of times the primary is frozen (default: 0).")
    parser.add_argument(
        "--events",
        choices=["logged", "unlogged"],
        default="logged",
        help="Whether events are in the write-ahead log, so that none may be missed (default: logged).",
    )
    parser.add_argument("--nodes", type=int, default=2, help="Number of PostgreSQL servers (default: 2).")
    parser.add_argument("--ttl", type=int, default=12, help="Time after which Patroni promotes, in seconds (12).")
    given = parser.parse_args()
    if missing := missing_programs():
        sys.exit(f"Missing: {', '.join(missing)}. On Debian: apt-get install patroni etcd-server postgresql")
    kinds = ["kill"] * given.rounds + ["switchover"] * given.switchovers
    kinds += ["by hand"] * given.by_hand + ["freeze"] * given.freezes
    with tempfile.TemporaryDirectory(prefix="ojster-ha-") as folder:
        os.chmod(folder, 0o755)  # servers and workers write here, PostgreSQL in a folder of its own user
        cluster = Cluster(Path(folder) / "cluster", nodes=given.nodes, ttl=given.ttl)
        try:
            cluster.start()
            with psycopg.connect(cluster.url, autocommit=True) as connection:
                connection.execute("CREATE TABLE public.probe AS SELECT 0 AS number")
            migrate_database(cluster.url, events=given.events)
            failed = asyncio.run(run(cluster, Path(folder), kinds, events_may_be_missed=given.events == "unlogged"))
        finally:
            cluster.stop()
    sys.exit(failed)


if __name__ == "__main__":
    main()
