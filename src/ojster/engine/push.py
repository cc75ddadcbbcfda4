"""How does a job get in? (PUSH, ojs-core.md section 7.1)"""

from __future__ import annotations

from collections.abc import Sequence

from ojster.database.transaction import Later, Transaction
from ojster.engine.admission import Group, Pushed, admit
from ojster.model.errors import OjsterError


def push(tx: Transaction, groups: Sequence[Group]) -> list[list[Pushed] | OjsterError | Later]:
    """Insert groups of jobs; for each, return its jobs, or the refusal for which none of it was inserted."""
    return admit(tx, groups)
