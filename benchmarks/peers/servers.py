"""The databases of the peers, PostgreSQL and Redis, with all that is needed to measure on them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from tests.postgres import PostgresServer, free_port

from benchmarks.peers.catalog import Peer


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
def store_of(peer: Peer, server: PostgresServer, work: Path) -> Iterator[dict[str, str]]:
    """Give a peer an empty database; yield the environment variables that tell the driver about it."""
    if peer.store == "PostgreSQL":
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
        _wait_for(port)
        yield {"PEERS_REDIS_PORT": str(port), "PEERS_STORE_PROCESSES": str(process.pid)}
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise Missing("redis-server did not start") from None
            time.sleep(0.05)
