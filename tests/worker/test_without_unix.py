"""Clients and workers of a server start where Python has what it has on Windows, and what is missing is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.run import serving
from tests.waiting import PATIENCE

PREAMBLE = """
import asyncio, asyncio.subprocess, multiprocessing, select, signal, socket, subprocess, sys, tempfile, uuid
import concurrent.futures, ctypes, getpass, logging.config, shutil, ssl, zoneinfo
import aiohttp, apsw, click.testing, httpx, msgspec, rich.console, rich.progress

MISSING = ("fcntl", "resource", "pwd", "grp", "termios", "uvloop", "syslog")


class Refused:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


unix, pair = socket.AF_UNIX, socket.socketpair
socket.socketpair = lambda *_: pair(unix)  # Windows makes one of TCP sockets
for name in MISSING:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Refused())
for module, names in (
    (__import__("os"), ("fork", "killpg", "geteuid", "getuid", "pwrite", "pread", "getloadavg", "register_at_fork")),
    (signal, ("SIGTSTP", "SIGCONT", "SIGKILL", "pthread_sigmask")),
    (socket, ("AF_UNIX",)),
    (select, ("poll",)),
):
    for name in names:
        delattr(module, name)


def add_signal_handler(*_):
    raise NotImplementedError


asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = add_signal_handler
sys.modules["msvcrt"] = type(sys)("msvcrt")
sys.modules["msvcrt"].LK_NBLCK = 2
sys.modules["msvcrt"].locking = lambda file, mode, size: None
sys.platform = "win32"
"""

APP = """
from ojster import App

app = App()


@app.job("add")
def add(a: int, b: int) -> int:
    return a + b


@app.job("apart", process=True)
def apart() -> None: ...
"""


def run(folder: Path, code: str, url: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(APP)
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + code],
        cwd=folder,
        env=os.environ | {"OJSTER_DATABASE_URL": url, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('server')}/jobs.db") as url:
        yield url.removesuffix("/ojs/v1")


def test_a_client_and_a_worker_of_a_server_work(tmp_path: Path, server: str) -> None:
    done = run(
        tmp_path,
        """
import mine
handle = mine.add.enqueue(1, 2)
from ojster.cli.main import _run
assert _run(["worker", "mine:app", "--until-empty"], "ojster") == 0
print(handle.result(5))
assert _run(["jobs", "list"], "ojster") == 0
""",
        server,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3\n")


def test_a_handler_that_wants_a_child_process_fails_with_the_reason(tmp_path: Path, server: str) -> None:
    code = """
import mine
handle = mine.apart.enqueue()
from ojster.cli.main import _run
assert _run(["worker", "mine:app", "--until-empty"], "ojster") == 0
print(handle.refresh().job.error["message"])
"""
    done = run(tmp_path, code, server)
    assert (
        done.stdout == "Child processes need system calls that Windows lacks. Run the handler in a thread, or in WSL.\n"
    )


@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "postgresql://127.0.0.1:1/jobs"])
def test_a_database_is_refused_with_what_to_use_instead(tmp_path: Path, url: str) -> None:
    done = run(tmp_path, "import mine\nmine.add.enqueue(1, 2)", url)
    assert "cannot be opened on Windows" in done.stderr
    assert "Use the URL of a server" in done.stderr


def test_jobs_in_memory_work(tmp_path: Path) -> None:
    program = Path(__file__).parent.parent / "in_memory.py"
    done = run(tmp_path, program.read_text(), "sqlite:///:memory:")
    assert done.stdout == "3 12\n", done.stderr


def test_several_processes_are_refused(tmp_path: Path, server: str) -> None:
    code = """
from ojster.cli.main import main
main(["worker", "mine:app", "--processes", "2"])
"""
    done = run(tmp_path, code, server)
    assert (done.returncode, "signals that Windows does not have" in done.stderr) == (2, True)
