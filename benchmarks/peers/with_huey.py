"""Huey on Redis, or with PEERS_HUEY=sqlite on a SQLite file, without results."""

import os

import counter
from common import BIN, REDIS_PORT, Workers, flush
from huey import RedisHuey, SqliteHuey

on_file = os.environ.get("PEERS_HUEY") == "sqlite"
huey = (
    SqliteHuey(filename=str(counter.FOLDER / "huey.db"), results=False)
    if on_file
    else RedisHuey("peers", port=REDIS_PORT, results=False)
)


@huey.task()
def add(a, b):
    counter.tick()


@huey.task()
def probe(enqueued_at):
    counter.note(enqueued_at)


def enqueue(count):
    for _ in range(count):
        add(1, 2)


def probe_once(now):
    probe(now)


def clear():
    huey.flush() if on_file else flush()


def worker(kind, count):
    return [[str(BIN / "huey_consumer"), "with_huey.huey", "-q", "-k", kind, "-w", str(count)]]


bulk = None
WORKERS = {"4 threads": Workers(worker("thread", 4), 1), "2 processes": Workers(worker("process", 2), 2)}
