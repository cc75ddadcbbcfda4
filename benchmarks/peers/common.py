"""What do several peers share? Where Redis and PostgreSQL are, and producers that run side by side."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

REDIS_PORT = int(os.environ.get("PEERS_REDIS_PORT", "6379"))
REDIS = f"redis://127.0.0.1:{REDIS_PORT}/0"
POSTGRES = os.environ.get("PEERS_POSTGRES", "")
"""The URL of a PostgreSQL database, which ends with its name."""

PYTHON = sys.executable
BIN = Path(sys.executable).parent


def flush() -> None:
    """Empty Redis."""
    with socket.create_connection(("127.0.0.1", REDIS_PORT)) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        connection.recv(64)


async def side_by_side(call: Callable[[], Awaitable[object]], count: int, producers: int) -> None:
    """Make ``count`` calls from so many coroutines."""
    left = count

    async def produce() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    await asyncio.gather(*(produce() for _ in range(producers)))
