"""Code shared by several peers: addresses of Redis and PostgreSQL, and concurrent producers."""

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
"""URL of the PostgreSQL database, from PEERS_POSTGRES; it ends with the name of the database."""

PYTHON = sys.executable
BIN = Path(sys.executable).parent


def flush() -> None:
    """Delete all keys in Redis."""
    with socket.create_connection(("127.0.0.1", REDIS_PORT)) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        connection.recv(64)


async def run_concurrently(call: Callable[[], Awaitable[object]], count: int, producers: int) -> None:
    """Make ``count`` calls from ``producers`` concurrent coroutines."""
    left = count

    async def produce() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    await asyncio.gather(*(produce() for _ in range(producers)))
