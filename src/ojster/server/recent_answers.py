"""Answers of the last second, for callers that accept them: many open dashboards ask the same at the same time.

A caller says with ``Cache-Control: max-age=1`` that an answer may be a second old. It then gets the answer that a
caller with the same rights got to the same request, or is about to get. Everybody else gets a new one: a program
that writes and then reads sees what it wrote. The dashboard leaves the header out for a moment after each of its own
changes. An answer from here has the header ``Age``; the dashboard then asks once more, because what changed since is
not in it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from ojster.core.errors import OjsterError
from ojster.server.answer import Answer, Header
from ojster.server.request import Handler, HttpRequest

MAX_AGE_SECONDS: Final = 1.0
"""Age that an answer may have, from the start of the request that it was made for, in seconds."""

MAX_RECENT_ANSWERS: Final = 500
"""Maximum number of answers that a server process remembers. Further requests are answered for themselves."""

MAX_REMEMBERED_BYTES: Final = 1_048_576
"""Maximum size of an answer that is remembered, in bytes. Callers that wait for a larger one share it all the same."""

_MAX_AGE: Final = re.compile(r"(?:^|,)\s*max-age\s*=\s*\"?(\d{1,9})\"?\s*(?:,|$)")

_REFUSING: Final = re.compile(r"(?:^|,)\s*no-(?:cache|store)\s*(?:,|$)")


class _Recent(NamedTuple):
    """An answer that was made a moment ago, or is being made."""

    since: float
    answer: asyncio.Task[Answer]


class RecentAnswers:
    """What a server process remembers of its answers.

    Parameters
    ----------
    clock:
        Returns a time in seconds that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: dict[Hashable, _Recent] = {}

    def __len__(self) -> int:
        return len(self._recent)

    def shared(self, handler: Handler) -> Handler:
        """Return a handler that answers equal requests of equal callers together, if the callers accept that."""

        async def answer(request: HttpRequest) -> Answer:
            if not accepts_recent(request.header(b"cache-control")):
                return await handler(request)
            key = (handler, *_key(request))
            recent = self._recent.get(key)
            if recent is not None and self._clock() - recent.since < MAX_AGE_SECONDS:
                try:
                    return _copy(await asyncio.shield(recent.answer), self._age(recent))
                except OjsterError:  # it concerns the caller that began, whose token it may name
                    return await handler(request)
            if len(self._recent) >= MAX_RECENT_ANSWERS:
                return await handler(request)
            # A task of its own: the request that began it may end before the others have their answer.
            recent = self._recent[key] = _Recent(self._clock(), asyncio.ensure_future(_made(handler, request)))
            recent.answer.add_done_callback(lambda _: self._forget_later(key, recent))
            return _copy(await asyncio.shield(recent.answer))

        answer.__name__ = handler.__name__
        return answer

    def _age(self, recent: _Recent) -> Header:
        """Return the header that says how old an answer is, in whole seconds. Spec: RFC 9111, 5.1"""
        return b"age", b"%d" % (self._clock() - recent.since)

    def _forget_later(self, key: Hashable, recent: _Recent) -> None:
        """Forget an answer when it is too old, and at once one that is too large, was refused, or was given up."""
        left = max(0.0, recent.since + MAX_AGE_SECONDS - self._clock())
        if left and _may_be_kept(recent.answer):
            asyncio.get_running_loop().call_later(left, self._forget, key, recent)
        else:
            self._forget(key, recent)

    def _forget(self, key: Hashable, recent: _Recent) -> None:
        if self._recent.get(key) is recent:
            del self._recent[key]


def accepts_recent(directives: str | None) -> bool:
    """Return whether a ``Cache-Control`` header of a request accepts an answer of ``MAX_AGE_SECONDS``."""
    if directives is None or _REFUSING.search(directives := directives.lower()):
        return False
    max_age = _MAX_AGE.search(directives)
    return max_age is not None and int(max_age[1]) >= MAX_AGE_SECONDS


def _key(request: HttpRequest) -> tuple[Hashable, ...]:
    """Return what makes requests to one endpoint equal, with what their callers may see; names of callers do not count.

    Spec: ojs-security 7
    """
    caller = request.service.scope.caller
    access: Any = None if caller.access is None else (caller.access.operations, caller.access.queues)
    return tuple(request.path.items()), request.query_string, caller.tenant, access


async def _made(handler: Handler, request: HttpRequest) -> Answer:
    return await handler(request)


def _may_be_kept(made: asyncio.Task[Answer]) -> bool:
    if made.cancelled() or made.exception() is not None:
        return False
    return len(made.result().body) <= MAX_REMEMBERED_BYTES


def _copy(answer: Answer, *headers: Header) -> Answer:
    """Return an answer that its endpoint may change."""
    return Answer(answer.body, answer.status, (*answer.headers, *headers), answer.content_type)
