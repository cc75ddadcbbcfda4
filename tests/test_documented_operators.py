"""The programs of the page for operators run, on a database and on a server, and do what the page says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ojster import App, Conflict, Worker, chain
from ojster.client.interface import Client
from ojster.client.plain_client import PlainCalls, PlainClient
from ojster.core.calls import Calls
from ojster.jobs.filter_walk import JobFilter
from ojster.operators import Action, Limits, Rate
from tests import forked
from tests.postgres import free_port
from tests.test_documented_snippets import Page, folder
from tests.waiting import PATIENCE, answers, until

__all__ = ["folder"]

DATABASE = "sqlite:///jobs.db"


def fill() -> None:
    """Make failed jobs, a failed workflow and a cron job in the database of the page."""
    app = App(DATABASE)

    class SmtpError(Exception):
        pass

    @app.job("report.daily", queue="mail", retry=1)
    def report() -> None:
        raise SmtpError("no route")

    app.cron("0 3 * * *", name="nightly")(report)
    for _ in range(3):
        report.enqueue()
    app.start(chain(app.job("order.pay", queue="orders", retry=1)(report.function).s()), name="order")

    async def work() -> None:
        async with app:
            await Worker(app, queues=["mail", "orders"]).run(until_empty=True)

    asyncio.run(work())


@pytest.fixture(params=["database", "server"])
def application(request: pytest.FixtureRequest, folder: Path) -> Iterator[App]:
    fill()
    if request.param == "database":
        yield App(DATABASE)
        return
    port = free_port()
    command = [sys.executable, "-m", "ojster", "serve", "--database", DATABASE, "--port", str(port)]
    process = forked.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    until(lambda: answers(f"http://127.0.0.1:{port}/ojs/v1/health"))
    yield App(f"http://127.0.0.1:{port}")
    process.terminate()
    process.wait(PATIENCE)


def test_the_programs_of_the_page_do_what_it_says(application: App, capsys: pytest.CaptureFixture[str]) -> None:
    page = Page("operators.md")
    page.run("from datetime import UTC").app.close()
    ops = application.plain_client()
    page.names |= {"app": application, "ops": ops}
    page.run("page = ops.jobs.select")
    assert "3 jobs have failed" in capsys.readouterr().out
    assert [
        ops.jobs.select(JobFilter(queue="mail", states=(state,))).total for state in ("cancelled", "discarded")
    ] == [1, 2]
    page.run("for group in ops.insight")
    assert capsys.readouterr().out == "report.daily SmtpError no route 2 0\n2\n"
    page.run("chosen = JobFilter")
    assert capsys.readouterr().out.split() == ["2", "2"]
    assert ops.jobs.select(JobFilter(queue="mail", states=("available",))).total == 2
    page.run("for queue in ops.queues")
    assert "mail 2" in capsys.readouterr().out
    (mail,) = [queue for queue in ops.queues.all() if queue.name == "mail"]
    assert (mail.paused_at, mail.limits) == (None, Limits(5, Rate(100, 60_000_000)))
    page.run("for cron in ops.schedules")
    assert "nightly 0 3 * * *" in capsys.readouterr().out
    assert (ops.schedules.find("nightly").enabled, ops.jobs.select(JobFilter(cron_name="nightly")).total) == (False, 1)
    page.run("for run in ops.workflows")
    assert "\n1\n" in capsys.readouterr().out
    page.run("for worker in ops.fleet")
    assert ops.maintenance.mode() is None
    application.close()
    page.all_have_run()


def test_a_refused_call_raises_the_error_of_the_call(application: App) -> None:
    ops = application.plain_client()
    ended = ops.jobs.select(JobFilter(states=("discarded",))).jobs[0]
    with pytest.raises(Conflict):
        ops.jobs.cancel(ended.id)
    assert ops.bulk.sweep(Action.DELETE, JobFilter(queue="mail"), dry_run=True).matched == 3
    application.close()


def test_a_plain_call_inside_an_event_loop_warns() -> None:
    async def call(app: App) -> None:
        with pytest.warns(RuntimeWarning, match="event loop"):
            app.plain_client().queues.all()

    with App("sqlite:///:memory:") as app:
        asyncio.run(call(app))


PLAIN: dict[str, Any] = vars(PlainClient(App("sqlite:///:memory:")))

FOR_PROGRAMS: dict[str, set[str]] = {
    "jobs": {"adjust", "add_to_log", "find_checkpoint", "purge_history"},
    "fleet": {"leave"},
    "workflows": {"activate", "add_dependencies", "change_properties", "level", "properties", "resume", "review_step"},
    "insight": {"configuration", "facets"},
}
"""Declared calls that handlers, handles and the dashboard make."""


@pytest.mark.parametrize("capability", PLAIN)
def test_each_call_of_an_operator_is_there(capability: str) -> None:
    plain = PLAIN[capability]
    assert isinstance(plain, PlainCalls)
    client: Any = getattr(Client, capability).fget.__annotations__["return"]
    calls = getattr(sys.modules[Client.__module__], client)
    if issubclass(calls, Calls):
        declared = {name for name, member in vars(calls).items() if hasattr(member, "__wrapped__")}
        missing = declared - FOR_PROGRAMS.get(capability, set()) - set(dir(plain))
        assert missing == set()
