"""The official Python SDK of Open Job Spec, unmodified, with an Ojster server.

python interop.py features URL                         try each feature; print "ok NAME" or "FAIL NAME: reason"
python interop.py enqueue URL QUEUE COUNT TYPE...      enqueue COUNT jobs of each type; print their ids
python interop.py work URL QUEUE COUNT SECONDS [all]   run COUNT jobs, for at most SECONDS; with "all", take all types
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import ojs
from ojs.transport.http import HTTPTransport

TYPES = ["python.greet", "interop.echo"]


class TypedTransport(HTTPTransport):
    """Says which job types the worker has handlers for. The SDK does not, and would get jobs of every type."""

    async def fetch(
        self, queues: list[str], count: int = 1, worker_id: str | None = None, visibility_timeout_ms: int = 30_000
    ) -> list[ojs.Job]:
        body = {"queues": queues, "count": count, "worker_id": worker_id, "job_types": TYPES}
        answer = await self.request(
            "POST", "/workers/fetch", body=body | {"visibility_timeout_ms": visibility_timeout_ms}
        )
        return [ojs.Job.from_dict(job) for job in answer["jobs"]]


def worker(url: str, queues: list[str], done: Callable[[], None], *, typed: bool = False) -> ojs.Worker:
    transport = (TypedTransport if typed else HTTPTransport)(url)
    made = ojs.Worker(url, queues=queues, poll_interval=0.1, heartbeat_interval=1.0, transport=transport)

    @made.register("python.greet")
    async def greet(context: ojs.JobContext) -> dict[str, Any]:
        done()
        return {"by": "python", "greeting": f"Hello, {context.args[0]['name']}!"}

    @made.register("interop.echo")
    async def echo(context: ojs.JobContext) -> dict[str, Any]:
        done()
        return {"by": "python", "echo": context.args[0]}

    if not typed:

        @made.register("python.flaky")
        async def flaky(context: ojs.JobContext) -> dict[str, Any]:
            if context.attempt == 1:
                raise RuntimeError("the first attempt fails")
            return {"by": "python", "attempt": context.attempt}

        @made.register("python.large")
        async def large(context: ojs.JobContext) -> dict[str, Any]:
            return {"text": "x" * context.args[0]}

        @made.register("python.durable")
        async def durable(context: ojs.JobContext) -> dict[str, Any]:
            steps = await ojs.DurableContext.create(context)
            first = await steps.side_effect("attempt", partial(asyncio.sleep, 0, context.attempt))
            await steps.checkpoint(1, {"first": first})
            if context.attempt == 1:
                raise RuntimeError("the first attempt fails")
            return {"first": first, "attempt": context.attempt}

    return made


async def ended(read: Callable[[], Awaitable[Any]]) -> Any:
    """Read a job or a workflow until it has ended."""
    for _ in range(200):
        found = await read()
        if found.state in ("completed", "discarded", "cancelled", "failed"):
            return found
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{found.id} is still {found.state}")


QUEUE = "python-features"


def step(text: str) -> ojs.JobRequest:
    return ojs.JobRequest(type="interop.echo", args=[{"text": text}], queue=QUEUE)


class Features:
    """What the SDK can do: one method for each feature, which raises an exception if it does not work."""

    def __init__(self, client: ojs.Client) -> None:
        self.client = client

    async def health(self) -> None:
        assert (await self.client.health())["status"] == "ok"

    async def manifest(self) -> None:
        assert (await self.client.manifest())["capabilities"]["workflows"]

    async def enqueue(self) -> None:
        job = await self.client.enqueue("interop.echo", [{"text": "plain"}], queue=QUEUE)
        assert (await self.client.get_job(job.id)).args == [{"text": "plain"}]

    async def options(self) -> None:
        job = await self.client.enqueue(
            "interop.echo",
            [{"text": "options"}],
            queue=QUEUE,
            priority=5,
            tags=["red"],
            meta={"trace": "t1"},
            timeout_ms=5000,
            retry=ojs.RetryPolicy(max_attempts=7),
        )
        found = await self.client.get_job(job.id)
        shown = (found.queue, found.priority, found.tags, found.meta["trace"], found.max_attempts)
        assert shown == (QUEUE, 5, ["red"], "t1", 7), shown

    async def delay(self) -> None:
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        job = await self.client.enqueue("interop.echo", [{"text": "later"}], queue=QUEUE, delay_until=later)
        assert job.state == "scheduled", job.state

    async def unique(self) -> None:
        policy = ojs.UniquePolicy(keys=["type", "queue", "args"], period="PT1H", on_conflict="reject")
        await self.client.enqueue("interop.echo", [{"text": "once"}], queue="python-unique", unique=policy)
        try:
            await self.client.enqueue("interop.echo", [{"text": "once"}], queue="python-unique", unique=policy)
        except ojs.DuplicateJobError:
            return
        raise AssertionError("the second job was accepted")

    async def batch_enqueue(self) -> None:
        assert len(await self.client.enqueue_batch([step("one"), step("two")])) == 2

    async def cancel(self) -> None:
        job = await self.client.enqueue("interop.echo", [{"text": "cancel"}], queue="python-cancel")
        assert (await self.client.cancel_job(job.id)).state == "cancelled"

    async def queues(self) -> None:
        assert QUEUE in [found.name for found in await self.client.list_queues()]

    async def queue_stats(self) -> None:
        stats = await self.client.queue_stats("python-unique")
        assert stats.queue == "python-unique", f"QueueStats.queue is {str(stats.queue)[:30]}..., not a name"
        assert stats.available == 1, stats.available

    async def pause(self) -> None:
        await self.client.pause_queue("python-unique")
        await self.client.resume_queue("python-unique")

    async def dead_letter(self) -> None:
        assert "jobs" in await self.client.list_dead_letter_jobs()

    async def cron(self) -> None:
        await self.client.register_cron_job("python-cron", "0 3 * * *", "interop.echo", [{"text": "cron"}])
        assert (await self.client.list_cron_jobs())["cron_jobs"]
        await self.client.unregister_cron_job("python-cron")

    async def worker(self) -> None:
        job = await self.client.enqueue("python.greet", [{"name": "Ada"}], queue=QUEUE)
        found = await ended(lambda: self.client.get_job(job.id))
        assert found.result == {"by": "python", "greeting": "Hello, Ada!"}, found

    async def retry(self) -> None:
        policy = ojs.RetryPolicy(max_attempts=3, initial_interval="PT0.1S", jitter=False)
        job = await self.client.enqueue("python.flaky", [], queue=QUEUE, retry=policy)
        found = await ended(lambda: self.client.get_job(job.id))
        assert found.result == {"by": "python", "attempt": 2}, found

    async def large_result(self) -> None:
        job = await self.client.enqueue("python.large", [100_000], queue=QUEUE)
        found = await ended(lambda: self.client.get_job(job.id))
        assert found.result == {"text": "x" * 100_000}, str(found.result)[:60]

    async def checkpoints(self) -> None:
        policy = ojs.RetryPolicy(max_attempts=3, initial_interval="PT0.1S", jitter=False)
        job = await self.client.enqueue("python.durable", [], queue=QUEUE, retry=policy)
        found = await ended(lambda: self.client.get_job(job.id))
        assert found.result == {"first": 1, "attempt": 2}, found

    async def chain(self) -> None:
        await self._completes(ojs.chain("chain", [step("one"), step("two")]))

    async def group(self) -> None:
        await self._completes(ojs.group("group", [step("one"), step("two")]))

    async def batch(self) -> None:
        await self._completes(ojs.batch("batch", [step("one"), step("two")], on_success=step("after")))

    async def _completes(self, definition: ojs.WorkflowDefinition) -> None:
        workflow = await self.client.workflow(definition)
        found = await ended(lambda: self.client.get_workflow(workflow.id))
        assert found.state == "completed", found


async def features(url: str) -> None:
    run = worker(url, [QUEUE], lambda: None)
    running = asyncio.create_task(run.start())
    async with ojs.Client(url) as client:
        for name, attempt in vars(Features).items():
            if name.startswith("_"):
                continue
            shown = name.replace("_", "-")
            try:
                await attempt(Features(client))
                print(f"ok {shown}", flush=True)
            except Exception as error:
                reason = next(iter(str(error).splitlines()), "")
                print(f"FAIL {shown}: {type(error).__name__}: {reason}", flush=True)
    await run.stop()
    await running


async def enqueue(url: str, queue: str, count: int, types: list[str]) -> None:
    async with ojs.Client(url) as client:
        for number in range(count):
            for type in types:
                job = await client.enqueue(type, [{"name": "Ada", "text": f"python {number}"}], queue=queue)
                print(job.id)


async def work(url: str, queue: str, count: int, seconds: float, typed: bool) -> None:
    enough = asyncio.Event()
    left = count

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            enough.set()

    run = worker(url, [queue], done, typed=typed)
    running = asyncio.create_task(run.start())
    await asyncio.wait([running, asyncio.create_task(enough.wait())], timeout=seconds, return_when="FIRST_COMPLETED")
    await run.stop()
    await running


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    match sys.argv[1:]:
        case ["features", url]:
            asyncio.run(features(url))
        case ["enqueue", url, queue, count, *types]:
            asyncio.run(enqueue(url, queue, int(count), types))
        case ["work", url, queue, count, seconds, *rest]:
            asyncio.run(work(url, queue, int(count), float(seconds), typed=rest != ["all"]))
        case _:
            sys.exit(__doc__)
