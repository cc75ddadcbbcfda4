"""Orders that a process receives as signals."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Final

import click

log = logging.getLogger(__name__)

ENDING_SECONDS: Final = 20.0
"""Time after the grace period in which a process ends what it has started, before it is ended, in seconds."""

PATIENCE_SECONDS: Final = 1.0
"""Time after Ctrl+C in which a command may end by itself, in seconds."""

_HINT: Final = "The database has not answered the last call yet. Press Ctrl+C again to end without its answer."


def on_signals(loop: asyncio.AbstractEventLoop, orders: Mapping[str, Callable[[], object]]) -> None:
    """Call functions in the loop when signals come, by the names of the signals. Call it in the main thread.

    Signals that the system lacks never come.
    """
    for name, order in orders.items():
        number = getattr(signal, name, None)
        if number is None:
            continue
        if sys.platform == "win32":  # its event loops take no signals
            signal.signal(number, partial(_in_loop, loop, order))
        else:
            loop.add_signal_handler(number, order)


def _in_loop(loop: asyncio.AbstractEventLoop, order: Callable[[], object], *_: object) -> None:
    loop.call_soon_threadsafe(order)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a second Ctrl+C end the process, whatever it waits for, such as a lock in the database.

    The first one does what it does without this. If the process has not ended ``PATIENCE_SECONDS`` later, it says what
    a second one is for.
    """
    first = signal.getsignal(signal.SIGINT)
    if not callable(first) or threading.current_thread() is not threading.main_thread():
        yield  # it is ignored, as in the background of a script, or another program runs the command
        return
    hint = threading.Timer(PATIENCE_SECONDS, click.echo, (_HINT,), {"err": True})
    hint.daemon = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        hint.start()
        first(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        hint.cancel()
        signal.signal(signal.SIGINT, first)


class LastResort:
    """Ends the process if it does not end itself after SIGTERM or SIGINT, such as while its event loop is blocked.

    It does so when ``ENDING_SECONDS`` have passed after the grace period, and at once at a second signal after the
    grace period. During it, a second signal ends the period, as SIGINT does, and a third one ends the process.

    Parameters
    ----------
    grace:
        The grace period after SIGTERM, in seconds; SIGINT has none.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._signals = 0
        self._grace_ends = float("inf")
        self._deadlines: queue.SimpleQueue[float] = queue.SimpleQueue()  # reentrant, as signal handlers need

    @property
    def is_urgent(self) -> bool:
        """Whether more than one signal has come."""
        return self._signals > 1

    def listen(self) -> None:
        """Take the signals beside ``on_signals``, which must have been called before. Call it in the main thread."""
        if sys.platform == "win32":
            return
        threading.Thread(target=self._watch, name="ojster-last-resort", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            # The loop gets signals through its wake-up descriptor whatever this handler is. Python runs the handler
            # also while the loop is blocked.
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        self._signals += 1
        now = time.monotonic()
        if self._signals > 2 or now >= self._grace_ends:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        ends = now if self._signals > 1 or number == signal.SIGINT else now + self._grace
        self._grace_ends = min(self._grace_ends, ends)
        self._deadlines.put(self._grace_ends + ENDING_SECONDS)

    def _watch(self) -> None:
        deadline = self._deadlines.get()
        while True:
            try:
                deadline = self._deadlines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        threading.Timer(1.0, os._exit, (1,)).start()  # should the log be blocked, too
        log.error("the process did not end within %g seconds after the grace period, and is ended", ENDING_SECONDS)
        os._exit(1)
