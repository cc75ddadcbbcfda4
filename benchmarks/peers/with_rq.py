"""RQ on Redis: results not kept, one or two ``SimpleWorker`` processes, which do not fork."""

import counter
from common import BIN, REDIS, REDIS_PORT, Workers, flush
from redis import Redis
from rq import Queue

queue = Queue(connection=Redis(port=REDIS_PORT))


def add(a, b):
    counter.tick()


def probe(enqueued_at):
    counter.note(enqueued_at)


def enqueue(count):
    for _ in range(count):
        queue.enqueue("with_rq.add", 1, 2, result_ttl=0)


def bulk(count):
    for _ in range(count // 1000):
        queue.enqueue_many([Queue.prepare_data("with_rq.add", (1, 2), result_ttl=0) for _ in range(1000)])


def probe_once(now):
    queue.enqueue("with_rq.probe", now, result_ttl=0)


def worker(kind):
    return [str(BIN / "rq"), "worker", "-q", "-u", REDIS, "-w", kind, "--disable-job-desc-logging"]


clear = flush
simple = worker("rq.SimpleWorker")
WORKERS = {"2 simple workers": Workers([simple] * 2, 2), "1 simple worker": Workers([simple], 1)}
