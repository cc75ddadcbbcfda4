"""How does a job get in? (PUSH, ojs-core.md section 7.1)"""

from __future__ import annotations

from collections.abc import Sequence

from ojster.database.transaction import Later, Transaction
from ojster.engine.admission import Group, Pushed, admit
from ojster.engine.advance import advance
from ojster.engine.backpressure import make_room
from ojster.model.errors import OjsterError


def push(tx: Transaction, groups: Sequence[Group]) -> list[list[Pushed] | OjsterError | Later]:
    """Insert groups of jobs; for each, return its jobs, or the refusal for which none of it was inserted."""
    full = make_room(tx, groups)
    admitted = iter(admit(tx, [group for group, refusal in zip(groups, full, strict=True) if refusal is None]))
    results = [refusal or next(admitted) for refusal in full]
    advance(tx)  # a job that was replaced, or dropped, may have been one of a workflow
    return results
