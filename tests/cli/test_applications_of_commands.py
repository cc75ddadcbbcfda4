"""Commands with ``--app`` ask as the application would: its database, its tenant, its codecs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ojster import App, Gzip, chain
from ojster.cli import options
from ojster.cli.main import cli
from ojster.jobs.encoding import is_encoded
from ojster.jobs.filter_walk import JobFilter
from tests.options.test_options_of_commands import COMMANDS

SHOP = """
from ojster import App, Gzip
app = App("{url}", tenant="acme", codecs=[Gzip()])
"""

ID = "01900000-0000-7000-8000-000000000001"

ASKS: dict[str, list[str]] = {
    "flows send": [ID, "paid"],
    "flows broadcast": ["payment", "42"],
    "flows update": [ID, "put"],
    "flows published": [ID],
    "flows stream": [ID, "tokens"],
    "push": ["mail"],
    "workflows fork": [ID],
    "cron add": ["nightly", "@daily", "mail"],
    "cron prune": ["--yes"],
}
"""Commands that ask for something as an application, each with the rest of its command line."""

OTHERWISE = {
    "serve": "its orchestrators; a server has all tenants",
    "run": "runs a worker of the application",
    "dev": "runs a worker of the application",
    "worker": "is a worker of the application",
    "flows check": "reads its functions",
}
"""What the others do with the application."""


class Asked(Exception):
    """A command asks."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    url = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "encoded_tenant", None)  # that of another test
    del sys.modules["encoded_tenant"]
    monkeypatch.delenv("OJSTER_DATABASE_URL", raising=False)
    (tmp_path / "encoded_tenant.py").write_text(SHOP.format(url=url))
    return App(url, tenant="acme", codecs=[Gzip()])


def line_of(command: str) -> list[str]:
    app = ["encoded_tenant:app"]
    is_argument = any(isinstance(known, click.Argument) and known.name == "app" for known in COMMANDS[command].params)
    return [*command.split(), *(app if is_argument else ["--app", *app]), *ASKS[command]]


def test_every_command_with_an_application_is_here() -> None:
    known = {name for name, command in COMMANDS.items() if any(known.name == "app" for known in command.params)}
    assert known == ASKS.keys() | OTHERWISE.keys()


@pytest.mark.parametrize("command", ASKS)
def test_a_command_asks_as_the_tenant_of_the_application(
    command: str, shop: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str | None, str]] = []

    class Recorded(App):
        def client(self) -> Any:
            asked.append((self.tenant, self.url))
            raise Asked

    with shop:
        shop.client()  # makes the file
    monkeypatch.setattr(options, "App", Recorded)
    url = f"sqlite:///{tmp_path}/shop.db"
    done = CliRunner().invoke(cli, [*line_of(command), "--url", url])
    assert isinstance(done.exception, Asked), done.output
    assert asked == [("acme", url)]
    if command != "cron prune":
        CliRunner().invoke(cli, line_of(command))
        assert asked[1:] == asked[:1], "the database of the application is used without --url"


@pytest.mark.anyio
async def test_arguments_are_encoded_as_those_of_the_application(shop: App) -> None:
    @shop.job("mail")
    def mail(to: str) -> None: ...

    async with shop:
        ended = await shop.astart(chain(mail.s("a")))
        await ended.acancel()
        for words in (
            ["push", "mail", "Ada"],
            ["cron", "add", "nightly", "@daily", "mail", "Ada"],
            ["cron", "add", "flow", "@daily", "--flow", "mail", "--args", '["Ada"]'],
            ["workflows", "fork", ended.id, "--from-step", "0", "--args", '["Ada"]'],
        ):
            done = await asyncio.to_thread(CliRunner().invoke, cli, [*words, "--app", "encoded_tenant:app"])
            assert done.exit_code == 0, done.output
        client = shop.client()
        for name in ("nightly", "flow"):
            await client.schedules.trigger(name)
        jobs = (await client.jobs.select(JobFilter(states=("available",)))).jobs
        assert len(jobs) == 4
        for job in jobs:
            assert is_encoded(job.args[0])
            assert shop.codecs.decode(job.args, job.meta) == ["Ada"]


@pytest.mark.parametrize("other", [["--definition", "backup"], ["--workflow", "-"]])
def test_codecs_without_arguments_are_refused(shop: App, other: list[str]) -> None:
    done = CliRunner().invoke(cli, ["cron", "add", "nightly", "@daily", *other, "--app", "encoded_tenant:app"])
    assert done.exit_code == 2
    assert "encode arguments of TYPE or --flow alone" in done.output


@pytest.mark.parametrize("command", sorted({*ASKS, *OTHERWISE} - {"cron prune", "flows check"}))
def test_an_application_that_keeps_its_jobs_in_memory_is_refused(
    command: str, shop: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OJSTER_EAGER", "1")
    monkeypatch.setattr(subprocess, "Popen", Asked)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", Asked)
    monkeypatch.setitem(ASKS, command, ASKS.get(command, []))
    done = CliRunner().invoke(cli, line_of(command))
    assert done.exit_code == 2, done.output
    assert "runs its jobs itself" in done.output
