"""Which jobs can no worker run that is there, and why not? (seed 003: matching; ojs-ml-resources.md section 11)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.database.transaction import Transaction
from ojster.engine.configuration import decode_abilities
from ojster.engine.matching import find_needs
from ojster.model.needs import NOTHING, Needs, Provided
from ojster.model.tenant import called

MOST_KINDS: Final = 1_000
"""Of how many kinds of needs it is told."""


class Unrunnable(msgspec.Struct, frozen=True):
    """Jobs with the same needs that wait in a queue, and that no worker can run that is there.

    Parameters
    ----------
    jobs, job_id:
        How many there are, and the oldest of them.
    reasons:
        What the worker lacks that lacks least; or that no worker takes jobs of the queue.
    """

    queue: str
    jobs: int
    job_id: str
    reasons: list[str]


def list_unrunnable(tx: Transaction, requests: Sequence[None]) -> list[list[Unrunnable]]:
    """Return, for each request, which jobs nobody can run."""
    workers = [
        (set(msgspec.json.decode(queues)), NOTHING if abilities is None else decode_abilities(abilities).provided)
        for queues, abilities in tx.execute("SELECT queues, abilities FROM workers")
    ]
    rows = tx.execute(
        "SELECT queue, needs, count(*), min(seq) FROM jobs WHERE state = 'available' AND needs IS NOT NULL "
        "GROUP BY queue, needs ORDER BY queue, needs LIMIT :most",
        {"most": MOST_KINDS},
    )
    found = []
    for queue, key, count, seq in rows:
        needs = find_needs(tx, key, seq)
        present = [provided for queues, provided in workers if queue in queues]
        if not any(provided.meets(needs) for provided in present):
            ((id,),) = tx.execute("SELECT id FROM jobs WHERE seq = :seq", {"seq": seq})
            found.append(Unrunnable(called(queue), count, str(id), _reasons(needs, present)))
    return [found for _ in requests]


def _reasons(needs: Needs, present: Sequence[Provided]) -> list[str]:
    if not present:
        return ["no worker takes jobs of this queue"]
    return min((_lacks(needs, provided) for provided in present), key=len)


def _lacks(needs: Needs, provided: Provided) -> list[str]:
    """Say what a worker lacks for a job."""
    lacks = []
    for condition in needs.required:
        found = provided.facts.get(condition.key, ())
        if not condition.holds(found):
            wanted = " ".join(filter(None, [condition.operator, ", ".join(condition.values)]))
            has = ", ".join(found) if found else "nothing is known of it"
            lacks.append(f"{condition.key}: {'not ' * condition.negated}{wanted} is needed; {has}")
    for name, amount in needs.used:
        if provided.amount(name) < amount:
            lacks.append(f"{name}: {amount:g} is needed; {provided.amount(name):g} is there")
    return lacks or ["it provides nothing of what the job takes"]
