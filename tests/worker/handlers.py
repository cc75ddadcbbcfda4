"""Handlers that tests run, in a module that child processes can import."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ojster import App, DeadLetter, Discard, JobContext, RateLimit, RateLimited, Retry, Snooze, current_job

app = App(os.environ.get("OJSTER_DATABASE_URL", "sqlite:///unused.db"))

FAST = Retry(max_attempts=3, initial_interval=0.01, jitter=False)


@app.job("echo")
async def echo(*args: Any) -> list[Any]:
    return list(args)


@app.job("abort", retry=Retry(max_attempts=1))
def abort() -> None:
    """Kill the worker."""
    time.sleep(0.2)  # until the neighbors run
    os.abort()


@app.job("orphan", process=True)
def orphan(path: str) -> None:
    """Start a process of its own, and work for a long time without letting other threads run."""
    import subprocess
    import sys

    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with open(path, "w") as file:
        file.write(f"{os.getpid()} {grandchild.pid}")
    sum(range(10**12))


class NotYet(Exception):
    """Raised by ``set_up``."""


began: list[str] = []


def set_up() -> None:
    """Fail as long as there is no file where the environment says, and if it is called twice."""
    assert not began
    began.append("set_up")
    if not os.path.exists(os.environ["TEST_SET_UP"]):
        raise NotYet


@app.job("process.pid", process=True)
def process_pid(mebibytes: int = 0) -> int:
    block = b"x" * (mebibytes << 20)  # pages that are written to: others take no memory
    return os.getpid() + 0 * len(block)


@app.job("innocent", retry=Retry(max_attempts=1))
def innocent(number: int) -> int:
    time.sleep(0.4)
    return number


@app.job("thread")
def in_thread(n: int) -> tuple[int, str, int]:
    import threading

    return n, threading.current_thread().name, current_job().attempt


@app.job("context")
async def with_context(context: JobContext, n: int) -> dict[str, Any]:
    context.progress(n, 10, "so far")
    await context.aheartbeat()
    return {
        "attempt": context.attempt,
        "last": context.is_last_attempt,
        "meta": context.meta,
        "same": current_job() is context,
    }


@app.job("fail.twice", retry=FAST)
async def fail_twice(context: JobContext) -> int:
    if context.attempt < 3:
        raise ConnectionError(f"attempt {context.attempt}")
    return context.attempt


@app.job("fail.always", retry=Retry(max_attempts=2, initial_interval=0.01, give_up_on=[KeyError]))
def fail_always(kind: str) -> None:
    raise {"key": KeyError, "value": ValueError}[kind](kind)


@app.job("resume.async", retry=FAST)
async def resume(context: JobContext) -> list[Any]:
    before = context.restored()
    if context.attempt < 3:
        await context.acheckpoint({"attempt": context.attempt})
        raise ConnectionError("gone")
    return [before]


@app.job("resume.plain", retry=FAST)
def resume_in_a_thread() -> list[Any]:
    context = current_job()
    before = context.restored("nothing")
    if context.attempt < 2:
        context.checkpoint({"attempt": context.attempt})
        raise ConnectionError("gone")
    return [before]


@app.job("checkpoint.wrongly")
async def checkpoint_wrongly(context: JobContext) -> None:
    context.checkpoint(1)


@app.job("enough", retry=1, rate_limit=RateLimit(key="outside", concurrency=5))
async def had_enough(delay: float) -> None:
    raise RateLimited(delay)


@app.job("discard")
async def discard() -> None:
    raise Discard("not worth it")


@app.job("die")
async def die() -> None:
    raise DeadLetter("look at this")


@app.job("snooze")
async def snooze(context: JobContext) -> int:
    if "snoozed" not in seen:
        seen.add("snoozed")
        raise Snooze(0.01)
    return context.attempt


seen: set[str] = set()


@app.job("slow", timeout=100, retry=1)
async def slow() -> None:
    await asyncio.sleep(60)


@app.job("own.timeout", retry=1)
async def own_timeout() -> None:
    raise TimeoutError("a time-out of the handler's own")


@app.job("sleep")
async def sleep(seconds: float) -> str:
    print("sleep begins", flush=True)
    await asyncio.sleep(seconds)
    return "slept"


@app.job("endless")
async def endless() -> None:
    """Ignore every cancellation."""
    print("endless begins", flush=True)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(300)


@app.job("endless.thread")
def endless_thread() -> None:
    print("endless.thread begins", flush=True)
    time.sleep(300)


@app.job("endless.block")
async def endless_block() -> None:
    """Block the event loop."""
    print("endless.block begins", flush=True)
    time.sleep(300)


@app.job("sleep.thread")
def sleep_in_thread(context: JobContext, seconds: float) -> bool:
    return context.wait_cancelled(seconds)


@app.job("process", process=True, timeout=30)
def in_process(n: int) -> tuple[int, int]:
    return n * 2, os.getpid()


@app.job("process.fail", process=True, retry=1)
def fail_in_process() -> None:
    raise ValueError("in the child")


@app.job("process.slow", process=True, timeout=100, retry=1)
def slow_in_process() -> None:
    time.sleep(60)


@app.job("process.exit", process=True, retry=1)
def exit_in_process() -> None:
    os._exit(7)


@app.job("process.no_text", process=True, retry=1)
def no_text_in_process() -> str:
    return "\ud800"


@app.job("no_text", retry=1)
def no_text() -> str:
    return "\ud800"


@app.job("no.json", retry=1)
async def no_json() -> Any:
    return object()


@app.job("large", retry=1)
async def large() -> str:
    return "x" * 2_000_000


@app.job("raise", retry=1)
async def raise_(kind: str) -> None:
    raise {
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "cancelled": asyncio.CancelledError(),
        "half": ValueError("name\udcff"),
    }[kind]


@app.job("nan", retry=1)
async def not_a_number() -> dict[str, float]:
    return {"x": float("nan")}


@dataclass
class Point:
    """An argument and a result in a child process."""

    x: int
    at: datetime


@app.job("process.point", process=True)
def move(point: Point, by: timedelta) -> Point:
    return Point(point.x + 1, point.at + by)


@app.job("process.logs", process=True)
def process_logs(text: str) -> int:
    """Log a text; return how many handlers collect records for jobs."""
    import logging

    from ojster.handlers.kept_logs import _Collector

    logging.getLogger("shop").info(text, extra={"path": Path()})
    return sum(isinstance(handler, _Collector) for handler in logging.getLogger().handlers)
