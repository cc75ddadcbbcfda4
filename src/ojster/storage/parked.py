"""Who waits for jobs? Calls that were made in vain, in the order in which they came, until something becomes available.

Several transactions run at once, so a call may have looked just before another transaction made available what it
wants, and be kept just after that one told those who waited. The room therefore notes when each queue last had news:
a call that looked before the news is not kept, but tried again.

Who waits for the jobs of one tenant waits under its name for the queue (``ojster.core.tenant``). There may be news for
all tenants of a queue; what is nobody's is news of the queue itself. Who cannot take every job waits under a name of
its own, ``choosy``: it is woken by all news, and in nobody's stead.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ojster.core.tenant import DEFAULT_TENANT, EVERYBODY, NOBODY, qualify, split
from ojster.storage.transaction import EVERY_JOB

if TYPE_CHECKING:
    from ojster.storage.dispatcher import Call, Patience


_CHOOSY: Final = "/choosy/"


def choosy(queue: str) -> str:
    """Return under which name those wait for the jobs of a queue who cannot take all of them."""
    return _CHOOSY + queue


class Kept(NamedTuple):
    """What became of calls that were to be kept; those in neither list wait now."""

    again: list[Call]
    """There has been news since they looked: they are to be tried again at once."""
    given_up: list[Call]
    """Nobody is to wait any more: they get what they had got in vain."""


class WaitingRoom:
    """The patient calls of a database. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, OrderedDict[Call, None]] = {}
        self._moment = 0
        self._news: dict[str, int] = {}
        """When each queue last had news, as far as anybody may still not know them."""
        self._gave_up_at = 0

    def moment(self) -> int:
        """Return what to give to ``keep`` later: take it before a transaction begins to look."""
        return self._moment

    def queues(self) -> list[str]:
        """Return the queues that somebody waits for."""
        with self._lock:
            return list(self._calls)

    def keep(self, calls: Iterable[Call], since: int) -> Kept:
        """Keep calls that looked in vain after the moment ``since``, before those that came later."""
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
                call.vain_results = call.results
                if not call.has_waited:
                    self._add(call, last=True)
            for call in reversed(waiting):
                if call.has_waited:
                    self._add(call, last=False)
                call.has_waited = True
        return Kept(again, given_up)

    def take(self, wanted: Mapping[str, int]) -> list[Call]:
        """Take out, for each queue, as many calls as given, those that came first."""
        taken: list[Call] = []
        if self._calls:
            with self._lock:
                for news, count in wanted.items():
                    for queue in self._concerned(news):
                        most = EVERY_JOB if queue.startswith(_CHOOSY) else count
                        chosen = [call for call, _ in zip(self._calls.get(queue, ()), range(most), strict=False)]
                        for call in chosen:
                            self._remove(call)
                        taken += chosen
        return taken

    def announce(self, queues: Iterable[str]) -> list[str]:
        """Note that queues have news, once these are committed; return those for which somebody waits."""
        with self._lock:
            self._moment += 1
            for queue in queues:
                self._news[queue] = self._moment
            return [queue for queue in queues if self._concerned(queue)]

    def _has_news(self, queue: str, since: int) -> bool:
        queue = queue.removeprefix(_CHOOSY)
        tenant, name = split(queue)
        sources = [queue]
        if tenant != NOBODY:
            sources.append(qualify(EVERYBODY, name))
        if tenant == DEFAULT_TENANT:
            sources.append(name)
        return any(self._news.get(source, 0) > since for source in sources)

    def _concerned(self, news: str) -> list[str]:
        """Return under which names somebody waits whom the news of a queue concern."""
        tenant, queue = split(news.removeprefix(_CHOOSY))
        if tenant == EVERYBODY:
            plain = (queue, choosy(queue))
            return [name for name in self._calls if name not in plain and split(name.removeprefix(_CHOOSY))[1] == queue]
        names = [news, qualify(DEFAULT_TENANT, queue)] if tenant == NOBODY else [news]
        names += [choosy(name) for name in names]
        return [name for name in names if name in self._calls]

    def give_up(self) -> list[Call]:
        """Let nobody wait on who looks now or waits already; return those who waited."""
        with self._lock:
            self._moment += 1
            self._gave_up_at = self._moment
            calls = list(dict.fromkeys(call for waiting in self._calls.values() for call in waiting))
            self._calls.clear()
            return calls

    def expire(self, patience: Patience) -> list[Call]:
        """Take out the calls that wait with this patience; they get what they had got in vain."""
        with self._lock:
            waiting = [call for queue in patience.queues for call in self._calls.get(queue, ())]
            calls = [call for call in waiting if call.patience is patience]
            for call in calls:
                self._remove(call)
        for call in calls:
            call.results = call.vain_results
        return list(dict.fromkeys(calls))

    def forget(self, call: Call) -> None:
        """Forget a call whose caller has gone, or has its answer."""
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
