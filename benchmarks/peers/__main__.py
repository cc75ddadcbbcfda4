"""Measure all peers in one run (``python -m benchmarks.peers``), print a table, write ``peers.md`` and ``peers.json``.

Each peer gets its own virtual environment in ``.peers``, with the newest versions at its installation. Peers on Redis
need ``redis-server`` on the path; PostgreSQL comes with the development dependencies. Redis runs without persistence,
as is usual for task queues; PostgreSQL and SQLite are durable.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table
from tests.postgres import PostgresServer, free_port

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass
class Peer:
    """One row of the table: the driver module, the packages to install, and the store of the jobs."""

    name: str
    module: str
    packages: tuple[str, ...]
    durable: bool
    store: str
    environment: dict[str, str] = field(default_factory=dict)


PEERS = (
    Peer("Ojster", "with_ojster", (f"{ROOT}[postgres]",), True, "PostgreSQL"),
    Peer("Ojster", "with_ojster", (f"{ROOT}[postgres]",), True, "SQLite", {"PEERS_OJSTER": "sqlite"}),
    Peer("PgQueuer", "with_pgqueuer", ("pgqueuer[asyncpg]", "uvloop"), True, "PostgreSQL"),
    Peer("Procrastinate", "with_procrastinate", ("procrastinate", "psycopg[binary,pool]"), True, "PostgreSQL"),
    Peer("Huey", "with_huey", ("huey", "redis"), True, "SQLite", {"PEERS_HUEY": "sqlite"}),
    Peer("Huey", "with_huey", ("huey", "redis"), False, "Redis"),
    Peer("taskiq", "with_taskiq", ("taskiq", "taskiq-redis", "uvloop"), False, "Redis"),
    Peer("Dramatiq", "with_dramatiq", ("dramatiq[redis]",), False, "Redis"),
    Peer("Celery", "with_celery", ("celery[redis]",), False, "Redis"),
    Peer("RQ", "with_rq", ("rq",), False, "Redis"),
)


def main() -> int:
    """Measure the chosen peers; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", metavar="WORD", help="Measure only peers with WORD in their name")
    parser.add_argument("--jobs", type=int, default=20_000, help="Number of jobs per round (default 20000)")
    parser.add_argument("--rounds", type=int, default=3, help="Number of rounds; the median is reported (default 3)")
    chosen = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    folder = ROOT / ".peers"
    folder.mkdir(exist_ok=True)
    rows = []
    with redis(folder) as redis_port, postgres() as server:
        for peer in PEERS:
            if chosen.only and chosen.only.lower() not in peer.name.lower():
                continue
            if peer.store == "Redis" and redis_port is None:
                console.print(f"{peer.name}: skipped, no redis-server on the path")
                continue
            try:
                figures = measure(peer, folder, server, redis_port or 0, chosen)
            except (subprocess.CalledProcessError, ValueError, psycopg.Error) as error:
                console.print(f"{peer.name} on {peer.store}: skipped, {error}")
                continue
            rows.append((peer, figures))
            console.print(f"{peer.name} on {peer.store}: {figures['processed']:,.0f}/s", style="bright_black")
    report(console, rows)
    return 0


def measure(peer: Peer, folder: Path, server: PostgresServer, redis_port: int, chosen: Any) -> dict[str, Any]:
    """Install a peer if needed, measure it, and return its figures."""
    home = folder / peer.module
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *peer.packages], check=True)
    database = f"{peer.module}_{peer.store.lower()}"
    with psycopg.connect(server.tcp_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {database}".encode())
        connection.execute("CHECKPOINT")
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    environment = os.environ | peer.environment
    environment |= {
        "PYTHONPATH": str(HERE),
        "PEERS_FOLDER": str(work),
        "PEERS_REDIS_PORT": str(redis_port),
        "PEERS_POSTGRES": server.tcp_url.rpartition("/")[0] + "/" + database,
        "PEERS_JOBS": str(chosen.jobs),
        "PEERS_ROUNDS": str(chosen.rounds),
    }
    done = subprocess.run(
        [python, "driver.py", peer.module], cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode or not done.stdout.strip():
        raise ValueError(f"the driver failed: {done.stderr.strip()[-600:]}")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    listed = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    names = {package.partition("[")[0].lower() for package in peer.packages}
    figures["versions"] = [line for line in listed.splitlines() if line.partition("==")[0].lower() in names]
    return figures


def report(console: Console, rows: list[tuple[Peer, dict[str, Any]]]) -> None:
    """Print the table and write it to ``peers.md`` and ``peers.json``."""
    table = Table(title="A no-op job through each task queue", title_justify="left", header_style="bold")
    heads = ("", "kept in", "enqueued", "in bulk", "processed", "with", "start p50", "start p99")
    for head in heads:
        table.add_column(head, justify="left" if head in ("", "kept in", "with") else "right", no_wrap=True)
    lines = ["| " + " | ".join(heads) + " |", "|---|---|--:|--:|--:|---|--:|--:|"]
    for peer, figures in rows:
        store = peer.store + ("" if peer.durable else " (nothing on disk)")
        cells = [peer.name, store, _rate(figures["enqueue"]), _rate(figures["bulk"]), _rate(figures["processed"])]
        cells += [figures["setting"], _ms(figures["p50"]), _ms(figures["p99"])]
        table.add_row(*cells)
        lines.append("| " + " | ".join(cells) + " |")
    console.print(table)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    versions = ", ".join(sorted({one for _, figures in rows for one in figures["versions"] if "@" not in one}))
    day = time.strftime("%Y-%m-%d", time.gmtime())
    (HERE / "peers.md").write_text("\n".join([*lines, "", f"{day}, {machine}. {versions}.", ""]))
    found = [{"name": peer.name, "store": peer.store, "durable": peer.durable, **figures} for peer, figures in rows]
    for one in found:
        one["versions"] = [version for version in one["versions"] if "@" not in version]
    (HERE / "peers.json").write_text(json.dumps({"day": day, "machine": machine, "peers": found}, indent=2) + "\n")


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}/s"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


@contextmanager
def redis(folder: Path) -> Iterator[int | None]:
    """Run Redis without persistence; yield its port, or ``None`` if ``redis-server`` is not on the path."""
    command = shutil.which("redis-server")
    if command is None:
        yield None
        return
    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder))
    process = subprocess.Popen([command, *options], stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """Run a PostgreSQL server with its default settings."""
    server = PostgresServer()
    server.start()
    try:
        yield server
    finally:
        server.remove()


if __name__ == "__main__":
    sys.exit(main())
