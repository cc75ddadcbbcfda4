"""The application of workers that are killed: flows that say in a file what their jobs have done."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

from ojster import App, Flow

LEDGER = "OJSTER_TEST_LEDGER"

app = App()


def note(number: int, what: str) -> str:
    """Write a token of a run, so that it is known which runs there were; return it."""
    token = uuid.uuid4().hex
    with Path(os.environ[LEDGER]).open("a") as file:
        file.write(f"{number} {what} {token}\n")
    return token


@app.job("work", retry=50)
async def work(number: int, what: str) -> str:
    await asyncio.sleep(0.02)
    return note(number, what)


@app.flow("journey")
async def run(flow: Flow, number: int) -> list[str]:
    first = await flow.run(work, number, "first")
    both = await asyncio.gather(flow.run(work, number, "left"), flow.step("right", note, number, "right"))
    message = await flow.receive("go", str)
    await flow.sleep(0.05)
    last = await flow.run(work, number, "last")
    return [first, *both, message, last]
