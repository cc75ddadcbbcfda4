"""Servers for the load generator: a raw ASGI application that echoes, and Ojster."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil

RAW = """
import sys, uvicorn
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = (await receive())["body"]
    headers = [(b"content-type", b"application/openjobspec+json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False, lifespan="off")
"""


@dataclass
class Server:
    """A server in its own process."""

    port: int
    process: subprocess.Popen[bytes]

    def load(self, scenario: str, connections: int, seconds: float) -> dict[str, Any]:
        """Run the load generator against the server in another process; return its figures."""
        command = [sys.executable, "-m", "benchmarks.load", str(self.port), scenario, str(connections), str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    @property
    def processor_seconds(self) -> float:
        """Processor time of the server and the processes that it has started, in seconds."""
        own = psutil.Process(self.process.pid)
        return float(sum(sum(one.cpu_times()[:2]) for one in (own, *own.children(recursive=True))))

    @property
    def megabytes(self) -> float:
        """Resident memory of the server, in MiB."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20


@contextlib.contextmanager
def raw() -> Iterator[Server]:
    """Run a raw ASGI application that echoes its request, on the installed uvicorn."""
    with _serving([sys.executable, "-c", RAW, "{port}"]) as server:
        yield server


@contextlib.contextmanager
def ojster(database: str, processes: int = 1) -> Iterator[Server]:
    """Run an Ojster server on a database, with its tables migrated."""
    command = [sys.executable, "-m", "ojster", "serve", "--database", database, "--migrate", "--port", "{port}"]
    command += ["--processes", str(processes)] if processes > 1 else []
    with _serving([*command, "--log-level", "warning"]) as server:
        # The port is open before the first process answers.
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/ojs/v1/health", timeout=30) as answer:
            answer.read()
        yield server


@contextlib.contextmanager
def _serving(command: list[str]) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [part.format(port=port) if part == "{port}" else part for part in command], env=os.environ
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"the server on port {port} exited or did not start within 30 s")
            time.sleep(0.02)
        yield Server(port, process)
    finally:
        process.terminate()
        process.wait()
