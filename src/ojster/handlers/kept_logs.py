"""What handlers log while they run, on its way to the server, for job types with ``keep_logs``.

One handler on the root logger collects the records of all attempts; it is installed only while one of them keeps its
log. The context of an attempt says whose record it is: coroutines and the threads of plain handlers carry it, threads
that a handler starts itself do not.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ojster.core.errors import OjsterError
from ojster.jobs.job_logs import (
    MAX_LINE_CHARACTERS,
    MAX_LOG_BYTES,
    MAX_LOG_LINES,
    MAX_LOGGER_CHARACTERS,
    LogLevel,
    NewLine,
    NewLines,
    storable,
)
from ojster.jobs.messages import Holder

log = logging.getLogger("ojster.jobs")

LOG_INTERVAL_SECONDS: Final = 1.0
"""Time between two reports of a running job's lines, in seconds. The last report precedes its outcome."""

LAST_LINES_SECONDS: Final = 5.0
"""Maximum time that the outcome of a job waits for the report of its last lines, in seconds."""

_LEVELS: Final[tuple[tuple[int, LogLevel], ...]] = (
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (logging.INFO, "info"),
)

Offer = Callable[[NewLine], None]

_keeper: contextvars.ContextVar[tuple[int, Offer] | None] = contextvars.ContextVar("ojster_kept_log", default=None)
"""The least level that the running attempt keeps, and what takes its lines."""


class _Collector(logging.Handler):
    """Hands each record to the attempt that wrote it. It is on the root logger while an attempt keeps its log."""

    def __init__(self) -> None:
        super().__init__()
        self._attempts = 0
        self._guard = threading.Lock()
        self._too_quiet: set[LogLevel] = set()

    def begin(self, level: LogLevel) -> None:
        """Collect records for one attempt more."""
        with self._guard:
            self._attempts += 1
            if self._attempts == 1:
                logging.getLogger().addHandler(self)
            if level in self._too_quiet or logging.getLogger().isEnabledFor(number_of(level)):
                return
            self._too_quiet.add(level)
        least = logging.getLevelName(logging.getLogger().level)
        log.warning(
            "keep_logs=%r keeps no line below %s, the level of the root logger. Call logging.basicConfig(level=%r).",
            *(level, least, level.upper()),
        )

    def end(self) -> None:
        """Collect records for one attempt less."""
        with self._guard:
            self._attempts -= 1
            if not self._attempts:
                logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand over a record."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record.name):
            last.handle(record)  # ``logging`` does so only for records that no handler gets
        keeper = _keeper.get()
        if keeper is None or record.levelno < keeper[0]:
            return
        try:
            logger = storable(record.name, MAX_LOGGER_CHARACTERS)
            text = storable(self._text(record), MAX_LINE_CHARACTERS)
            line = NewLine(round(record.created * 1e6), _name_of(record.levelno), logger, text)
        except Exception:  # as in the handlers of the standard library: a malformed record is reported, not raised
            self.handleError(record)
            return
        keeper[1](line)

    def _is_alone(self, name: str) -> bool:
        """Tell whether no other handler gets the records of a logger."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent
        return True

    def _text(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, dict) and "event" in record.msg:  # structlog's, which its own formatters would join
            more = [f"{name}={value!r}" for name, value in record.msg.items() if name != "event"]
            return " ".join((str(record.msg["event"]), *more))
        return self.format(record)


_collector: Final = _Collector()


def number_of(level: LogLevel) -> int:
    """Return the number that ``logging`` has for a level."""
    return logging.getLevelNamesMapping()[level.upper()]


def _name_of(number: int) -> LogLevel:
    return next((name for least, name in _LEVELS if number >= least), "debug")


@contextmanager
def collecting(level: LogLevel, offer: Offer) -> Iterator[None]:
    """Offer what the block logs, from a level on."""
    _collector.begin(level)
    token = _keeper.set((number_of(level), offer))
    try:
        yield
    finally:
        _keeper.reset(token)
        _collector.end()


def log_again(record: logging.LogRecord) -> None:
    """Give a record of a child process to the handlers of this one, but not to the attempt, which has its line."""
    logger = logging.getLogger(record.name)
    token = _keeper.set(None)
    try:
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    finally:
        _keeper.reset(token)


class LogReports:
    """Sends the lines of one attempt, in order, at most once a second. From its creation on, it collects them.

    It keeps no more lines than the server would; beyond them, and if the server cannot be reached, lines are lost.

    Parameters
    ----------
    level:
        The least severe lines to keep.
    holder:
        The attempt.
    send:
        Sends lines.
    loop:
        Event loop of the worker.
    """

    def __init__(
        self,
        level: LogLevel,
        holder: Holder,
        send: Callable[[NewLines], Coroutine[Any, Any, object]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.level = level
        self._holder = holder
        self._send = send
        self._loop = loop
        self._context = contextvars.Context()
        """A context without the attempt: what is logged while lines are sent is not a line of it."""
        self._lines: deque[NewLine] = deque()
        self._characters = 0
        self._dropped = 0
        self._guard = threading.Lock()
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        _collector.begin(level)
        _keeper.set((number_of(level), self.offer))

    def offer(self, line: NewLine) -> None:
        """Send a line within a second. Any thread may call it; after ``finish``, nothing is sent."""
        with self._guard:
            if self._is_closed:
                return
            is_first = not self._lines
            self._lines.append(line)
            self._characters += len(line.message)
            while len(self._lines) > MAX_LOG_LINES or self._characters > MAX_LOG_BYTES:
                self._characters -= len(self._lines.popleft().message)
                self._dropped += 1
        if is_first:
            self._loop.call_soon_threadsafe(self._send_soon, context=self._context.copy())

    async def finish(self) -> None:
        """Send the lines that wait, and collect no more."""
        _collector.end()
        if self._timer is not None:
            self._timer.cancel()
        with self._guard:
            self._is_closed = True
        try:
            async with asyncio.timeout(LAST_LINES_SECONDS):
                if self._sending is not None:
                    await asyncio.wait((self._sending,))
                if self._lines:
                    await self._loop.create_task(self._send_lines(), context=self._context.copy())
        except TimeoutError:
            log.debug("the last lines of job %s could not be sent", self._holder.job_id)

    def _send_soon(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(LOG_INTERVAL_SECONDS, self._begin_to_send)

    def _begin_to_send(self) -> None:
        self._timer = None
        if self._sending is not None and not self._sending.done():  # the server is slow: the lines wait
            self._timer = self._loop.call_later(LOG_INTERVAL_SECONDS, self._begin_to_send)
            return
        self._sending = self._loop.create_task(self._send_lines())

    async def _send_lines(self) -> None:
        with self._guard:
            lines, self._lines = list(self._lines), deque()
            dropped, self._dropped = self._dropped, 0
            self._characters = 0
        job_id, worker_id, attempt = self._holder.job_id, self._holder.worker_id, self._holder.attempt
        try:
            await self._send(NewLines(job_id, lines, worker_id, attempt, dropped))
        except OjsterError as error:
            self._dropped += dropped + len(lines)
            log.debug("%d lines of job %s were not kept: %s", len(lines), job_id, error)
