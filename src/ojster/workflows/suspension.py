"""Why a job is suspended, and what happens to it when it is resumed."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class SuspensionKind(StrEnum):
    """Effect of resuming a suspended job."""

    COMPLETE = "complete"
    """The job completes, with the data that it is resumed with as its result."""
    AGAIN = "again"
    """The job runs again and receives the data that it is resumed with."""
    DELAY = "delay"
    """The job completes at its deadline, or earlier if it is resumed."""
    FLOW = "flow"
    """The job runs a flow, which waits; it runs again when something has ended for it, or at its deadline."""
    RESUMED = "resumed"
    """The job was resumed and runs again."""


SUSPENDED: Final = (SuspensionKind.COMPLETE, SuspensionKind.AGAIN, SuspensionKind.DELAY, SuspensionKind.FLOW)
"""Values that mark a job as suspended."""
