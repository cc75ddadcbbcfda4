"""Threads take turns more often while long work is done."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from ojster.core.tuning import QUICK_SWITCH_INTERVAL, SWITCH_INTERVAL, long_work


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = sys.getswitchinterval()
    monkeypatch.setattr(long_work, "is_tuned", True)
    sys.setswitchinterval(SWITCH_INTERVAL)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("tuned")
def test_turns_are_short_until_the_last_long_work_ends() -> None:
    def fail() -> None:
        with long_work():
            with long_work():
                assert sys.getswitchinterval() == pytest.approx(QUICK_SWITCH_INTERVAL)
            assert sys.getswitchinterval() == pytest.approx(QUICK_SWITCH_INTERVAL)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)


def test_the_interpreter_of_an_application_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "is_tuned", False)  # another test may have run a server in this process
    before = sys.getswitchinterval()
    with long_work():
        assert sys.getswitchinterval() == before


@pytest.mark.usefixtures("tuned")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent() -> None:
    with long_work._lock:
        child = os.fork()
        if not child:
            with long_work():
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
