"""Code shared by several peers: addresses of Redis and PostgreSQL, worker settings, and concurrent producers."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

REDIS_PORT = int(os.environ.get("PEERS_REDIS_PORT", "6379"))
REDIS = f"redis://127.0.0.1:{REDIS_PORT}/0"
POSTGRES = os.environ.get("PEERS_POSTGRES", "")
"""URL of the PostgreSQL database, from PEERS_POSTGRES; it ends with the name of the database."""

PYTHON = sys.executable
BIN = Path(sys.executable).parent

PRODUCERS = 50
"""Number of concurrent callers that enqueue jobs one by one, in one process."""


class Workers(NamedTuple):
    """One setting of the workers: the commands that start them, and the number of processes that will run jobs."""

    commands: Sequence[Sequence[str]]
    processes: int


def flush() -> None:
    """Delete all keys in Redis."""
    with socket.create_connection(("127.0.0.1", REDIS_PORT)) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        connection.recv(64)


async def run_concurrently(call: Callable[[], Awaitable[object]], count: int, producers: int = PRODUCERS) -> None:
    """Make ``count`` calls from ``producers`` concurrent coroutines."""
    left = count

    async def produce() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    await asyncio.gather(*(produce() for _ in range(producers)))


def run_in_threads(call: Callable[[], object], count: int, producers: int = PRODUCERS) -> None:
    """Make ``count`` calls from ``producers`` threads."""
    shares = [count // producers + (number < count % producers) for number in range(producers)]

    def produce(share: int) -> None:
        for _ in range(share):
            call()

    threads = [threading.Thread(target=produce, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
