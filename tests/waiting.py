"""How tests wait for what must happen: for the event, and so long that only a hang takes longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import httpx
import pytest

from ojster.client.client import HttpClient

PATIENCE: Final = 50.0
"""How long a test waits for what must happen, in seconds, on the slowest and busiest machine."""

LONG_WAIT: Final = 60.0
"""Wait of a call that something must end before, in seconds: longer than the patience, and the longest over HTTP."""


def until(condition: Callable[[], object], complaint: Callable[[], str] = lambda: "it does not happen") -> None:
    """Wait until a condition holds; fail with the complaint if it does not for all the patience."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.02)


def never_retry(patch: pytest.MonkeyPatch) -> None:
    """Let calls to a server that is away fail at once, not after the ten seconds of all clients."""
    defaults = HttpClient.__init__.__kwdefaults__ or {}
    patch.setattr(HttpClient.__init__, "__kwdefaults__", defaults | {"patience": 0.0})


def answers(url: str) -> bool:
    """Return whether a server answers a URL with 200; a refused connection means not yet."""
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
