"""taskiq on a Redis stream, without a result backend."""

import asyncio

import counter
from common import BIN, REDIS, Workers, flush, run_concurrently
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=REDIS)


@broker.task
async def add(a: int, b: int) -> None:
    counter.tick()


@broker.task
async def probe(enqueued_at: float) -> None:
    counter.note(enqueued_at)


loop = asyncio.new_event_loop()


def enqueue(count):
    loop.run_until_complete(run_concurrently(lambda: add.kiq(1, 2), count))


def probe_once(now):
    loop.run_until_complete(probe.kiq(now))


def clear():
    flush()
    loop.run_until_complete(broker.startup())


def worker(processes):
    options = ("--log-level", "ERROR", "--max-async-tasks", "100", "--max-prefetch", "100")
    return [[str(BIN / "taskiq"), "worker", "with_taskiq:broker", "--workers", str(processes), *options]]


bulk = None
WORKERS = {"2 processes": Workers(worker(2), 2), "1 process": Workers(worker(1), 1)}
