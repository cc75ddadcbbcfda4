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
from tests.chaos.flow_load import UNSUCCESSFUL, FlowJudge, FlowLoad
from tests.chaos.nursery import Nursery
from tests.postgres import PostgresServer

NOTED = ("journey.work", "journey.refund")
"""Types of jobs of flows whose runs are in the ledger."""


class Figures(msgspec.Struct):
    """What a trial did, and what is wrong."""

    kills: int
    crashes: int
    """Crashes of the database."""
    seconds: float
    acknowledged: int
    """Jobs whose push was acknowledged."""
    workflows: int
    flows: int
    refused: int
    """Calls that failed at the client, after its own retries."""
    jobs: int
    runs: int
    cut: int
    repeated: int
    effects: int
    """What jobs and local steps of flows have done."""
    effects_repeated: int
    """Jobs and local steps of flows that did something again, because a kill came before that was recorded."""
    wrong: list[str]


class Options(msgspec.Struct, frozen=True):
    """What a trial does.

    Parameters
    ----------
    kills:
        Number of kills.
    flows:
        Number of flows, which are started in proportion to the kills.
    seed:
        Decides which process is killed when.
    pause:
        Longest pause before and after a kill, in seconds.
    crash_every:
        Kills for each crash of PostgreSQL.
    """

    kills: int
    flows: int = 0
    seed: int = 1
    pause: float = 0.1
    crash_every: int = 250


async def trial(folder: Path, nursery: Nursery, postgres: PostgresServer | None, options: Options) -> Figures:
    """Kill processes and crash PostgreSQL under load, let all jobs and flows end, and judge."""
    database = f"sqlite:///{folder}/jobs.db" if postgres is None else postgres.url
    fleet = Fleet(folder, database, nursery, ledger.HANDLERS)
    for server in ("one",) if postgres is None else ("one", "two"):
        fleet.server(server)
        fleet.worker(f"first of {server}", server)
        fleet.worker(f"second of {server}", server)
    fleet.worker("of the database", database)
    began = time.monotonic()
    try:
        await fleet.ready()
        load, flows = Load(fleet, list(fleet.ports), pause=0.2, workflows=0.1), FlowLoad(fleet, list(fleet.ports))
        crashes = await _kill(fleet, postgres, options, flows)
        await load.stop()
        await flows.stop()
        jobs = await settle(database, load.acknowledged, 600, UNSUCCESSFUL)
        judge = FlowJudge(flows, jobs, folder / "ledger")
        wrong = await _wrong_workflows(
            database, load.workflows, [job.type for job in jobs.values()], set(flows.ids.values())
        )
        wrong += await judge.judge(database)
    finally:
        fleet.stop()
    noted = {id for id, job in jobs.items() if not job.type.startswith("journey") or job.type in NOTED}
    judgement = ledger.judge(ledger.read(folder / "ledger"), noted)
    return Figures(
        kills=fleet.kills,
        crashes=crashes,
        seconds=round(time.monotonic() - began, 1),
        acknowledged=len(load.acknowledged),
        workflows=len(load.workflows),
        flows=len(flows.ids),
        refused=load.refused + flows.refused,
        jobs=judgement.jobs,
        runs=judgement.runs,
        cut=judgement.cut,
        repeated=judgement.repeated,
        effects=judge.effects,
        effects_repeated=judge.repeated,
        wrong=wrong + judgement.wrong,
    )


async def _kill(fleet: Fleet, postgres: PostgresServer | None, options: Options, flows: FlowLoad) -> int:
    """Kill processes while flows run; return how often the database has crashed."""
    names, chance, crashes = list(fleet.processes), random.Random(options.seed), 0
    while fleet.kills < options.kills:
        await flows.start(options.flows * (fleet.kills + 1) // options.kills)
        name = chance.choices(names, [0.2 if name in fleet.ports else 1.0 for name in names])[0]
        await asyncio.to_thread(fleet.kill, name)
        await asyncio.sleep(chance.random() * options.pause)
        fleet.revive(name)
        await asyncio.sleep(chance.random() * options.pause)
        if postgres is not None and not fleet.kills % options.crash_every:
            await asyncio.to_thread(postgres.stop, "immediate")
            await asyncio.to_thread(postgres.start)
            crashes += 1
        if not fleet.kills % 500:
            print(f"{fleet.kills} kills, {flows.started} flows started", file=sys.stderr, flush=True)
    return crashes


async def _wrong_workflows(database: str, acknowledged: set[str], types: list[str], flows: set[str]) -> list[str]:
    """Return what is wrong with the workflows: each that is no flow is completed, and has one job for its callback."""
    app = App(database)
    states: dict[str, str] = {}
    before = None
    while True:
        page = await app.client().workflows.select(WorkflowFilter(limit=200, before=before))
        states |= {info.id: info.state for info in page.workflows}
        if (before := page.next_before) is None:
            break
    await app.aclose()
    wrong = [f"the workflow {id} was acknowledged and is lost" for id in (acknowledged | flows) - states.keys()]
    states = {id: state for id, state in states.items() if id not in flows}
    wrong += [f"the workflow {id} is {state}" for id, state in states.items() if state != "completed"]
    if (callbacks := types.count("callback")) != len(states):
        wrong.append(f"{len(states)} workflows have {callbacks} callbacks")
    return wrong


def main() -> None:
    """Run a trial on each database, and print its figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="Number of kills for each database (default: 200).")
    parser.add_argument("--flows", type=int, help="Number of flows for each database (default: as many as kills).")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="One database alone.")
    parser.add_argument("--seed", type=int, default=1, help="Decides which process is killed when (default: 1).")
    parser.add_argument("--pause", type=float, default=0.1, help="Longest pause around a kill, in seconds (0.1).")
    parser.add_argument("--crash-every", type=int, default=250, help="Kills for each crash of PostgreSQL (250).")
    asked = parser.parse_args()
    flows = asked.kills if asked.flows is None else asked.flows
    options = Options(asked.kills, flows, asked.seed, asked.pause, asked.crash_every)
    failed = False
    for kind in ("sqlite", "postgres"):
        if asked.only in (None, kind):
            figures = _run(kind, options)
            print(kind, msgspec.json.format(msgspec.json.encode(figures)).decode(), flush=True)
            failed = failed or bool(figures.wrong)
    sys.exit(failed)


def _run(kind: str, options: Options) -> Figures:
    postgres = PostgresServer(fsync="on") if kind == "postgres" else None
    with tempfile.TemporaryDirectory(prefix="ojster-chaos-") as folder:
        nursery = Nursery(Path(folder))
        try:
            if postgres is not None:
                postgres.start()
                migrate_database(postgres.url)
            return asyncio.run(trial(Path(folder), nursery, postgres, options))
        finally:
            nursery.close()
            if postgres is not None:
                postgres.remove()


if __name__ == "__main__":
    main()
