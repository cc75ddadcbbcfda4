"""How a test lets the timeout of an attempt pass when it wants, however slow the machine is."""

from __future__ import annotations

from ojster import JobContext


def exhaust_time(job: JobContext) -> None:
    """Let the timeout of a running attempt pass now. May be called in any thread."""
    assert job.time_limit is not None
    job._loop.call_soon_threadsafe(job.time_limit.reschedule, 0)
