"""Whose turn is it? Queues that share those who work. (ojs-fair-scheduling.md sections 7 and 8)

Round-robin and weighted sharing are start-time fair queueing: a clock of its own, virtual time, moves on with what is
handed out; each queue has a time at which its next turn begins, and the earliest is served. What a queue gets moves its
time on by one over its weight. A queue that was empty begins again at the clock: it keeps no credit.

The memory is the process's own. Several servers each hand out in proportion, and so does what they do together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import msgspec

Strategy = Literal["strict", "round-robin", "weighted", "least-loaded"]


class Sharing(msgspec.Struct, frozen=True):
    """How queues share those who work.

    Parameters
    ----------
    strategy:
        ``strict``: the first queue that has a job; ``round-robin``: one after the other; ``weighted``: by weight;
        ``least-loaded``: the queue with the most jobs, for workers that have room, the one with the fewest first.
    weights:
        Pairs of a queue and its weight; 1 for those that are not mentioned.
    least_share:
        The share of all that is handed out of which each queue that has jobs is sure.
    rotation:
        After how many microseconds without any a queue is served that has jobs, whatever the strategy.
    """

    strategy: Strategy = "strict"
    weights: tuple[tuple[str, float], ...] = ()
    least_share: float = 0.0
    rotation: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the first queue that has a job is served: nothing is to be remembered for that."""
        return self.strategy == "strict" and not self.least_share and self.rotation is None

    def weight(self, queue: str) -> float:
        """Return the weight of a queue."""
        if self.strategy != "weighted":
            return 1
        return next((weight for name, weight in self.weights if name == queue), 1)


STRICT: Final = Sharing()

MOST_SHARING: Final = 100
"""How many queues can share otherwise than strictly."""


class Turns:
    """What queues that share have got so far.

    Attributes
    ----------
    clock:
        The virtual time: at which the last turn began.
    ends:
        The virtual time at which the last turn of each queue ended.
    given:
        How many jobs were handed out.
    last:
        How many there were when each queue was served last.
    served_at:
        When each queue was served last, or known to have no jobs, in microseconds since the epoch.
    is_full:
        Whether there was no room in the pool when it was looked at last.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self.ends: dict[str, float] = {}
        self.given = 0
        self.last: dict[str, int] = {}
        self.served_at: dict[str, int] = {}
        self.is_full = False

    def plan(
        self,
        queues: Sequence[str],
        wanted: int,
        sharing: Sharing,
        backlog: Mapping[str, int],
        starved: Collection[str] = (),
    ) -> list[str]:
        """Return the queue of each of the next jobs, if all queues have enough of them. Nothing is remembered.

        Parameters
        ----------
        queues:
            Which queues, the first first.
        backlog:
            How many jobs each has, as far as that is known; ``least-loaded`` goes by it.
        starved:
            Queues that are served first, once.
        """
        ahead = Turns()
        ahead.clock, ahead.given = self.clock, self.given
        ahead.ends, ahead.last = dict(self.ends), dict(self.last)
        left = {queue: backlog.get(queue, 0) for queue in queues}
        weights = {queue: sharing.weight(queue) for queue in queues}
        first = [queue for queue in queues if queue in starved]
        planned = []
        for _ in range(wanted):
            queue = first.pop(0) if first else ahead._next(queues, sharing, left)
            left[queue] -= 1
            ahead._move_on(queue, weights[queue])
            planned.append(queue)
        return planned

    def _next(self, queues: Sequence[str], sharing: Sharing, left: Mapping[str, int]) -> str:
        if sharing.least_share:
            queue = max(queues, key=self._waited)
            if (self._waited(queue) + len(queues) - 1) * sharing.least_share >= 1:  # the others may be as far
                return queue
        if sharing.strategy == "strict":
            return queues[0]
        if sharing.strategy == "least-loaded":
            return max(queues, key=left.__getitem__)
        return min(queues, key=self._begins)

    def _begins(self, queue: str) -> float:
        return max(self.clock, self.ends.get(queue, 0.0))

    def _waited(self, queue: str) -> int:
        """Return how many jobs will have been handed out, with the next, since the queue was served last."""
        return self.given + 1 - self.last.get(queue, 0)

    def was_passed_over(self, queue: str) -> bool:
        """Whether jobs of others were handed out since the queue was served last."""
        return self.last.get(queue, 0) < self.given

    def forget_old(self, most: int) -> None:
        """Forget queues whose turn has long ended, if there are more than so many."""
        if len(self.ends) > most:
            self.ends = {queue: end for queue, end in self.ends.items() if end > self.clock}
            self.last = {queue: self.last[queue] for queue in self.ends}
            self.served_at = {queue: self.served_at[queue] for queue in self.ends}

    def note(self, queue: str, sharing: Sharing, now: int) -> None:
        """Note that a job of a queue was handed out."""
        self._move_on(queue, sharing.weight(queue))
        self.served_at[queue] = now

    def _move_on(self, queue: str, weight: float) -> None:
        self.clock = self._begins(queue)
        self.ends[queue] = self.clock + 1 / weight
        self.given += 1
        self.last[queue] = self.given
