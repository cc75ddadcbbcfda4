"""Parked calls: calls with empty results, in order of arrival, until there is news of what they wait for.

Several transactions run at once. A call may look just before another transaction makes its jobs available, and be
parked just after that transaction served the parked calls. So the moment of each topic's last news is recorded: a call
that looked before the news is not parked, but run again.

A call is parked under one or more names. Calls that can take the same jobs share a name; calls that can take only some
of these jobs have another. Each name hears one or more topics. Since nobody knows which of the calls can take a job,
news of a topic wakes as many calls of each name as there are jobs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ojster.storage.call import LongPoll, PendingCall


MAX_NEWS: Final = 10_000
"""Number of topics whose news are remembered; beyond that, all are forgotten, and each counts as having had some."""


class ParkResult(NamedTuple):
    """Result of ``ParkedCalls.keep``. Calls in neither list are parked."""

    again: list[PendingCall]
    """Calls to run again at once, because there was news after they looked."""
    given_up: list[PendingCall]
    """Calls to answer with their empty results, because their wait has ended."""


class ParkedCalls:
    """The parked calls of a database. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, OrderedDict[PendingCall, None]] = {}
        """The parked calls, by name."""
        self._hearing: dict[str, dict[str, None]] = {}
        """The names under which calls are parked, by each topic that they hear."""
        self._moment = 0
        self._news: dict[str, int] = {}
        """The moment of each topic's last news."""
        self._forgotten_at = 0
        """The moment when all news were forgotten: each topic counts as having had some."""
        self._gave_up_at = 0

    def moment(self) -> int:
        """Return the current moment. Take it before a transaction looks for jobs, and pass it to ``keep``."""
        return self._moment

    def topics(self) -> list[str]:
        """Return the topics that parked calls hear."""
        with self._lock:
            return list(self._hearing)

    def keep(self, calls: Iterable[PendingCall], since: int) -> ParkResult:
        """Park calls that found no jobs and had no news after ``since``; those parked before go back to the front."""
        again: list[PendingCall] = []
        given_up: list[PendingCall] = []
        waiting: list[PendingCall] = []
        with self._lock:
            for call in calls:
                if call.future.done() or call.poll is None:
                    continue
                if self._gave_up_at > since or call.poll.is_over:
                    given_up.append(call)
                elif any(self._has_news(topics, since) for topics in call.poll.topics.values()):
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

    def take(self, wanted: Mapping[str, int]) -> list[PendingCall]:
        """Remove and return the given number of calls of each name that hears a topic, oldest first."""
        taken: list[PendingCall] = []
        if self._calls:
            with self._lock:
                for topic, count in wanted.items():
                    for name in list(self._hearing.get(topic, ())):
                        chosen = [call for call, _ in zip(self._calls.get(name, ()), range(count), strict=False)]
                        for call in chosen:
                            self._remove(call)
                        taken += [call for call in chosen if not call.is_left]
        return taken

    def announce(self, topics: Iterable[str]) -> list[str]:
        """Record committed news of topics; return the topics that parked calls hear."""
        topics = list(dict.fromkeys(topics))
        with self._lock:
            self._moment += 1
            if len(self._news) > MAX_NEWS:
                self._news.clear()
                self._forgotten_at = self._moment
            for topic in topics:
                self._news[topic] = self._moment
            return [topic for topic in topics if topic in self._hearing]

    def _has_news(self, topics: Sequence[str], since: int) -> bool:
        return self._forgotten_at > since or any(self._news.get(topic, 0) > since for topic in topics)

    def give_up(self) -> list[PendingCall]:
        """Remove and return all parked calls. Calls that are being run now are not parked afterwards either."""
        with self._lock:
            self._moment += 1
            self._gave_up_at = self._moment
            calls = list(dict.fromkeys(call for waiting in self._calls.values() for call in waiting))
            self._calls.clear()
            self._hearing.clear()
            return calls

    def expire(self, poll: LongPoll) -> list[PendingCall]:
        """Remove and return the calls parked with this long poll, with their empty results."""
        with self._lock:
            waiting = [call for name in poll.topics for call in self._calls.get(name, ())]
            calls = [call for call in waiting if call.poll is poll]
            for call in calls:
                self._remove(call)
        for call in calls:
            call.results = call.empty_results
        return list(dict.fromkeys(calls))

    def forget(self, call: PendingCall) -> None:
        """Remove a call that was answered or cancelled."""
        with self._lock:
            self._remove(call)

    def _add(self, call: PendingCall, *, last: bool) -> None:
        for name, topics in call.poll.topics.items() if call.poll is not None else ():
            waiting = self._calls.get(name)
            if waiting is None:
                waiting = self._calls[name] = OrderedDict()
                for topic in topics:
                    self._hearing.setdefault(topic, {})[name] = None
            waiting[call] = None
            waiting.move_to_end(call, last=last)

    def _remove(self, call: PendingCall) -> None:
        for name, topics in call.poll.topics.items() if call.poll is not None else ():
            waiting = self._calls.get(name)
            if waiting is not None:
                waiting.pop(call, None)
                if not waiting:
                    del self._calls[name]
                    self._stop_hearing(name, topics)

    def _stop_hearing(self, name: str, topics: Sequence[str]) -> None:
        for topic in topics:
            names = self._hearing[topic]
            del names[name]
            if not names:
                del self._hearing[topic]
