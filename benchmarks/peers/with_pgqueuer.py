"""PgQueuer on PostgreSQL, in batches of 200 and in its default batches of 10."""

import sys
from datetime import timedelta

import asyncpg
import counter
import uvloop
from common import POSTGRES, PYTHON, Workers, run_concurrently
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries


async def work(batch):
    pool = await asyncpg.create_pool(POSTGRES, min_size=2, max_size=4)
    queuer = PgQueuer.from_asyncpg_pool(pool)

    @queuer.entrypoint("add")
    async def add(job):
        counter.tick()

    @queuer.entrypoint("probe")
    async def probe(job):
        counter.note(float(job.payload))

    await queuer.run(batch_size=batch, dequeue_timeout=timedelta(seconds=1))


if __name__ == "__main__":
    uvloop.run(work(int(sys.argv[1])))
    sys.exit()


async def connect():
    pool = await asyncpg.create_pool(POSTGRES, min_size=4, max_size=10)
    queries = Queries(AsyncpgPoolDriver(pool))
    try:
        await queries.install()
    except asyncpg.PostgresError:
        pass  # already installed
    return pool, queries


loop = uvloop.new_event_loop()
pool, queries = loop.run_until_complete(connect())


def enqueue(count):
    loop.run_until_complete(run_concurrently(lambda: queries.enqueue("add", b'{"a":1,"b":2}'), count))


def bulk(count):
    for _ in range(count // 1000):
        loop.run_until_complete(queries.enqueue(["add"] * 1000, [b'{"a":1,"b":2}'] * 1000, [0] * 1000))


def probe_once(now):
    loop.run_until_complete(queries.enqueue("probe", str(now).encode()))


def clear():
    loop.run_until_complete(pool.execute("TRUNCATE pgqueuer, pgqueuer_log"))


def worker(batch):
    return [PYTHON, "with_pgqueuer.py", str(batch)]


WORKERS = {
    "1 process, batches of 200": Workers([worker(200)], 1),
    "2 processes, batches of 200": Workers([worker(200)] * 2, 2),
    "1 process, batches of 10": Workers([worker(10)], 1),
}
