"""The signal that a handler should stop."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from ojster.handlers.stop_signal import StopSignal
from tests.waiting import PATIENCE


def test_nobody_waits_for_a_signal_that_is_set() -> None:
    signal = StopSignal()
    assert not signal.is_set
    assert signal.wait(0) is False
    signal.set()
    assert signal.is_set
    assert signal.wait(3_600) is True


def test_threads_that_wait_are_woken_whenever_it_is_set() -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(300):
            signal, begin = StopSignal(), threading.Barrier(9)

            def wait(signal: StopSignal = signal, begin: threading.Barrier = begin) -> bool:
                begin.wait()
                return signal.wait(PATIENCE)

            waiting = [pool.submit(wait) for _ in range(8)]
            begin.wait()
            signal.set()
            assert all(one.result(PATIENCE) for one in waiting)
