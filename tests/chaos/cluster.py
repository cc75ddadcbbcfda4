"""A Patroni cluster of PostgreSQL servers on 127.0.0.1, for trials: its start, its failures and its repair."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg

from tests.postgres import free_port

PASSWORD = "trial"  # of a database that lives for minutes

POLL_SECONDS = 0.05
"""Pause between two writes of the probe, in seconds."""


def postgres_folder() -> Path | None:
    """Return the folder of PostgreSQL's programs, the newest if there are several."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if not found and (initdb := shutil.which("initdb")):
        found = [Path(initdb)]
    return found[-1].parent if found else None


def missing_programs() -> list[str]:
    """Return the names of needed programs that are not installed."""
    missing = [name for name in ("etcd", "patroni", "patronictl") if shutil.which(name) is None]
    return missing if postgres_folder() else [*missing, "initdb"]


def wait_for(what: str, holds: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until something holds; what fails does not hold."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, ValueError, psycopg.Error):
            if holds():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} seconds")
        time.sleep(POLL_SECONDS)


class Node:
    """A PostgreSQL server and its Patroni."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self.port, self.rest = free_port(), free_port()
        self.data = cluster.folder / name
        self.config = cluster.folder / f"{name}.json"
        self.patroni: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL."""
        self.patroni = self._cluster.spawn(f"patroni-{self.name}", "patroni", str(self.config))

    def signal(self, number: int) -> None:
        """Send a signal to Patroni and to all processes of PostgreSQL; wait for the end of those that are killed."""
        pids = self._pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGKILL and self.patroni is not None:
            self.patroni.wait()
            wait_for(f"end of {self.name}", lambda: not any(_is_alive(pid) for pid in pids))

    def _pids(self) -> list[int]:
        pids = [self.patroni.pid] if self.patroni is not None else []
        with contextlib.suppress(OSError, ValueError):
            pids.append(int((self.data / "postmaster.pid").read_text().split()[0]))
        for pid in pids:
            pids += (child for child in _children(pid) if child not in pids)
        return pids

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres?connect_timeout=1"

    def ask(self, sql: str) -> Any:
        """Return the only value of a query."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            ((value,),) = connection.execute(sql.encode()).fetchall()
        return value


def _children(pid: int) -> Iterable[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(stat.parent.name)


def _is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Probe:
    """Writes to a node every 50 milliseconds, and remembers when it first could."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.first: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop writing."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set() and self.first is None:
            with contextlib.suppress(psycopg.Error), psycopg.connect(self.node.url, autocommit=True) as connection:
                while self.first is None and not self._stopped.is_set():
                    if connection.execute("SELECT pg_is_in_recovery()").fetchall() == [(False,)]:
                        connection.execute("UPDATE public.probe SET number = number + 1")
                        self.first = time.monotonic()
                        return
                    time.sleep(POLL_SECONDS)
            time.sleep(POLL_SECONDS)


class Cluster:
    """Nodes, and the etcd in which they elect the primary.

    Parameters
    ----------
    ttl:
        Time in seconds after which a primary that says nothing is replaced.
    """

    def __init__(self, folder: Path, *, nodes: int, ttl: int) -> None:
        self.folder = folder
        self._ttl = ttl
        self._user: dict[str, Any] = {}
        folder.mkdir()
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            known = {one.pw_name: one for one in pwd.getpwall()}
            who = known.get("postgres") or known["nobody"]
            self._user = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
            os.chown(folder, who.pw_uid, who.pw_gid)
        self._etcd: subprocess.Popen[bytes] | None = None
        self._etcd_port, self._peer_port = free_port(), free_port()
        self.nodes = [Node(self, f"node{number}") for number in range(1, nodes + 1)]
        self._failed: Node | None = None
        self._kind = ""

    @property
    def url(self) -> str:
        """URL with all hosts."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres:{PASSWORD}@{hosts}/postgres"

    def spawn(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process as the unprivileged user."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        with (self.folder / f"{log}.log").open("ab") as output:
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                **self._user,
            )  # fmt: skip

    def start(self) -> None:
        """Start everything, and wait until all standbys follow, one of them synchronously."""
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._etcd = self.spawn(
            "etcd", "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        wait_for("etcd", lambda: _get(f"{client}/health"))
        for node in self.nodes:
            node.config.write_text(json.dumps(self._config(node)))
            node.start()
            wait_for(f"start of {node.name}", lambda node=node: node.ask("SELECT 1"))  # type: ignore[misc]
        self.wait_until_whole()

    def stop(self) -> None:
        """Kill everything."""
        for node in self.nodes:
            node.signal(signal.SIGKILL)
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()

    def primary(self) -> Node:
        """Return the node that accepts writes."""
        return next(node for node in self.nodes if self._role(node) == "primary")

    def wait_until_whole(self) -> None:
        """Wait until all nodes run, and all standbys follow, one of them synchronously."""
        wait_for("a whole cluster", self._is_whole)

    def fail(self, kind: str) -> tuple[float, float]:
        """Let the primary fail; return when it did, and when another accepted writes, on the monotonic clock."""
        failed = self._failed = self.primary()
        self._kind = kind
        others = [node for node in self.nodes if node is not failed]
        if kind == "by hand":
            self._control("pause", "--wait")
        probes = [Probe(node) for node in others]
        began = time.monotonic()
        match kind:
            case "switchover":
                self._control("switchover", "--force", "--candidate", self._synchronous().name)
            case "freeze":
                failed.signal(signal.SIGSTOP)
            case _:
                chosen = self._synchronous()
                began = time.monotonic()
                failed.signal(signal.SIGKILL)
                if kind == "by hand":
                    self._run(str((postgres_folder() or Path()) / "pg_ctl"), "promote", "--pgdata", str(chosen.data))
        wait_for("a new primary", lambda: any(probe.first for probe in probes))
        for probe in probes:
            probe.stop()
        return began, min(probe.first for probe in probes if probe.first is not None)

    def bring_back(self) -> None:
        """Bring the node that has failed back, as a standby."""
        if self._failed is None:
            return
        match self._kind:
            case "freeze":
                self._failed.signal(signal.SIGKILL)  # as a watchdog resets a machine; Patroni may not bear to go on
                self._failed.start()
            case "kill":
                self._failed.start()
            case "by hand":
                self._control("resume", "--wait")
                shutil.rmtree(self._failed.data)  # Patroni rewinds only after promotions of its own: copy the primary
                self._failed.start()
        wait_for("the failed node as a standby", lambda: self._role(self._failed) == "standby")
        self._failed = None
        self.wait_until_whole()

    def logs(self) -> str:
        """Return the ends of the logs."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in self.folder.glob("*.log"))

    def _role(self, node: Node | None) -> str | None:
        try:
            return None if node is None else "standby" if node.ask("SELECT pg_is_in_recovery()") else "primary"
        except psycopg.Error:
            return None

    def _members(self) -> list[dict[str, Any]]:
        members: list[dict[str, Any]] = _get(f"http://127.0.0.1:{self.primary().rest}/cluster")["members"]
        return members

    def _is_whole(self) -> bool:
        roles = [member["role"] for member in self._members()]
        query = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        synchronous = f"{query} AND sync_state IN ('sync', 'quorum')"
        return (
            roles.count("sync_standby") == 1
            and self.primary().ask(query) == len(self.nodes) - 1
            and self.primary().ask(synchronous) == 1
        )

    def _synchronous(self) -> Node:
        (name,) = [member["name"] for member in self._members() if member["role"] == "sync_standby"]
        return next(node for node in self.nodes if node.name == name)

    def _control(self, *command: str) -> None:
        running = next(node for node in self.nodes if node.patroni is not None and node.patroni.poll() is None)
        name, *options = command
        self._run("patronictl", "-c", str(running.config), name, *options, "trial")

    def _run(self, *command: str) -> None:
        process = self.spawn("commands", *command)
        if process.wait(120):
            raise RuntimeError(f"{command[0]} failed:\n{(self.folder / 'commands.log').read_text()[-2000:]}")

    def _config(self, node: Node) -> dict[str, Any]:
        users = {
            "superuser": {"username": "postgres", "password": PASSWORD},
            "replication": {"username": "replicator", "password": PASSWORD},
        }
        return {
            "scope": "trial",
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.rest}", "connect_address": f"127.0.0.1:{node.rest}"},
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {
                "dcs": {
                    "ttl": self._ttl,
                    "loop_wait": 2,
                    "retry_timeout": max(3, self._ttl // 2 - 1),
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.data),
                "bin_dir": str(postgres_folder()),
                "pgpass": str(self.folder / f"{node.name}.pgpass"),
                "authentication": users,
                "basebackup": [{"checkpoint": "fast"}],
                "parameters": {"unix_socket_directories": str(self.folder), "max_connections": "200"},
                "pg_hba": [
                    "local all all trust",
                    "host replication replicator 127.0.0.1/32 scram-sha-256",
                    "host all all 127.0.0.1/32 scram-sha-256",
                ],
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }


def _get(url: str) -> Any:
    with urlopen(url, timeout=2) as response:
        return json.load(response)
