"""Jobs and workflows that keep coming, for ``ojster demo --stay``: enough of every kind to look at."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any, Final

import msgspec

from ojster.cli import demo_jobs
from ojster.client.interface import Client
from ojster.core.json_objects import read_members
from ojster.schedules.cron import Cron

EVERY_SECONDS: Final = 1.0
"""Interval at which jobs are enqueued, in seconds."""

_FORM: Final = {
    "title": "Pay this expense?",
    "type": "object",
    "required": ["approved"],
    "properties": {
        "approved": {"type": "boolean", "title": "Approved"},
        "limit": {"type": "integer", "title": "Limit in EUR"},
    },
}


async def keep_coming(url: str) -> None:
    """Enqueue jobs at ``url`` until this is cancelled."""
    demo_jobs.app.url = url
    chance = random.Random(7)
    try:
        client = demo_jobs.app.client()
        template = msgspec.json.encode({"type": "report.build", "args": [4]})
        await client.schedules.register(
            Cron(name="hourly-report", expression="0 * * * *", template=template, description="A report each hour")
        )
        for second in itertools.count():
            await _enqueue(chance, second)
            if second % 20 == 0:
                await _start(client, _release(second))
            if second % 45 == 0:
                await _start(client, _expense(second))
            await asyncio.sleep(EVERY_SECONDS)
    finally:
        await demo_jobs.app.aclose()


async def _enqueue(chance: random.Random, second: int) -> None:
    for _ in range(chance.randint(1, 6)):
        await demo_jobs.make_thumbnail.aenqueue(chance.randint(1, 10_000))
    await demo_jobs.send_email.aenqueue(chance.choice(("ada@example.com", "grace@example.com")))
    if second % 4 == 0:
        await demo_jobs.charge.aenqueue(chance.randint(100, 9_999))
    if second % 7 == 0:
        await demo_jobs.build_report.aenqueue(chance.randint(4, 20))
    if second % 11 == 0:
        await demo_jobs.import_invoice.aenqueue(f"/nowhere/invoice-{chance.randint(1, 999)}.txt")
    if second % 13 == 0:
        await demo_jobs.remind.using(delay=chance.randint(10, 90)).aenqueue("Grace")


async def _start(client: Client, body: dict[str, Any]) -> None:
    await client.workflows.create(read_members(msgspec.json.encode(body)))


def _release(number: int) -> dict[str, Any]:
    """Return a workflow that waits for an approval behind a group."""
    checks = [{"type": "thumbnail.make", "args": [check]} for check in range(12)]
    return {
        "type": "graph",
        "name": f"Release 4.{number // 20}",
        "steps": [
            {"id": "build", "type": "report.build", "args": [5]},
            {"id": "checks", "type": "group", "jobs": checks, "depends_on": ["build"]},
            {"id": "announce", "type": "email.send", "args": ["all@example.com"], "depends_on": ["build"]},
            {"id": "approve", "type": "gate", "depends_on": ["checks"]},
            {"id": "deploy", "type": "report.build", "args": [8], "depends_on": ["approve", "announce"]},
        ],
    }


def _expense(number: int) -> dict[str, Any]:
    """Return a workflow that waits for an answer."""
    return {
        "type": "chain",
        "name": f"Expense {number}",
        "steps": [
            {"id": "read", "type": "thumbnail.make", "args": [number]},
            {"id": "ask", "type": "ojster.wait", "args": [], "ojster_wait": {"form": _FORM}},
            {"id": "pay", "type": "payment.charge", "args": [number]},
        ],
    }
