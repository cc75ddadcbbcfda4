"""Absurd on PostgreSQL, flows alone: a task whose steps are checkpoints. Its schema comes with its command line."""

import sys
import threading

import counter
import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL
from common import POSTGRES, PYTHON, Workers, run_in_threads

QUEUE = "peers"
at_once = 100


def work():
    app = Absurd(POSTGRES, queue_name=QUEUE)

    @app.register_task(name="flow")
    def flow(params, context):
        for place in range(params["length"]):
            context.step(f"step-{place}", counter.tick)

    app.start_worker(concurrency=at_once, poll_interval=0.05)


if __name__ == "__main__":
    work()
    sys.exit()


def clear():
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS absurd CASCADE")
        connection.execute(BUNDLED_SCHEMA_SQL)
    Absurd(POSTGRES, queue_name=QUEUE).create_queue()


def start_flows(count, length):
    def start():
        if not hasattr(own, "client"):
            own.client = Absurd(POSTGRES, queue_name=QUEUE)
        own.client.spawn("flow", {"length": length}, queue=QUEUE)

    own = threading.local()
    run_in_threads(start, count, 8)


WORKERS = {"1 process": Workers([[PYTHON, "with_absurd.py", "work"]], 1)}
