"""A server under test: a process of its own, whose log, memory and processor time are watched."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import httpx
import psutil

from tests.postgres import free_port

START_SECONDS: Final = 30
_FRAME: Final = re.compile(r'File "[^"]*/(ojster/[^"]+)", line (\d+)')


class Server:
    """A running ``ojster serve``.

    Parameters
    ----------
    database:
        URL of its database.
    folder:
        Where its log is.
    """

    def __init__(self, database: str, folder: Path, *, guarded: bool) -> None:
        self.database = database
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self._log = folder / "server.log"
        self._seen = 0
        command = [sys.executable, "-m", "ojster", "serve", "--database", database, "--port", str(self.port)]
        command += ["--migrate", "--auth", "required" if guarded else "off", "--log-level", "warning"]
        command += ["--files", str(folder / "files")]
        self._process = subprocess.Popen(command, stdout=self._log.open("wb"), stderr=subprocess.STDOUT)
        self._measured = psutil.Process(self._process.pid)
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.is_alive:
            try:
                httpx.get(f"{self.base}/health").raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(0.1)
        raise RuntimeError(f"The server does not start:\n{self._log.read_text()}")

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def memory(self) -> int:
        """Size of the process, in bytes."""
        return int(self._measured.memory_info().rss)

    @property
    def spent(self) -> float:
        """Time that the processor has spent on it, in seconds."""
        times = self._measured.cpu_times()
        return float(times.user + times.system)

    def news(self) -> str:
        """Return what was logged since the last call."""
        text = self._log.read_text(errors="replace")
        news, self._seen = text[self._seen :], len(text)
        return news

    def stop(self) -> None:
        """Stop the process, and wait until it has ended."""
        self._process.terminate()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def token(self, name: str, role: str, tenant: str | None = None) -> str:
        """Create a token in the database, and return it."""
        command = [sys.executable, "-m", "ojster", "tokens", "create", name, "--role", role, "--json"]
        command += ["--url", self.database, *([] if tenant is None else ["--tenant", tenant])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"ojster_[0-9a-f]+_[A-Za-z0-9_\-]+", done.stdout)
        assert found is not None, done.stdout
        return found[0]


def place_in(log: str) -> str | None:
    """Return the last line of the product in a traceback in a log, with the error; ``None`` if there is none."""
    frames = _FRAME.findall(log)
    if not frames or "Traceback" not in log:
        return None
    errors = [line for line in log.splitlines() if re.match(r"[\w.]+(Error|Exception|Violation\w*|\w+): ", line)]
    return f"{frames[-1][0]}:{frames[-1][1]} {errors[-1][:160] if errors else ''}".strip()
