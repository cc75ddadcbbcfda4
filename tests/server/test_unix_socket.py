"""A server that listens at a path: its clients, who may call, and sockets that were left behind."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from ojster import App, InvalidRequest
from ojster.core.errors import BackendUnavailable, Conflict
from ojster.server.unix_socket import listen_at
from tests import forked
from tests.waiting import PATIENCE


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")  # short: the path of a socket has at most 107 bytes


@pytest.fixture
def serving(folder: Path) -> Iterator[forked.Popen]:
    path = folder / "o.sock"
    command = [sys.executable, "-m", "ojster", "serve", "--socket", str(path), "--database", f"sqlite:///{folder}/j.db"]
    server = forked.Popen(command, stderr=subprocess.DEVNULL)
    while not path.exists():
        assert server.poll() is None
        time.sleep(0.02)
    yield server
    server.kill()
    server.wait()


def test_clients_call_a_server_at_a_path(serving: forked.Popen, folder: Path) -> None:
    path = folder / "o.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with closing(App(f"unix://{path}")) as app:
        app.job("email.send")(print)
        assert app.handlers["email.send"].enqueue("ada@example.com").state == "available"
    shown = forked.run([sys.executable, "-m", "ojster", "jobs", "list", "--url", f"unix://{path}"])
    assert "email.send" in shown.stdout
    probe = forked.run([sys.executable, "-m", "ojster", "healthy", f"unix://{path}"])
    assert (probe.returncode, '"ready"' in probe.stdout) == (0, True), probe.stderr
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://anything.example") as client:
        assert client.get("/health").json()["status"] == "ok"
    with pytest.raises(Conflict, match="Another server listens"):
        listen_at(path)
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(PATIENCE) == 0
    assert not path.exists()


def test_the_socket_of_a_dead_server_is_replaced_and_other_files_are_not(folder: Path) -> None:
    path = folder / "left.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with listen_at(path), socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
    path.unlink()
    path.write_text("mine")
    with pytest.raises(Conflict, match="is not a socket"):
        listen_at(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["nowhere/o.sock", "x" * 200])
def test_a_path_that_cannot_be_used_is_named(folder: Path, name: str) -> None:
    with pytest.raises(BackendUnavailable, match="Cannot listen at"):
        listen_at(folder / name)


def test_a_url_without_a_path_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="unix:///"):
        App("unix://ojster.sock")
