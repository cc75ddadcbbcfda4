"""Pushed jobs survive the servers that have sent them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from ojster.client.client import HttpClient
from ojster.push.wire import PushConfigBody, PushEndpointBody
from tests import forked
from tests.conftest import request
from tests.postgres import free_port
from tests.push.functions import SECRET, Function, completed, running, until

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@pytest.fixture
async def function() -> AsyncIterator[Function]:
    async with running(Function()) as made:
        yield made


class Server:
    """A server in a process of its own."""

    def __init__(self, database: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = [sys.executable, "-m", "ojster", "serve", "--database", database, "--port", str(port)]
        self.process = forked.Popen([*command, "--migrate", "--trust-webhooks"], stderr=subprocess.DEVNULL)


@contextmanager
def serving(database: str) -> Iterator[Server]:
    server = Server(database)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


async def is_free(function: Function) -> bool:
    return function.busy == 0


async def test_a_job_runs_again_when_the_server_that_has_sent_it_is_killed(shared_url: str, function: Function) -> None:
    function.gate.clear()
    with serving(shared_url) as first:
        client = HttpClient(first.url, patience=30.0)
        config = PushConfigBody(signing_secret=SECRET, max_concurrency=1)
        await client.push.put("fn", PushEndpointBody(function.url, config=config))
        (pushed,) = await client.jobs.enqueue([request("a", visibility_timeout_ms=2_000)])

        async def came() -> bool:
            return len(function.seen) == 1

        await until(came)
        first.process.kill()
        first.process.wait()
        await client.close()
    function.gate.set()
    await until(lambda: is_free(function))
    function.answers = [completed(2)]
    with serving(shared_url) as second:
        client = HttpClient(second.url, patience=30.0)

        async def is_done() -> bool:
            return (await client.jobs.find(pushed.job.id)).state == "completed"

        await until(is_done)
        job = await client.jobs.find(pushed.job.id)
        assert (function.jobs, job.result, job.attempt) == ([job.id] * 2, b"2", 2)
        assert function.seen[0]["delivery_id"] != function.seen[1]["delivery_id"]
        await client.close()


async def test_the_limits_of_an_endpoint_hold_for_two_servers(shared_url: str, function: Function) -> None:
    function.gate.clear()
    with serving(shared_url) as first:
        one = HttpClient(first.url, patience=30.0)
        config = PushConfigBody(signing_secret=SECRET, max_concurrency=3)
        await one.push.put("fn", PushEndpointBody(function.url, config=config))
        with serving(shared_url) as second:
            two = HttpClient(second.url, patience=30.0)
            await two.push.all()
            pushed = await two.jobs.enqueue([request("a") for _ in range(30)])

            async def is_full() -> bool:
                return function.busy == 3

            await until(is_full)
            function.gate.set()

            async def all_done() -> bool:
                jobs = [await one.jobs.find(item.job.id) for item in pushed]
                return all(job.state == "completed" for job in jobs)

            await until(all_done)
            assert (function.busiest, len(function.seen)) == (3, 30)
            await two.close()
        await one.close()
