"""Jobs and workflows in every state, with names that are hard to show."""

from __future__ import annotations

from typing import Any

import msgspec

from ojster.core.durations import HOUR
from ojster.core.json_objects import read_members
from ojster.fleet.workers import Heartbeat
from ojster.schedules.cron import Cron
from ojster.workflows.flow import FlowPosition, FlowWait, NewRecord, Turn
from tests.conftest import Bench

HARD_NAMES = ("<script>document.title='broken'</script>", "تقرير المبيعات", "🦪 pearls", "a" * 120)

FORM = {
    "title": "Pay this expense?",
    "type": "object",
    "required": ["approved"],
    "properties": {
        "approved": {"type": "boolean", "title": "Approved"},
        "limit": {"type": "integer", "title": "Limit"},
        "why": {"enum": ["travel", "books"], "title": "Why"},
    },
}


def step(id: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": f"do.{id}", "args": [], **({"depends_on": list(after)} if after else {}), **more}


async def create(bench: Bench, body: dict[str, Any]) -> str:
    return (await bench.service.workflows.create(read_members(msgspec.json.encode(body)))).id


async def release(bench: Bench) -> str:
    """A workflow that waits at a gate."""
    steps = [step("build", queue="steps"), step("approve", "build", manual=True), step("deploy", "approve")]
    for one in steps:
        one["options"] = {"queue": "steps"}
        one.pop("queue", None)
    id = await create(bench, {"type": "graph", "name": "Release 4.2", "steps": steps})
    await bench.ack(await bench.fetch_one("steps"))
    return id


async def expense(bench: Bench) -> str:
    """A workflow that waits for an answer."""
    wait = {"id": "ask", "type": "ojster.wait", "args": [], "ojster_wait": {"form": FORM}}
    pay = {"id": "pay", "type": "pay", "args": [], "options": {"queue": "steps"}}
    return await create(bench, {"type": "chain", "name": "Expense 99", "steps": [wait, pay]})


async def flow(bench: Bench) -> str:
    """A flow that has run a local step and a job, and waits for a message, another job and a time."""
    job = {"type": "order.fulfil", "args": [7], "options": {"queue": "flows"}}
    id = await create(bench, {"type": "flow", "name": "Order 7", "job": job})
    now = bench.clock.now
    step = msgspec.Raw(msgspec.json.encode({"type": "order.load", "args": [7], "options": {"queue": "steps"}}))
    await turn(
        bench,
        NewRecord("!begin", "begin", "c0ffee", now),
        NewRecord("total", "step", "total", now, ended_at=now + 200_000, result=msgspec.Raw(b"42")),
        NewRecord("order.load", "run", "order.load", now + 200_000, step=step),
        NewRecord("approval", "receive", "approval", now + 200_000),
        NewRecord("!update/put", "receive", "!put", now),
        NewRecord("!published", "published", "", now, ended_at=now, result=msgspec.Raw(b'{"items":3}')),
        position=FlowPosition(
            (
                FlowWait(
                    "run",
                    "order.load",
                    now,
                    "order.load",
                    None,
                    "/app/orders.py",
                    12,
                    "fulfil",
                    "await flow.run(load, 7)",
                ),
                FlowWait(
                    "receive",
                    "approval",
                    now,
                    "approval",
                    now + HOUR,
                    "/app/orders.py",
                    14,
                    "fulfil",
                    "…",
                    form=APPROVAL,
                ),
                FlowWait(
                    "sleep",
                    "sleep",
                    now,
                    "!sleep/@1",
                    now + HOUR,
                    "/app/orders.py",
                    15,
                    "remind",
                    "await flow.sleep(3600)",
                ),
                FlowWait("update", "put", now, "!update/put", form=PUT),
            ),
            "decaf",
        ),
    )
    return id


async def turn(bench: Bench, *records: NewRecord, position: FlowPosition | None = None) -> None:
    """Let a worker run the function of a flow as far as it comes: until it waits for what it has asked for."""
    job = await bench.fetch_one("flows")
    await bench.service.flows.turn(
        Turn(
            job.id,
            job.worker_id,
            job.attempt,
            job.started_at,
            records,
            suspends=True,
            version=1 << 40,
            position=position,
        )
    )


APPROVAL = msgspec.Raw(
    msgspec.json.encode({"type": "object", "properties": {"ok": {"type": "boolean", "title": "Ok"}}})
)
PUT = msgspec.Raw(
    msgspec.json.encode(
        {
            "type": "array",
            "prefixItems": [{"type": "string", "title": "Item"}, {"type": "integer", "title": "Count"}],
            "minItems": 1,
        }
    )
)


async def failing(bench: Bench, number: int = 4) -> None:
    """Jobs that gave up with the same error."""
    for count in range(number):
        await bench.push("invoice.import", count, queue="bad", retry={"max_attempts": 1})
    for count, job in enumerate(await bench.fetch("bad", count=number)):
        await bench.fail(job, type="MissingCustomer", message=f"invoice {count} has no customer", backtrace=("line 1",))


async def everything(bench: Bench) -> dict[str, str]:
    """Fill a server; return ids by name."""
    await bench.push("mail.send", {"to": "ada"}, queue="mail")
    await bench.push("later", scheduled_at="2090-01-01T00:00:00Z")
    await bench.push("done", queue="quick")
    done = await bench.ack(await bench.fetch_one("quick"), b'{"sent":true,"list":[1,2,3]}')
    await bench.push("runs", queue="quick")
    await bench.fetch_one("quick")
    await bench.push("again", queue="quick")
    await bench.fail(await bench.fetch_one("quick"), type="Down", message="the mail server is down")
    stopped = await bench.push("stopped", queue="quick")
    await bench.service.jobs.cancel(stopped.id)
    await failing(bench)
    for name in HARD_NAMES:
        await create(bench, {"type": "chain", "name": name, "steps": [{"type": "x", "args": [name]}]})
    rows = [{"type": "row.import", "args": [number], "options": {"queue": "rows"}} for number in range(80)]
    group = {"id": "rows", "type": "group", "jobs": rows, "depends_on": ["list"]}
    large = await create(bench, {"type": "graph", "name": "Import", "steps": [step("list"), group]})
    await bench.service.fleet.beat(Heartbeat("worker-1", queues=("mail",), concurrency=8, hostname="host-1"))
    template = msgspec.json.encode({"type": "report.build", "args": []})
    await bench.service.schedules.register(Cron(name="nightly", expression="0 3 * * *", template=template))
    await bench.service.queues.pause("mail")
    return {
        "done": done.id,
        "release": await release(bench),
        "expense": await expense(bench),
        "import": large,
        "flow": await flow(bench),
    }
