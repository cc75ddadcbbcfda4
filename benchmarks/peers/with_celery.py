"""Celery on Redis: results ignored, prefetch multiplier 128."""

import counter
from celery import Celery, group
from common import BIN, REDIS, Workers, flush

app = Celery("with_celery", broker=REDIS)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
)


@app.task
def add(a, b):
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
