"""A load generator in one process: keep-alive connections that each send a prepared request and wait for its response.

It parses as little of each response as possible, to leave the CPU to the measured server.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, cast

JOB = (
    b'{"type":"email.send","args":["user@example.com","welcome",{"locale":"en"}],'
    b'"meta":{"trace_id":"trace_abc123def456","source":"signup-service"},'
    b'"options":{"queue":"default","priority":0,"timeout_ms":30000,"retry":{"max_attempts":5},"tags":["onboarding"]}}'
)


def post(path: str, body: bytes) -> bytes:
    """Return the bytes of a POST request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/openjobspec+json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Connection(asyncio.Protocol):
    """One connection. ``next`` receives the body of each response (first ``None``) and returns the next request."""

    def __init__(self, next: Callable[[bytes | None], bytes], bad: list[bytes]) -> None:
        self._next = next
        self._bad = bad
        self._buffer = b""
        self._sent_at = 0.0
        self.latencies: list[float] = []
        self.answers = 0
        self.closed = asyncio.get_running_loop().create_future()
        self.stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._send(None)

    def data_received(self, data: bytes) -> None:
        """Record a response and send the next request, or close the connection when stopping."""
        buffer = self._buffer + data if self._buffer else data
        head = buffer.find(b"\r\n\r\n")
        if head < 0:
            self._buffer = buffer
            return
        at = buffer.find(b"content-length: ")
        size = int(buffer[at + 16 : buffer.find(b"\r", at)])
        if len(buffer) < head + 4 + size:
            self._buffer = buffer
            return
        self._buffer = b""
        if buffer[9:10] != b"2":
            self._bad.append(buffer[:400])
        self.latencies.append(time.perf_counter() - self._sent_at)
        self.answers += 1
        if self.stopping:
            self._transport.close()
            return
        self._send(buffer[head + 4 :])

    def connection_lost(self, error: Exception | None) -> None:
        """Resolve ``closed``."""
        if not self.closed.done():
            self.closed.set_result(None)

    def _send(self, answer: bytes | None) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._next(answer))


def echo(path: str) -> Callable[[], Callable[[bytes | None], bytes]]:
    """Send the same request repeatedly."""
    request = post(path, JOB)
    return lambda: lambda answer: request


def batches(size: int) -> Callable[[], Callable[[bytes | None], bytes]]:
    """Enqueue ``size`` jobs per request."""
    request = post("/ojs/v1/jobs/batch", b'{"jobs":[' + b",".join([JOB] * size) + b"]}")
    return lambda: lambda answer: request


def whole_jobs(size: int) -> Callable[[], Callable[[bytes | None], bytes]]:
    """Enqueue, fetch and acknowledge ``size`` jobs, in three calls."""
    if size == 1:
        push = post("/ojs/v1/jobs", JOB)
    else:
        push = post("/ojs/v1/jobs/batch", b'{"jobs":[' + b",".join([JOB] * size) + b"]}")
    fetch = post("/ojs/v1/workers/fetch", json.dumps({"queues": ["default"], "count": size, "worker_id": "w"}).encode())

    def make() -> Callable[[bytes | None], bytes]:
        step = -1

        def next(answer: bytes | None) -> bytes:
            nonlocal step
            step = (step + 1) % 3
            if step == 0:
                return push
            if step == 1:
                return fetch
            assert answer is not None
            ids = [part[:36].decode() for part in answer.split(b'"id":"')[1:]]
            if not ids:  # other connections took the jobs; fetch again
                step = 1
                return fetch
            if size == 1:
                return post("/ojs/v1/workers/ack", b'{"job_id":"%b","result":{"ok":true}}' % ids[0].encode())
            acks = [{"job_id": id, "result": {"ok": True}} for id in ids]
            return post("/ojs/v1/workers/ack/batch", json.dumps({"acks": acks}).encode())

        return next

    return make


SCENARIOS: dict[str, Callable[[], Callable[[], Callable[[bytes | None], bytes]]]] = {
    "echo": lambda: echo("/"),
    "enqueue": lambda: echo("/ojs/v1/jobs"),
    "batch100": lambda: batches(100),
    "whole1": lambda: whole_jobs(1),
    "whole100": lambda: whole_jobs(100),
}


async def run(port: int, scenario: str, connections: int, seconds: float) -> dict[str, Any]:
    """Load the server for ``seconds``; return the responses per second and their p50 and p99 latency, in seconds."""
    loop = asyncio.get_running_loop()
    make = SCENARIOS[scenario]()
    bad: list[bytes] = []
    protocols: list[Connection] = []
    for _ in range(connections):
        _, protocol = await loop.create_connection(lambda: Connection(make(), bad), "127.0.0.1", port)
        protocols.append(protocol)
    await asyncio.sleep(min(1.0, seconds / 3))
    before, started = sum(one.answers for one in protocols), time.perf_counter()
    for one in protocols:
        one.latencies.clear()
    await asyncio.sleep(seconds)
    answers, elapsed = sum(one.answers for one in protocols) - before, time.perf_counter() - started
    latencies = sorted(latency for one in protocols for latency in one.latencies)
    for one in protocols:
        one.stopping = True
    await asyncio.wait_for(asyncio.gather(*(one.closed for one in protocols)), 30)
    if bad:
        raise RuntimeError(f"{len(bad)} error responses, such as {bad[0]!r}")
    return {
        "rate": answers / elapsed,
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[int(len(latencies) * 0.99)],
    }


if __name__ == "__main__":
    import uvloop

    port, scenario, connections, seconds = sys.argv[1:]
    print(json.dumps(uvloop.run(run(int(port), scenario, int(connections), float(seconds)))))
