"""The databases and servers of the peers, with all that is needed to measure on them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from tests.postgres import PostgresServer, free_port

from benchmarks.peers.catalog import Peer

TEMPORAL_SETTINGS = (
    "history.transferProcessorMaxPollRPS=10000",
    "history.timerProcessorMaxPollRPS=10000",
    "history.visibilityProcessorMaxPollRPS=10000",
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    "system.enableActivityEagerExecution=true",
)
"""Without these, the one shard of the server hands out tasks 20 times per second: a step of a chain takes 95 ms."""


class Missing(Exception):
    """The database of a peer cannot run here; the text says why, in one line."""


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """Run a PostgreSQL server with its default settings."""
    server = PostgresServer()
    server.start()
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def store_of(peer: Peer, program: Sequence[str], server: PostgresServer, work: Path) -> Iterator[dict[str, str]]:
    """Give a peer an empty database; yield the environment variables that tell the driver about it."""
    if peer.server:
        with _temporal(program, work) as variables:
            yield variables
    elif peer.store == "PostgreSQL":
        yield _database(peer, server)
    elif peer.store == "Redis":
        with _redis(work) as variables:
            yield variables
    else:
        yield {}


def _database(peer: Peer, server: PostgresServer) -> dict[str, str]:
    name = "".join(letter for letter in peer.name.lower() if letter.isalpha())
    with psycopg.connect(server.tcp_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = server.tcp_url.rpartition("/")[0] + "/" + name
    # What autovacuum and the checkpointer do sooner or later happens before each window, not by chance in one of them.
    settle = [str(server.bin / "psql"), "-q", "-c", "VACUUM ANALYZE", "-c", "CHECKPOINT", url]
    return {
        "PEERS_POSTGRES": url,
        "PEERS_STORE_PROCESSES": (server.data / "postmaster.pid").read_text().splitlines()[0],
        "PEERS_SETTLE": json.dumps(settle),
    }


@contextmanager
def _redis(work: Path) -> Iterator[dict[str, str]]:
    """Run an empty Redis that writes all commands to a file, and syncs it each second."""
    command = shutil.which("redis-server")
    if command is None:
        raise Missing("no redis-server on the path")
    port = free_port()
    durable = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
    options = ("--port", str(port), "--bind", "127.0.0.1", *durable, "--dir", str(work))
    process = subprocess.Popen([command, *options], stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, "redis-server")
        yield {"PEERS_REDIS_PORT": str(port), "PEERS_STORE_PROCESSES": str(process.pid)}
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _temporal(program: Sequence[str], work: Path) -> Iterator[dict[str, str]]:
    """Run Temporal's development server on an empty SQLite file whose commits are all synced."""
    port = free_port()
    options = ["--ip", "127.0.0.1", "--port", str(port), "--headless", "--log-level", "error"]
    options += ["--db-filename", str(work / "temporal.db")]
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        options += ["--sqlite-pragma", pragma]
    for setting in TEMPORAL_SETTINGS:
        options += ["--dynamic-config-value", setting]
    with (work / "temporal.log").open("wb") as log:
        process = subprocess.Popen([*program, "server", "start-dev", *options], stdout=log, stderr=log)
    try:
        _wait_for(port, "temporal", seconds=60)
        yield {"PEERS_TEMPORAL": f"127.0.0.1:{port}", "PEERS_STORE_PROCESSES": str(process.pid)}
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, name: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise Missing(f"{name} did not start") from None
            time.sleep(0.05)
