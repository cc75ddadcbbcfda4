"""Fairness between queues that share workers.

The round-robin and weighted strategies use start-time fair queueing. A virtual clock advances with the jobs handed out.
Each queue has a virtual time at which its next turn begins, and the queue with the earliest is served. Each job moves
the time of its queue forward by one over its weight. A queue that was empty restarts at the clock: it keeps no credit.

The state belongs to the process. Each of several servers hands out jobs in proportion, and so does their sum.

Spec: ojs-fair-scheduling 7, 8
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from ojster.core.declared_options import check_fields
from ojster.core.durations import LONGEST
from ojster.core.wire import FairnessStrategy, Weight


class Sharing(msgspec.Struct, frozen=True):
    """Fairness strategy of queues that share workers.

    Parameters
    ----------
    strategy:
        ``strict``, the default: the first queue with jobs; ``round-robin``: one queue after the other; ``weighted``: by
        weight; ``least-loaded``: the queue with the most jobs, for the workers with free capacity, the least loaded one
        first.
    weights:
        Pairs of a queue and its weight, used by ``weighted``. Queues that are left out have the weight 1.
    least_share:
        Minimum share of the jobs handed out for each queue that has jobs, from 0 to 1; 0 by default.
    rotation:
        Time without service after which a queue with jobs is served under any strategy, in microseconds; ``None``, the
        default: never.

    Examples
    --------
    >>> from ojster import Sharing
    >>> sharing = Sharing("weighted", weights=(("critical", 3.0),))
    >>> sharing.weight("critical"), sharing.weight("default")
    (3.0, 1)
    """

    strategy: FairnessStrategy = "strict"
    weights: tuple[tuple[str, Weight], ...] = ()
    least_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    rotation: Annotated[int, msgspec.Meta(ge=1, le=LONGEST)] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the first queue with jobs is always served, so that no state is needed."""
        return self.strategy == "strict" and not self.least_share and self.rotation is None

    def weight(self, queue: str) -> float:
        """Return the weight of a queue.

        Parameters
        ----------
        queue:
            Name of the queue.

        Returns
        -------
        float
            The weight; 1 for queues without one, and under every strategy except ``weighted``.
        """
        if self.strategy != "weighted":
            return 1
        return next((weight for name, weight in self.weights if name == queue), 1)


STRICT: Final = Sharing()


def check_sharing(sharing: Sharing, queues: Collection[str] | None) -> None:
    """Check a strategy that a program has set; servers build theirs of requests that are checked.

    Parameters
    ----------
    queues:
        The queues that share workers. ``None``: they are not known.

    Raises
    ------
    TypeError, ValueError
        A field has another type or is out of bounds, or there are weights without effect: of another strategy than
        ``weighted``, or of other queues.
    """
    check_fields(sharing)
    if sharing.weights and sharing.strategy != "weighted":
        raise ValueError(
            f"'weights' has no effect with the strategy {sharing.strategy!r}. Use 'weighted', or leave it out."
        )
    for queue, _ in sharing.weights:
        if queues is not None and queue not in queues:
            raise ValueError(f"The weight of the queue {queue!r} has no effect. Add it to 'queues', or leave it out.")


MAX_FAIR_QUEUES: Final = 100
"""Maximum number of queues in a claim with a strategy other than ``strict``."""


class FairnessState:
    """Service that queues which share workers have received.

    Attributes
    ----------
    clock:
        Virtual time at which the last turn began.
    ends:
        Virtual time at which the last turn of each queue ended.
    handed_out:
        Number of jobs handed out.
    last:
        Value of ``handed_out`` when each queue was last served.
    served_at:
        Time at which each queue was last served, or known to have no jobs, in microseconds since the epoch.
    is_full:
        Whether the pool had no capacity at the last check.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self.ends: dict[str, float] = {}
        self.handed_out = 0
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
        """Return the queue of each of the next jobs, if all queues have enough of them. The state does not change.

        Parameters
        ----------
        queues:
            Queues, in order of precedence.
        backlog:
            Number of available jobs in each queue, as far as known; used by ``least-loaded``.
        starved:
            Queues to serve first, once each.
        """
        ahead = FairnessState()
        ahead.clock, ahead.handed_out = self.clock, self.handed_out
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
            if (self._waited(queue) + len(queues) - 1) * sharing.least_share >= 1:  # the others may be as late
                return queue
        if sharing.strategy == "strict":
            return queues[0]
        if sharing.strategy == "least-loaded":
            return max(queues, key=left.__getitem__)
        return min(queues, key=self._begins)

    def _begins(self, queue: str) -> float:
        return max(self.clock, self.ends.get(queue, 0.0))

    def _waited(self, queue: str) -> int:
        """Return the number of jobs handed out since the queue was last served, the next one included."""
        return self.handed_out + 1 - self.last.get(queue, 0)

    def was_passed_over(self, queue: str) -> bool:
        """Return whether jobs of other queues were handed out since the queue was last served."""
        return self.last.get(queue, 0) < self.handed_out

    def forget_old(self, most: int) -> None:
        """Forget queues with a last turn that is over, if there are more than ``most``."""
        if len(self.ends) > most:
            self.ends = {queue: end for queue, end in self.ends.items() if end > self.clock}
            self.last = {queue: self.last[queue] for queue in self.ends}
            self.served_at = {queue: self.served_at[queue] for queue in self.ends}

    def note(self, queue: str, sharing: Sharing, now: int) -> None:
        """Record that a job of a queue is handed out."""
        self._move_on(queue, sharing.weight(queue))
        self.served_at[queue] = now

    def _move_on(self, queue: str, weight: float) -> None:
        self.clock = self._begins(queue)
        self.ends[queue] = self.clock + 1 / weight
        self.handed_out += 1
        self.last[queue] = self.handed_out
