"""Orders that a process receives as signals."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial


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
