"""Kill servers and workers under load, many times, and judge by a ledger outside (``python -m tests.chaos``)."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from ojster.api.app import App
from ojster.storage.open import migrate_database
from ojster.workflows.read.selection import WorkflowFilter
from tests.chaos import ledger
from tests.chaos.fleet import Fleet, Load, settle
from tests.chaos.nursery import Nursery
from tests.postgres import PostgresServer


class Figures(msgspec.Struct):
    """What a trial did, and what is wrong."""

    kills: int
    crashes: int
    """Crashes of the database."""
    seconds: float
    acknowledged: int
    """Jobs whose push was acknowledged."""
    workflows: int
    refused: int
    """Calls that failed at the client, after its own retries."""
    jobs: int
    runs: int
    cut: int
    repeated: int
    wrong: list[str]


async def trial(
    folder: Path, nursery: Nursery, *, kills: int, postgres: PostgresServer | None, seed: int, pause: float, every: int
) -> Figures:
    """Kill ``kills`` processes, crash PostgreSQL once in ``every`` of them, let all jobs end, and judge."""
    database = f"sqlite:///{folder}/jobs.db" if postgres is None else postgres.url
    fleet = Fleet(folder, database, nursery, ledger.HANDLERS)
    for server in ("one",) if postgres is None else ("one", "two"):
        fleet.server(server)
        fleet.worker(f"first of {server}", server)
        fleet.worker(f"second of {server}", server)
    fleet.worker("of the database", database)
    names, chance, began, crashes = list(fleet.processes), random.Random(seed), time.monotonic(), 0
    try:
        await fleet.ready()
        load = Load(fleet, list(fleet.ports), pause=0.2, workflows=0.1)
        while fleet.kills < kills:
            name = chance.choices(names, [0.2 if name in fleet.ports else 1.0 for name in names])[0]
            await asyncio.to_thread(fleet.kill, name)
            await asyncio.sleep(chance.random() * pause)
            fleet.revive(name)
            await asyncio.sleep(chance.random() * pause)
            if postgres is not None and not fleet.kills % every:
                await asyncio.to_thread(postgres.stop, "immediate")
                await asyncio.to_thread(postgres.start)
                crashes += 1
            if not fleet.kills % 500:
                print(f"{fleet.kills} kills, {len(load.acknowledged)} jobs pushed", file=sys.stderr, flush=True)
        await load.stop()
        completed = await settle(database, load.acknowledged, 600)
        wrong = await _wrong_workflows(database, load.workflows, [job.type for job in completed.values()])
    finally:
        fleet.stop()
    found = ledger.judge(ledger.read(folder / "ledger"), completed)
    return Figures(
        kills=fleet.kills,
        crashes=crashes,
        seconds=round(time.monotonic() - began, 1),
        acknowledged=len(load.acknowledged),
        workflows=len(load.workflows),
        refused=load.refused,
        jobs=found.jobs,
        runs=found.runs,
        cut=found.cut,
        repeated=found.repeated,
        wrong=wrong + found.wrong,
    )


async def _wrong_workflows(database: str, acknowledged: set[str], types: list[str]) -> list[str]:
    """Return what is wrong with the workflows: each is completed, and has one job for its callback."""
    app = App(database)
    states: dict[str, str] = {}
    before = None
    while True:
        page = await app.client().workflows.select(WorkflowFilter(limit=200, before=before))
        states |= {info.id: info.state for info in page.workflows}
        if (before := page.next_before) is None:
            break
    await app.aclose()
    wrong = [f"the workflow {id} was acknowledged and is lost" for id in acknowledged - states.keys()]
    wrong += [f"the workflow {id} is {state}" for id, state in states.items() if state != "completed"]
    if (callbacks := types.count("callback")) != len(states):
        wrong.append(f"{len(states)} workflows have {callbacks} callbacks")
    return wrong


def main() -> None:
    """Run a trial on each database, and print its figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="Number of kills for each database (default: 200).")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="One database alone.")
    parser.add_argument("--seed", type=int, default=1, help="Decides which process is killed when (default: 1).")
    parser.add_argument("--pause", type=float, default=0.1, help="Longest pause around a kill, in seconds (0.1).")
    parser.add_argument("--crash-every", type=int, default=250, help="Kills for each crash of PostgreSQL (250).")
    given = parser.parse_args()
    failed = False
    for kind in ("sqlite", "postgres"):
        if given.only in (None, kind):
            figures = _run(kind, given.kills, given.seed, given.pause, given.crash_every)
            print(kind, msgspec.json.format(msgspec.json.encode(figures)).decode(), flush=True)
            failed = failed or bool(figures.wrong)
    sys.exit(failed)


def _run(kind: str, kills: int, seed: int, pause: float, every: int) -> Figures:
    postgres = PostgresServer(fsync="on") if kind == "postgres" else None
    with tempfile.TemporaryDirectory(prefix="ojster-chaos-") as folder:
        nursery = Nursery(Path(folder))
        try:
            if postgres is not None:
                postgres.start()
                migrate_database(postgres.url)
            return asyncio.run(
                trial(Path(folder), nursery, kills=kills, postgres=postgres, seed=seed, pause=pause, every=every)
            )
        finally:
            nursery.close()
            if postgres is not None:
                postgres.remove()


if __name__ == "__main__":
    main()
