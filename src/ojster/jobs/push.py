"""How does a job get in? (PUSH, ojs-core.md section 7.1)"""

from __future__ import annotations

from collections.abc import Sequence

from ojster.core.errors import OjsterError
from ojster.jobs.admission import Pushed, admit
from ojster.jobs.extension import Group, life, settle
from ojster.storage.transaction import Later, Transaction


def push(tx: Transaction, groups: Sequence[Group]) -> list[list[Pushed] | OjsterError | Later]:
    """Insert groups of jobs; for each, return its jobs, or the refusal for which none of it was inserted."""
    refusals = find_room(tx, groups)
    admitted = iter(admit(tx, _without(groups, refusals)))
    results = [refusal or next(admitted) for refusal in refusals]
    settle(tx)  # a job that was replaced, or dropped, may have been one of a workflow
    return results


def find_room(tx: Transaction, groups: Sequence[Group]) -> list[OjsterError | None]:
    """Say for each group of jobs why there is no room for it, if there is none: for its tenant, or in its queue."""
    refusals: list[OjsterError | None] = [None for _ in groups]
    for refuse in life(tx).refuse_push:
        more = iter(refuse(tx, _without(groups, refusals)))
        refusals = [refusal or next(more) for refusal in refusals]
    return refusals


def _without(groups: Sequence[Group], refusals: Sequence[OjsterError | None]) -> list[Group]:
    return [group for group, refusal in zip(groups, refusals, strict=True) if refusal is None]
