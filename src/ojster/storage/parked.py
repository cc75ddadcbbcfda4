"""Parked fetches: calls with empty results, in order of arrival, until jobs become available.

Several transactions run at once. A call may look just before another transaction makes its jobs available, and be
parked just after that transaction served the parked calls. So the moment of each queue's last news is recorded: a call
that looked before the news is not parked, but run again.

A call for one tenant's jobs is parked under the tenant's qualified queue name (``ojster.core.tenant``). News may
concern all tenants of a queue. News of jobs without a tenant is news of the queue itself. A call that cannot take every
job is parked under a separate name, ``choosy``: all news wakes it, in addition to other calls.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ojster.core.tenant import ALL_TENANTS, DEFAULT_TENANT, NOBODY, qualify, split
from ojster.storage.transaction import UNKNOWN_COUNT

if TYPE_CHECKING:
    from ojster.storage.call import Call, LongPoll


_SELECTIVE: Final = "/choosy/"


def choosy(queue: str) -> str:
    """Return the name under which calls that cannot take every job of a queue are parked."""
    return _SELECTIVE + queue


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
        self._moment = 0
        self._news: dict[str, int] = {}
        """The moment of each queue's last news."""
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
                if call.future.done() or call.patience is None:
                    continue
                if self._gave_up_at > since or call.patience.is_over:
                    given_up.append(call)
                elif any(self._has_news(queue, since) for queue in call.patience.queues):
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
        """Remove and return the given number of calls of each queue, oldest first, and all of its ``choosy`` calls."""
        taken: list[Call] = []
        if self._calls:
            with self._lock:
                for news, count in wanted.items():
                    for queue in self._concerned(news):
                        most = UNKNOWN_COUNT if queue.startswith(_SELECTIVE) else count
                        chosen = [call for call, _ in zip(self._calls.get(queue, ()), range(most), strict=False)]
                        for call in chosen:
                            self._remove(call)
                        taken += chosen
        return taken

    def announce(self, queues: Iterable[str]) -> list[str]:
        """Record committed news of queues; return the queues with parked calls."""
        with self._lock:
            self._moment += 1
            for queue in queues:
                self._news[queue] = self._moment
            return [queue for queue in queues if self._concerned(queue)]

    def _has_news(self, queue: str, since: int) -> bool:
        queue = queue.removeprefix(_SELECTIVE)
        tenant, name = split(queue)
        sources = [queue]
        if tenant != NOBODY:
            sources.append(qualify(ALL_TENANTS, name))
        if tenant == DEFAULT_TENANT:
            sources.append(name)
        return any(self._news.get(source, 0) > since for source in sources)

    def _concerned(self, news: str) -> list[str]:
        """Return the names with parked calls that the news of a queue concerns."""
        tenant, queue = split(news.removeprefix(_SELECTIVE))
        if tenant == ALL_TENANTS:
            plain = (queue, choosy(queue))
            return [
                name for name in self._calls if name not in plain and split(name.removeprefix(_SELECTIVE))[1] == queue
            ]
        names = [news, qualify(DEFAULT_TENANT, queue)] if tenant == NOBODY else [news]
        names += [choosy(name) for name in names]
        return [name for name in names if name in self._calls]

    def give_up(self) -> list[Call]:
        """Remove and return all parked calls. Calls that are being run now are not parked afterwards either."""
        with self._lock:
            self._moment += 1
            self._gave_up_at = self._moment
            calls = list(dict.fromkeys(call for waiting in self._calls.values() for call in waiting))
            self._calls.clear()
            return calls

    def expire(self, patience: LongPoll) -> list[Call]:
        """Remove and return the calls parked with this patience, with their empty results."""
        with self._lock:
            waiting = [call for queue in patience.queues for call in self._calls.get(queue, ())]
            calls = [call for call in waiting if call.patience is patience]
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
        for queue in call.patience.queues if call.patience is not None else ():
            waiting = self._calls.setdefault(queue, OrderedDict())
            waiting[call] = None
            waiting.move_to_end(call, last=last)

    def _remove(self, call: Call) -> None:
        for queue in call.patience.queues if call.patience is not None else ():
            waiting = self._calls.get(queue)
            if waiting is not None:
                waiting.pop(call, None)
                if not waiting:
                    del self._calls[queue]
