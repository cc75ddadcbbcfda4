"""Flows that have left their worker for a moment, and may go on there without running again from their start.

What is kept saves work and means nothing: a flow that is not kept, or that another worker has run meanwhile, runs again
from its start and comes to the same point.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from ojster.core.job import Job
from ojster.handlers.flow_execution import FlowExecution

MAX_KEPT: Final = 1_000
"""Maximum number of waiting flows that a worker keeps."""

MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Maximum of the estimated memory of the waiting flows that a worker keeps, in bytes."""

KEPT_SECONDS: Final = 10.0
"""Time for which a worker keeps a waiting flow, in seconds: one that waits longer holds no memory."""


class _Kept(NamedTuple):
    execution: FlowExecution
    started_at: int
    """When the attempt began after which it waits."""
    until: float
    weight: int


class KeptFlows:
    """The waiting flows that one worker keeps, for some seconds each.

    When there is no room, those go first that await no job, and of these the one that has waited longest: jobs end
    soon, while messages and times may be days away.

    Parameters
    ----------
    most:
        Maximum number of flows.
    most_bytes:
        Maximum of their estimated memory, in bytes.
    """

    def __init__(self, most: int = MAX_KEPT, most_bytes: int = MAX_KEPT_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._with_jobs: dict[str, _Kept] = {}
        self._others: dict[str, _Kept] = {}
        self._bytes = 0
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of kept flows."""
        return len(self._with_jobs) + len(self._others)

    def keep(self, execution: FlowExecution) -> None:
        """Keep a flow that waits."""
        if self._is_closed:
            execution.close()
            return
        job = execution.context.job
        loop = asyncio.get_running_loop()
        self._drop(job.id)
        kept = _Kept(execution, job.started_at or 0, loop.time() + KEPT_SECONDS, execution.weight)
        (self._with_jobs if execution.awaits_job else self._others)[job.id] = kept
        self._bytes += kept.weight
        while len(self) > self._most or self._bytes > self._most_bytes:
            self._drop(next(iter(self._others or self._with_jobs)))
        if self._timer is None and len(self):
            self._timer = loop.call_later(KEPT_SECONDS, self._drop_overdue)

    def take(self, job: Job) -> FlowExecution | None:
        """Return the flow that a job runs, if it is kept, and nobody has run it since it was.

        A flow that was woken says when its attempt before this one was started: the server knows it when it hands out
        the job, and no two attempts of a job are started at the same time.
        """
        kept = self._pop(job.id)
        if kept is None:
            return None
        if job.resumed != b"%d" % kept.started_at:
            kept.execution.close()
            return None
        return kept.execution

    def close(self) -> None:
        """Keep nothing any more."""
        self._is_closed = True
        self.drop_all()

    def drop_all(self) -> None:
        """Let all flows run again from their start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for id in [*self._with_jobs, *self._others]:
            self._drop(id)

    def _pop(self, id: str) -> _Kept | None:
        kept = self._with_jobs.pop(id, None) or self._others.pop(id, None)
        self._bytes -= 0 if kept is None else kept.weight
        return kept

    def _drop(self, id: str) -> None:
        if (kept := self._pop(id)) is not None:
            kept.execution.close()

    def _drop_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        for flows in (self._with_jobs, self._others):
            for id in [id for id, kept in flows.items() if kept.until <= loop.time()]:
                self._drop(id)
        self._timer = loop.call_later(KEPT_SECONDS / 10, self._drop_overdue) if len(self) else None
