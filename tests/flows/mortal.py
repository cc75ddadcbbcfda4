"""The application of workers that are killed while a step of a flow commits: once at each place."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ojster import App, Flow
from ojster.handlers import flow_transactions
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import FlowRecord, Turn

FOLDER: Final = "OJSTER_TEST_FOLDER"
PLACES: Final = ("when the function has written", "before the commit", "after the commit")

app = App()


def die(place: str) -> None:
    """Kill this process, unless another one has died at the same place."""
    mark = Path(os.environ[FOLDER]) / place
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def write(connection: Any, place: str) -> str:
    connection.execute(f"INSERT INTO step_ledger (what) VALUES ('{place}')")
    if place == PLACES[0]:
        die(place)
    return place.upper()


@app.flow("pay")
async def pay(flow: Flow, place: str) -> str:
    if FOLDER in os.environ:
        _arm(place)
    return await flow.step("charge", write, place, in_transaction=True)


def _arm(place: str) -> None:
    """Let the worker die when it has recorded the step of this flow, or when that is committed."""
    record, ending = flow_transactions._record, flow_transactions.StepCommits._end_transaction

    def recorded(tx: Transaction, turn: Turn) -> Sequence[FlowRecord]:
        ends = record(tx, turn)
        if place == PLACES[1]:
            die(place)
        return ends

    def ended(self: Any, *args: Any) -> None:
        if place == PLACES[2]:
            die(place)
        ending(self, *args)

    flow_transactions._record = recorded
    flow_transactions.StepCommits._end_transaction = ended  # type: ignore[method-assign,assignment]
