"""How does a job get in? (PUSH, ojs-core.md section 7.1)"""

from __future__ import annotations

from collections.abc import Sequence

from ojster.core.errors import OjsterError
from ojster.jobs.admission import Group, Pushed, admit
from ojster.queues.backpressure import make_room
from ojster.storage.transaction import Later, Transaction
from ojster.tenancy.quotas import refuse_too_many
from ojster.workflows.advance import advance


def push(tx: Transaction, groups: Sequence[Group]) -> list[list[Pushed] | OjsterError | Later]:
    """Insert groups of jobs; for each, return its jobs, or the refusal for which none of it was inserted."""
    refusals = find_room(tx, groups)
    admitted = iter(admit(tx, _without(groups, refusals)))
    results = [refusal or next(admitted) for refusal in refusals]
    advance(tx)  # a job that was replaced, or dropped, may have been one of a workflow
    return results


def find_room(tx: Transaction, groups: Sequence[Group]) -> list[OjsterError | None]:
    """Say for each group of jobs why there is no room for it, if there is none: for its tenant, or in its queue."""
    refusals: list[OjsterError | None] = [*refuse_too_many(tx, groups)]
    full = iter(make_room(tx, _without(groups, refusals)))
    return [refusal or next(full) for refusal in refusals]


def _without(groups: Sequence[Group], refusals: Sequence[OjsterError | None]) -> list[Group]:
    return [group for group, refusal in zip(groups, refusals, strict=True) if refusal is None]
