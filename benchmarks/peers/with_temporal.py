"""Temporal's development server on a SQLite file, workflows alone: steps are activities.

``PEERS_TEMPORAL`` is the address of the server. With ``PEERS_TEMPORAL_LOCAL=1``, steps are local activities: they run
inside a workflow task, which the server records when it ends. After a crash, all of its steps may run again.
"""

import asyncio
import os
import sys
import uuid
from datetime import timedelta

import counter
import uvloop
from common import PYTHON, Workers, run_concurrently
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

MAX_CHAINS = 200
QUEUE = "peers"
TIMEOUT = timedelta(minutes=5)
at_once, local = 100, os.environ.get("PEERS_TEMPORAL_LOCAL") == "1"


@activity.defn
async def step():
    counter.tick()


def run_step():
    execute = workflow.execute_local_activity if local else workflow.execute_activity
    return execute(step, start_to_close_timeout=TIMEOUT)


@workflow.defn(name="chain")
class Chain:
    """Steps one after the other."""

    @workflow.run
    async def run(self, length):
        for _ in range(length):
            await run_step()


@workflow.defn(name="fan_out")
class FanOut:
    """Steps at the same time, and a final one."""

    @workflow.run
    async def run(self, width):
        await asyncio.gather(*(run_step() for _ in range(width)))
        await run_step()


async def connect():
    return await Client.connect(os.environ["PEERS_TEMPORAL"])


async def work():
    worker = Worker(
        await connect(),
        task_queue=QUEUE,
        workflows=[Chain, FanOut],
        activities=[step],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=at_once,
        max_concurrent_local_activities=at_once,
    )
    await worker.run()


if __name__ == "__main__":
    uvloop.run(work())
    sys.exit()

loop = uvloop.new_event_loop()
client = loop.run_until_complete(connect())


async def end_all():
    async for running in client.list_workflows('ExecutionStatus = "Running"'):
        await client.get_workflow_handle(running.id).terminate()


def clear():
    loop.run_until_complete(end_all())


def start(name, argument):
    return client.start_workflow(name, argument, id=str(uuid.uuid4()), task_queue=QUEUE)


def start_chains(count, length):
    loop.run_until_complete(run_concurrently(lambda: start("chain", length), count))


start_flows = start_chains  # with local activities


def start_fan_out(width):
    loop.run_until_complete(start("fan_out", width))


worker = [PYTHON, "with_temporal.py", "work"]
WORKERS = {"1 process": Workers([worker], 1), "2 processes": Workers([worker] * 2, 2)}
