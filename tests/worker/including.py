"""A module that declares jobs without knowing the application that includes it."""

from __future__ import annotations

from ojster import App
from tests.worker.injected import say

tasks = App()


@tasks.job("included.first", process=True, retry=1)
def first() -> str:
    say("first")
    return second.enqueue().id


@tasks.job("included.second")
def second() -> None: ...
