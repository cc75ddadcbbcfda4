"""Ojster on PostgreSQL, or with PEERS_OJSTER=sqlite on a SQLite file; workers use the database directly."""

import asyncio
import os

import apsw
import counter
import psycopg
import uvloop
from common import BIN, POSTGRES, Workers, run_concurrently

from ojster import App, Flow, chain, group

on_file = os.environ.get("PEERS_OJSTER") == "sqlite"
url = f"sqlite:///{counter.FOLDER}/ojster.db" if on_file else POSTGRES
app = App(url, migrate=True)


@app.job("add", queue="default")
async def add(a, b):
    counter.tick()


@app.job("probe")
async def probe(enqueued_at):
    counter.note(enqueued_at)


async def count_step():
    counter.tick()


@app.flow("steps")
async def steps_of(flow: Flow, length: int) -> None:
    for _ in range(length):
        await flow.step("step", count_step)


loop = uvloop.new_event_loop() if __name__ == "with_ojster" else asyncio.new_event_loop()


def enqueue(count):
    loop.run_until_complete(run_concurrently(lambda: add.aenqueue(1, 2), count))


def bulk(count):
    for _ in range(count // 1000):
        loop.run_until_complete(add.aenqueue_many([(1, 2)] * 1000))


def start_chains(count, length):
    steps = chain(add.s(1, 2) for _ in range(length))
    loop.run_until_complete(run_concurrently(lambda: app.astart(steps), count))


def start_flows(count, length):
    loop.run_until_complete(run_concurrently(lambda: steps_of.astart(length), count))


def start_fan_out(width):
    loop.run_until_complete(app.astart(chain(group(add.s(1, 2) for _ in range(width)), add.s(1, 2))))


def probe_once(now):
    loop.run_until_complete(probe.aenqueue(now))


def clear():
    loop.run_until_complete(app.aclose())
    if on_file:
        app.service()
        connection = apsw.Connection(str(counter.FOLDER / "ojster.db"))
        connection.set_busy_timeout(10_000)
        connection.execute("DELETE FROM jobs; DELETE FROM payloads; DELETE FROM job_counts; DELETE FROM queue_minutes")
        connection.close()
    else:
        app.service()
        with psycopg.connect(POSTGRES, autocommit=True) as connection:
            connection.execute(
                "TRUNCATE ojster.jobs, ojster.payloads, ojster.job_count_slots, ojster.queue_minutes, ojster.queues"
            )


def worker(concurrency):
    return [str(BIN / "ojster"), "worker", "with_ojster:app", "--concurrency", str(concurrency), "--log-level", "error"]


WORKERS = {"1 process": Workers([worker(500)], 1), "2 processes": Workers([worker(500)] * 2, 2)}
