"""Jobs that a worker has fetched and that have not begun, so that short ones follow each other without a pause.

A worker whose jobs take milliseconds would spend most of its time fetching the next few. It therefore fetches as many
more as have ended in ``HORIZON_SECONDS`` before, and while they run, the next ones. What cannot begin soon all the
same is handed back, so that a long job never keeps short ones from other workers.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ojster.core.durations import SECOND
from ojster.core.job import Job
from ojster.core.job_flags import BITS

HORIZON_SECONDS: Final = 0.05
"""A worker holds as many jobs as end in this time, in seconds."""

MAX_HELD_SECONDS: Final = 0.25
"""Time after which a job that has not begun is handed back, in seconds."""

LEAST_TIMEOUT: Final = 5 * SECOND
"""Jobs with a shorter timeout may not wait, because their time begins when they are fetched. In microseconds."""

LARGEST_BYTES: Final = 16_384
"""Size of the largest jobs that may wait, in bytes of JSON."""

PAUSE_SECONDS: Final = 60.0
"""Time for which nothing is held after such a job was met, in seconds."""

MAX_PREFETCH: Final = 500
"""Default for the maximum number of jobs that a worker holds."""

_STARTS: Final = BITS["on_assignment"]

_NAMES: Final = re.compile(rb'"(rate_limit|on_assignment)":')
"""What the JSON of a job from a server has, if it has a limit or a reaction to its start."""


class LocalQueue:
    """The jobs that a worker holds, in the order in which they begin.

    Parameters
    ----------
    most:
        Maximum number of jobs to hold; 0: none.
    hand_back:
        Called with each job that this worker will not run.
    clock:
        Returns the time in seconds; by default the monotonic clock.
    """

    def __init__(
        self,
        most: int,
        hand_back: Callable[[Job], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._hand_back = hand_back
        self._clock = clock
        self._held: deque[tuple[float, Job]] = deque()
        """Each job, and when it was fetched. Threads may take from it, too."""
        self._pace = 0.0
        """How many jobs end in ``HORIZON_SECONDS``."""
        self._ended = 0
        self._counts_since = clock()
        self._paused_until = float("-inf")

    def __len__(self) -> int:
        return len(self._held)

    @property
    def jobs(self) -> list[Job]:
        """The held jobs."""
        return [job for _, job in list(self._held)]

    def note_ends(self, count: int) -> None:
        """Note that so many jobs have ended."""
        self._ended += count

    @property
    def room(self) -> int:
        """How many jobs to fetch beyond those that can begin: when half of them have begun, as many as have."""
        now = self._clock()
        lasted = now - self._counts_since
        if lasted >= HORIZON_SECONDS:
            self._pace = self._ended / lasted * HORIZON_SECONDS
            self._ended, self._counts_since = 0, now
        wanted = min(self._most, round(self._pace)) if now >= self._paused_until else 0
        return wanted - len(self._held) if len(self._held) <= wanted // 2 else 0

    def hold(self, jobs: Iterable[Job]) -> None:
        """Hold jobs until they can begin; those that may not wait are handed back."""
        now = self._clock()
        for job in jobs:
            if not may_wait(job):
                self._paused_until = now + PAUSE_SECONDS
                self._hand_back(job)
            else:
                self._held.append((now, job))

    def hold_none(self) -> None:
        """Hold no jobs from now on."""
        self._most = 0

    def take(self) -> Job | None:
        """Return the next job, which begins; ``None``: there is none."""
        try:
            return self._held.popleft()[1]
        except IndexError:
            return None

    def take_all(self) -> list[Job]:
        """Return all jobs, for which somebody else answers from now on. May be called in any thread."""
        taken: list[Job] = []
        while (job := self.take()) is not None:
            taken.append(job)
        return taken

    def hand_back_all(self) -> None:
        """Hand back all jobs."""
        for job in self.take_all():
            self._hand_back(job)

    def hand_back_overdue(self) -> None:
        """Hand back the jobs that were held for too long."""
        latest = self._clock() - MAX_HELD_SECONDS
        while self._held and self._held[0][0] <= latest:
            job = self.take()
            if job is not None:
                self._hand_back(job)

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Hold jobs again that were taken in vain, ahead of the others. May be called in any thread."""
        self._held.extendleft((self._clock(), job) for job in reversed(list(jobs)))

    def hand_back(self, unwanted: Iterable[Job]) -> None:
        """Hand back those of the jobs that are held."""
        for job in unwanted:
            entry = next((entry for entry in list(self._held) if entry[1] is job), None)
            with contextlib.suppress(ValueError, IndexError):  # another thread has taken it
                if entry is not None:
                    self._held.remove(entry)
                    self._hand_back(job)


def may_wait(job: Job) -> bool:
    """Return whether a job may be fetched before it can begin.

    Not if its time or its share of a rate limit would be used up meanwhile, if something follows from its start, or if
    it is large.
    """
    if (job.timeout and job.timeout < LEAST_TIMEOUT) or len(job.envelope) > LARGEST_BYTES:
        return False
    if job.limit_key is not None or job.flags & _STARTS:
        return False
    return job.seq > 0 or not _NAMES.search(job.envelope)  # a server says it in the JSON alone
