"""The steps of a flow as a picture shows them: what its function has asked for, in its order, as it grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ojster.core.timestamps import format_optional, format_timestamp
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import GIVEN_UP, RESERVED
from ojster.workflows.node import Node, body_of
from ojster.workflows.read.node_view import SELECT_NODES
from ojster.workflows.read.step_pages import MAX_EXAMINED, StepFilter, StepRow, describe
from ojster.workflows.stored_workflow import get_workflow

_SHOWN: Final = """
    flow = :flow
    AND kind IN ('run', 'step', 'receive', 'receive_many', 'listen', 'listen_many', 'sleep')
    AND (ended_at IS NOT NULL OR name NOT LIKE '!%')
"""
"""The records that are steps for people. An update that has not come is none."""


class AskedStep(NamedTuple):
    """A step of a flow: its node, if it is one of the graph, how it is shown, and which steps of the page it follows.

    Its number is that of its node in the workflow, or negative.
    """

    node: Node | None
    row: StepRow
    number: int
    after: Sequence[int]


class _Record(NamedTuple):
    key: str
    kind: str
    name: str
    node: int | None
    asked_at: int
    ended_at: int | None
    seen_at: int | None
    error: bytes | None

    def end(self, now: int) -> int | None:
        """When the flow went on by its end, in its time; ``None``: not yet. The end of a sleep is known before."""
        end = self.ended_at if self.seen_at is None else self.seen_at
        return end if end is not None and (self.kind != "sleep" or end <= now) else None


def flow_steps(
    tx: Transaction, flow: Node, root: int, first: int, limit: int
) -> tuple[list[AskedStep], int, int | None]:
    """Return a page of the steps of a flow, the number of all, and the position of the last if others follow.

    Parameters
    ----------
    root:
        The id of the root of the workflow.
    first:
        The position of the first step of the page; 0 is the job that runs the function.
    """
    body = body_of(flow)
    ((total,),) = tx.execute(f"SELECT count(*) FROM flow_records WHERE {_SHOWN}", {"flow": body})
    with_body = first == 0
    records = [
        _Record(*row)
        for row in tx.execute(
            f"""
            SELECT key, kind, name, node, asked_at, ended_at, seen_at, error
            FROM flow_records
            WHERE {_SHOWN}
            ORDER BY asked_at, length(key), key
            LIMIT :limit OFFSET :offset
            """,
            {"flow": body, "limit": limit - with_body, "offset": max(0, first - 1)},
        )
    ]
    ids = [record.node for record in records if record.node is not None] + ([body] if with_body else [])
    rows = tx.execute(f"{SELECT_NODES} WHERE n.id {tx.among}", (tx.integers(ids),)) if ids else []
    shown = {node.id: (node, row) for node, row in describe(tx, rows)}
    steps: list[AskedStep] = []
    if body in shown:
        if shown[body][1].job_state == "pending":
            shown[body][1].job_state = "waiting"
        steps.append(AskedStep(*shown[body], body - root, ()))
    numbers = [
        record.node - root if record.node in shown else -(max(1, first) + place) for place, record in enumerate(records)
    ]
    before = _followed(records, numbers, tx.now)
    for record, number, after in zip(records, numbers, before, strict=True):
        node, row = shown.get(record.node or 0, (None, None))
        row = _shown(record, tx.now) if row is None else msgspec.structs.replace(row, display_name=record.key)
        steps.append(AskedStep(node, row, number, after or ([body - root] if with_body else [])))
    last = first + len(records) + with_body - 1
    return steps, total + 1, last if last < total else None


@for_each
@returns_refusal
def find_asked(tx: Transaction, chosen: StepFilter) -> list[StepRow]:
    """Return for each search what flows have asked for beside steps of the graph, by a text in its name.

    At most ``limit`` of the first ``MAX_EXAMINED`` records of the workflow.
    """
    workflow = get_workflow(tx, chosen.workflow_id, tenant=chosen.tenant)
    rows = tx.execute(
        """
        SELECT key, kind, name, node, asked_at, ended_at, seen_at, error
        FROM flow_records
        WHERE flow BETWEEN :first AND :last
            AND node IS NULL
            AND kind IN ('step', 'receive', 'receive_many', 'listen', 'listen_many', 'sleep')
            AND (ended_at IS NOT NULL OR name NOT LIKE '!%')
        ORDER BY flow, key
        LIMIT :most
        """,
        {"first": workflow.numbers[0], "last": workflow.numbers[1], "most": MAX_EXAMINED},
    )
    text = chosen.search.lower()
    asked = [_shown(_Record(*row), tx.now) for row in rows if text in f"{row[0]} {row[2]}".lower()]
    return [step for step in asked if chosen.state in (None, step.state)][: chosen.limit]


def _shown(record: _Record, now: int) -> StepRow:
    """Return a record that is no node of the graph as a step."""
    ends = record.end(now) is not None
    state = "completed" if ends else "waiting"
    if record.error is not None:
        state = "cancelled" if bytes(record.error) == GIVEN_UP else "failed"
    kind = "update" if record.name.startswith(RESERVED) else record.kind
    asked_at = format_timestamp(record.asked_at)
    return StepRow(
        path=record.key.removeprefix(RESERVED),
        kind=kind,
        type=record.name.removeprefix(RESERVED),
        state=state,
        enqueued_at=None if kind == "step" else asked_at,  # it waits, and nothing runs
        started_at=asked_at if kind == "step" else None,
        completed_at=format_optional(record.ended_at) if ends else None,
        error=msgspec.UNSET if record.error is None or state == "cancelled" else msgspec.Raw(record.error),
        display_name=record.key,
    )


def _followed(records: Sequence[_Record], numbers: Sequence[int], now: int) -> list[list[int]]:
    """Return for each record the numbers of those that it follows: what had ended when the function asked for it.

    What the function asks for at once follows the same. What was followed by something is not followed by what comes
    later; nor do tasks beside each other follow one another.
    """
    open_by_task: dict[str, list[tuple[int, int]]] = defaultdict(list)
    followed: list[list[int]] = []
    place = 0
    while place < len(records):
        asked_at = records[place].asked_at
        burst = place
        used: set[int] = set()
        while burst < len(records) and records[burst].asked_at == asked_at:
            task = _task_of(records[burst])
            before = [
                number
                for other, ended in open_by_task.items()
                if task.startswith(other) or other.startswith(task)
                for number, end in ended
                if end <= asked_at
            ]
            used |= set(before)
            followed.append(before)
            burst += 1
        for other, ended in open_by_task.items():
            open_by_task[other] = [(number, end) for number, end in ended if number not in used]
        for record, number in zip(records[place:burst], numbers[place:burst], strict=True):
            end = record.end(now)
            if end is not None:
                open_by_task[_task_of(record)].append((number, end))
        place = burst
    return followed


def _task_of(record: Any) -> str:
    """Return the path of the task that asked for a record."""
    path, slash, _ = str(record.key).removeprefix(f"{RESERVED}sleep/").rpartition("/")
    return path + slash
