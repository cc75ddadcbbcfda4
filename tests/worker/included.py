"""An application that includes another, whose handler runs in a child process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ojster import App, Job
from tests.worker.including import tasks
from tests.worker.injected import say

app = App(os.environ.get("OJSTER_TEST_URL", "sqlite:///unused.db"))
app.include(tasks)


@app.on_startup
def start() -> None:
    say("starts")


def layer(job: Job, call_next: Callable[[], Any]) -> Any:
    say("layer")
    return call_next()


app.thread_middleware.append(layer)
