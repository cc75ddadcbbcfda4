"""What the endpoints for operators have in common."""

from __future__ import annotations

from typing import Final

from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp
from ojster.server.route import BASE

ADMIN: Final = f"{BASE}/admin"


SHOWN_STATES: Final = tuple(state.value for state in JobState)


def moment(at: int | None) -> str | None:
    """Return a time stamp, or ``None``."""
    return None if at is None else format_timestamp(at)


TAG: Final = "Operators"
