"""Push of jobs: tenant limits, backpressure, insertion.

Spec: ojs-core 7.1 (PUSH)
"""

from __future__ import annotations

from collections.abc import Sequence

from ojster.core.errors import OjsterError
from ojster.jobs.admission import Pushed, admit
from ojster.jobs.extension import Group, life, settle
from ojster.storage.transaction import Later, Transaction


def push(tx: Transaction, groups: Sequence[Group]) -> list[list[Pushed] | OjsterError | Later]:
    """Insert groups of jobs; return the jobs of each group, or the error for which the whole group was refused."""
    refusals = find_room(tx, groups)
    admitted = iter(admit(tx, _without(groups, refusals)))
    results = [refusal or next(admitted) for refusal in refusals]
    settle(tx)  # a replaced or dropped job may belong to a workflow
    return results


def find_room(tx: Transaction, groups: Sequence[Group]) -> list[OjsterError | None]:
    """Return the error for each group of jobs for which its tenant or its queue has no capacity, else ``None``."""
    refusals: list[OjsterError | None] = [None for _ in groups]
    for refuse in life(tx).refuse_push:
        more = iter(refuse(tx, _without(groups, refusals)))
        refusals = [refusal or next(more) for refusal in refusals]
    return refusals


def _without(groups: Sequence[Group], refusals: Sequence[OjsterError | None]) -> list[Group]:
    return [group for group, refusal in zip(groups, refusals, strict=True) if refusal is None]
