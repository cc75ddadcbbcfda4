"""DBOS on PostgreSQL, or with PEERS_DBOS=sqlite on a SQLite file; workflows alone.

Chains and flows are workflows of steps, a fan-out enqueues child workflows.
"""

import os
import subprocess
import sys
import threading

import counter
from common import POSTGRES, PYTHON, Workers, run_in_threads
from dbos import DBOS, DBOSClient

MAX_CHAINS = 200
QUEUE = "peers"
VERSION = "1"
URL = f"sqlite:///{counter.FOLDER}/dbos.db" if os.environ.get("PEERS_DBOS") == "sqlite" else POSTGRES

DBOS(
    config={
        "name": "peers",
        "system_database_url": URL,
        "log_level": "ERROR",
        "application_version": VERSION,
    }
)


@DBOS.step()
def step():
    counter.tick()


@DBOS.workflow()
def chain(length):
    for _ in range(length):
        step()


@DBOS.workflow()
def member():
    counter.tick()


@DBOS.workflow()
def fan_out(width):
    handles = [DBOS.enqueue_workflow(QUEUE, member) for _ in range(width)]
    for handle in handles:
        handle.get_result()
    step()


if __name__ == "__main__":
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=0.05, worker_concurrency=100)
    if sys.argv[1] == "work":
        threading.Event().wait()
    DBOS.destroy()
    sys.exit()


def clear():
    subprocess.run([PYTHON, "with_dbos.py", "set up"], check=True, capture_output=True)


def enqueue(workflow, *arguments):
    global client
    if client is None:
        client = DBOSClient(system_database_url=URL)
    client.enqueue({"queue_name": QUEUE, "workflow_name": workflow, "app_version": VERSION}, *arguments)


client = None


def start_chains(count, length):
    run_in_threads(lambda: enqueue("chain", length), count, 8)


start_flows = start_chains


def start_fan_out(width):
    enqueue("fan_out", width)


WORKERS = {"1 process": Workers([[PYTHON, "with_dbos.py", "work"]], 1)}
