"""Dramatiq on Redis, with its default middleware."""

import counter
import dramatiq
from common import BIN, REDIS, Workers, flush, run_in_threads
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=REDIS))


@dramatiq.actor
def add(a, b):
    counter.tick()


@dramatiq.actor
def probe(enqueued_at):
    counter.note(enqueued_at)


def enqueue(count):
    run_in_threads(lambda: add.send(1, 2), count)


def probe_once(now):
    probe.send(now)


def worker(processes, threads):
    return [[str(BIN / "dramatiq"), "with_dramatiq", "-p", str(processes), "-t", str(threads)]]


bulk = None
clear = flush
WORKERS = {"2 processes of 8 threads": Workers(worker(2, 8), 2), "2 processes of 2 threads": Workers(worker(2, 2), 2)}
