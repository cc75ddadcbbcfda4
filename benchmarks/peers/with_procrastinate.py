"""Procrastinate on PostgreSQL, with 30 concurrent jobs per worker."""

import asyncio
import sys

import counter
import procrastinate
import psycopg
from common import POSTGRES, PYTHON, Workers, run_concurrently

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=POSTGRES, min_size=4, max_size=20))


@app.task(name="add")
async def add(a, b):
    counter.tick()


@app.task(name="probe")
async def probe(enqueued_at):
    counter.note(enqueued_at)


async def work():
    async with app.open_async():
        await app.run_worker_async(concurrency=30)


if __name__ == "__main__":
    asyncio.run(work())
    sys.exit()

loop = asyncio.new_event_loop()
loop.run_until_complete(app.open_async().__aenter__())
try:
    loop.run_until_complete(app.schema_manager.apply_schema_async())
except procrastinate.exceptions.ConnectorException:
    pass  # already installed


def enqueue(count):
    loop.run_until_complete(run_concurrently(lambda: add.defer_async(a=1, b=2), count))


def bulk(count):
    for _ in range(count // 1000):
        loop.run_until_complete(add.batch_defer_async(*[{"a": 1, "b": 2}] * 1000))


def probe_once(now):
    loop.run_until_complete(probe.defer_async(enqueued_at=now))


def clear():
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute("TRUNCATE procrastinate_jobs CASCADE")


worker = [PYTHON, "with_procrastinate.py"]
WORKERS = {"1 process, 30 at once": Workers([worker], 1), "2 processes, 30 at once": Workers([worker] * 2, 2)}
