"""Celery on Redis: results ignored, prefetch multiplier 128; with PEERS_WORKFLOWS, results in Redis for chords."""

import os

import counter
from celery import Celery, chain, chord, group
from common import BIN, REDIS, Workers, flush

MAX_CHAINS = 200
app = Celery("with_celery", broker=REDIS, backend=REDIS if os.environ.get("PEERS_WORKFLOWS") else None)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
)


@app.task
def add(a, b):
    counter.tick()


@app.task(ignore_result=False)  # a chord counts the results of its members
def member(a, b):
    counter.tick()


@app.task
def probe(enqueued_at):
    counter.note(enqueued_at)


def enqueue(count):
    for _ in range(count):
        add.delay(1, 2)


def bulk(count):
    for _ in range(count // 1000):
        group(add.s(1, 2) for _ in range(1000)).apply_async()


def start_chains(count, length):
    for _ in range(count):
        chain(add.si(1, 2) for _ in range(length)).apply_async()


def start_fan_out(width):
    chord((member.si(1, 2) for _ in range(width)), add.si(1, 2)).apply_async()


def probe_once(now):
    probe.delay(now)


def worker(*options):
    plain = ("-l", "error", "--without-gossip", "--without-mingle", "--without-heartbeat")
    return [[str(BIN / "celery"), "-A", "with_celery", "worker", *plain, *options]]


clear = flush
WORKERS = {
    "2 processes": Workers(worker("-P", "prefork", "-c", "2"), 2),
    "4 threads": Workers(worker("-P", "threads", "-c", "4"), 1),
}
