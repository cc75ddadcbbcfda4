"""Parked fetches: calls with empty results, in order of arrival, until jobs become available.

Several transactions run at once. A call may look just before another transaction makes its jobs available, and be
parked just after that transaction served the parked calls. So the moment of each queue's last news is recorded: a call
that looked before the news is not parked, but run again.

A call for one tenant's jobs is parked under the tenant's qualified queue name (``ojster.core.tenant``). News may
concern all tenants of a queue. News of jobs without a tenant is news of the queue itself. A call that cannot take every
job is parked under a separate name (``choosy``), which it shares with calls that can take the same jobs. Since nobody
knows which of them can take a job, news wakes as many calls of each kind as there are jobs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ojster.core.tenant import ALL_TENANTS, DEFAULT_TENANT, NOBODY, qualify, split

if TYPE_CHECKING:
    from ojster.storage.call import Call, LongPoll


_SELECTIVE: Final = "/choosy/"

MAX_NEWS: Final = 10_000
"""Number of queues whose news are remembered; beyond that, all are forgotten, and each counts as having had some."""


def choosy(queue: str, kind: str) -> str:
    """Return the name under which calls are parked that cannot take every job of a queue.

    Parameters
    ----------
    kind:
        A name for the jobs that they can take, the same for calls that can take the same jobs; without ``/``.
    """
    return f"{_SELECTIVE}{kind}/{queue}"


def _queue_of(name: str) -> str:
    """Return the queue of a name under which calls are parked."""
    return name.split("/", 3)[3] if name.startswith(_SELECTIVE) else name


class ParkResult(NamedTuple):
    """Result of ``ParkedCalls.keep``. Calls in neither list are parked."""

    again: list[Call]
    """Calls to run again at once, because there was news after they looked."""
    given_up: list[Call]
    """Calls to answer with their empty results, because their wait has ended."""


class ParkedCalls:
    """The parked calls of a database. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, OrderedDict[Call, None]] = {}
        self._choosy: dict[str, dict[str, None]] = {}
        """The ``choosy`` names under which calls are parked, by queue."""
        self._moment = 0
        self._news: dict[str, int] = {}
        """The moment of each queue's last news."""
        self._forgotten_at = 0
        """The moment when the news of all queues were forgotten: each counts as having had some."""
        self._gave_up_at = 0

    def moment(self) -> int:
        """Return the current moment. Take it before a transaction looks for jobs, and pass it to ``keep``."""
        return self._moment

    def queues(self) -> list[str]:
        """Return the queue names under which calls are parked."""
        with self._lock:
            return list(self._calls)

    def keep(self, calls: Iterable[Call], since: int) -> ParkResult:
        """Park calls that found no jobs and had no news after ``since``; those parked before go back to the front."""
        again: list[Call] = []
        given_up: list[Call] = []
        waiting: list[Call] = []
        with self._lock:
            for call in calls:
                if call.future.done() or call.poll is None:
                    continue
                if self._gave_up_at > since or call.poll.is_over:
                    given_up.append(call)
                elif any(self._has_news(queue, since) for queue in call.poll.queues):
                    again.append(call)
                else:
                    waiting.append(call)
            for call in waiting:
                call.empty_results = call.results
                if not call.has_waited:
                    self._add(call, last=True)
            for call in reversed(waiting):
                if call.has_waited:
                    self._add(call, last=False)
                call.has_waited = True
        return ParkResult(again, given_up)

    def take(self, wanted: Mapping[str, int]) -> list[Call]:
        """Remove and return the given number of calls of each kind for each queue, oldest first."""
        taken: list[Call] = []
        if self._calls:
            with self._lock:
                for news, count in wanted.items():
                    for queue in self._concerned(news):
                        chosen = [call for call, _ in zip(self._calls.get(queue, ()), range(count), strict=False)]
                        for call in chosen:
                            self._remove(call)
                        taken += chosen
        return taken

    def announce(self, queues: Iterable[str]) -> list[str]:
        """Record committed news of queues; return the queues with parked calls."""
        names = list(dict.fromkeys(map(_queue_of, queues)))
        with self._lock:
            self._moment += 1
            if len(self._news) > MAX_NEWS:
                self._news.clear()
                self._forgotten_at = self._moment
            for queue in names:
                self._news[queue] = self._moment
            return [queue for queue in names if self._concerned(queue)]

    def _has_news(self, queue: str, since: int) -> bool:
        queue = _queue_of(queue)
        tenant, name = split(queue)
        sources = [queue]
        if tenant != NOBODY:
            sources.append(qualify(ALL_TENANTS, name))
        if tenant == DEFAULT_TENANT:
            sources.append(name)
        return self._forgotten_at > since or any(self._news.get(source, 0) > since for source in sources)

    def _concerned(self, news: str) -> list[str]:
        """Return the names with parked calls that the news of a queue concerns."""
        tenant, queue = split(_queue_of(news))
        if tenant == ALL_TENANTS:
            parked = [name for name in self._calls if _queue_of(name) != queue]
            return [name for name in parked if split(_queue_of(name))[1] == queue]
        names = [news, qualify(DEFAULT_TENANT, queue)] if tenant == NOBODY else [news]
        parked = [name for name in names if name in self._calls]
        if self._choosy:
            parked += [choosy_name for name in names for choosy_name in self._choosy.get(name, ())]
        return parked

    def give_up(self) -> list[Call]:
        """Remove and return all parked calls. Calls that are being run now are not parked afterwards either."""
        with self._lock:
            self._moment += 1
            self._gave_up_at = self._moment
            calls = list(dict.fromkeys(call for waiting in self._calls.values() for call in waiting))
            self._calls.clear()
            self._choosy.clear()
            return calls

    def expire(self, poll: LongPoll) -> list[Call]:
        """Remove and return the calls parked with this long poll, with their empty results."""
        with self._lock:
            waiting = [call for queue in poll.queues for call in self._calls.get(queue, ())]
            calls = [call for call in waiting if call.poll is poll]
            for call in calls:
                self._remove(call)
        for call in calls:
            call.results = call.empty_results
        return list(dict.fromkeys(calls))

    def forget(self, call: Call) -> None:
        """Remove a call that was answered or cancelled."""
        with self._lock:
            self._remove(call)

    def _add(self, call: Call, *, last: bool) -> None:
        for queue in call.poll.queues if call.poll is not None else ():
            waiting = self._calls.get(queue)
            if waiting is None:
                waiting = self._calls[queue] = OrderedDict()
                if queue.startswith(_SELECTIVE):
                    self._choosy.setdefault(_queue_of(queue), {})[queue] = None
            waiting[call] = None
            waiting.move_to_end(call, last=last)

    def _remove(self, call: Call) -> None:
        for queue in call.poll.queues if call.poll is not None else ():
            waiting = self._calls.get(queue)
            if waiting is not None:
                waiting.pop(call, None)
                if not waiting:
                    del self._calls[queue]
                    if queue.startswith(_SELECTIVE):
                        kinds = self._choosy[_queue_of(queue)]
                        del kinds[queue]
                        if not kinds:
                            del self._choosy[_queue_of(queue)]
