"""The tools for assistants: what they show, what they may change, and that they speak the protocol."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ojster import App, Retry
from ojster.cli.mcp import LONGEST_TEXT, assistant

if TYPE_CHECKING:
    from mcp import Client

pytestmark = pytest.mark.anyio


def connected(server: Any) -> Client:
    from mcp import Client  # its import takes a second of each test process

    return Client(server)


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    text = getattr(answer.content[0], "text")  # noqa: B009  (there are other kinds of content)
    return f"error: {text}" if answer.is_error else json.loads(text)


async def test_an_assistant_sees_jobs_and_why_they_wait() -> None:
    async with App("sqlite:///:memory:") as app:

        @app.job("mail.send", retry=Retry(max_attempts=1, dead_letter=True))
        async def send(text: str) -> None: ...

        handle = await send.aenqueue("x" * 5_000)
        async with connected(assistant(app, changes=False)) as client:
            (job,) = (await ask(client, "list_jobs", state="available"))["jobs"]
            assert (job["id"], job["type"], job["state"]) == (handle.id, "mail.send", "available")
            assert len((await ask(client, "show_job", job_id=handle.id))["args"][0]) < LONGEST_TEXT + 50
            assert "no worker" in (await ask(client, "explain_job", job_id=handle.id))["reasons"][0]["message"]
            assert (await ask(client, "unrunnable_jobs"))[0]["jobs"] == 1
            assert "NOT_FOUND" in (await ask(client, "show_job", job_id="none")).upper()
            assert "error" in await ask(client, "list_jobs", state="broken")


async def test_only_with_leave_may_it_change_something() -> None:
    async with App("sqlite:///:memory:") as app:

        @app.job("mail.send")
        async def send(text: str) -> None: ...

        handle = await send.aenqueue("x")
        async with connected(assistant(app, changes=False)) as client:
            tools = (await client.list_tools()).tools
            assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
            assert "error" in await ask(client, "cancel_job", job_id=handle.id)
        async with connected(assistant(app, changes=True)) as client:
            await ask(client, "cancel_job", job_id=handle.id)
            await ask(client, "pause_queue", name="default")
            assert (await ask(client, "list_queues"))[0]["paused_at"]
        assert (await app.client().jobs.find(handle.id)).state == "cancelled"


async def test_the_command_speaks_the_protocol(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with App(url) as app:

        @app.job("mail.send")
        async def send(text: str) -> None: ...

        await send.aenqueue("x")
    from mcp import StdioServerParameters

    command = StdioServerParameters(command=sys.executable, args=["-m", "ojster", "mcp", "--url", url])
    async with connected(command) as client:
        assert (await ask(client, "list_jobs"))["total"] == 1
