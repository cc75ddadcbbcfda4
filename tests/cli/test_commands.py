"""The command line: its output, its JSON, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import click
import psutil
import psycopg
import pytest
from click.testing import CliRunner
from rich.console import Console

from ojster import App
from ojster.cli import output
from ojster.cli.main import COMMANDS, cli, main
from ojster.core.ids import new_id
from ojster.fleet.workers import Heartbeat
from ojster.schedules.cron import Cron
from ojster.storage.migrations import scripts
from ojster.storage.postgres.shape import actual_shape, intended_shape
from ojster.storage.postgres.url import parse_postgres_url
from ojster.worker.registration import register
from tests import forked
from tests.postgres import free_port
from tests.waiting import PATIENCE, never_retry, until

PROCESSES = {"demo", "dev", "serve", "worker"}
"""Commands that need a process of their own: they handle signals and import the user's modules."""


class Ojster:
    """The ``ojster`` command with its own database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def __call__(self, *arguments: str, expect: int = 0) -> str:
        environment = {"OJSTER_DATABASE_URL": self.url, "PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        code, output, errors = self.run(arguments, environment)
        assert code == expect, output + errors
        assert "Traceback" not in errors
        return output if expect == 0 else output + errors

    def run(self, arguments: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
        """Run a command, in a process of its own if it needs one; return its exit code, output and errors."""
        run = self.run_process if PROCESSES & set(arguments[:1]) else self.run_here
        return run(arguments, environment)

    def run_process(self, arguments: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
        """Run a command in a process of its own."""
        command = [sys.executable, "-m", "ojster", *arguments]
        done = forked.run(command, cwd=self.folder, env=environment)
        return done.returncode, done.stdout, done.stderr

    def run_here(self, arguments: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
        """Run a command as ``run_process`` does, but in this process: a start of Python costs half a second."""
        output, errors = TextIOWrapper(BytesIO()), TextIOWrapper(BytesIO())
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
            for name in os.environ:
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["ojster", *arguments])
            patch.setattr(sys, "stdin", StringIO())
            with pytest.raises(SystemExit) as ended:
                main()
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read())
        return int(ended.value.code or 0), texts[0], texts[1]

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def ojster(tmp_path: Path, shared_url: str) -> Ojster:
    return Ojster(tmp_path, shared_url)


def test_every_command_has_help_with_examples(nowhere: Ojster) -> None:
    def look(command: click.Command, path: tuple[str, ...]) -> None:
        shown = CliRunner().invoke(cli, [*path, "--help"]).output
        assert ("Examples:" if path else "Exit codes:") in shown, f"ojster {' '.join(path)} --help"
        for name, one in command.commands.items() if isinstance(command, click.Group) else ():
            look(one, (*path, name))

    look(cli, ())
    assert nowhere("--version").startswith("ojster, version 0.")


def test_every_choice_is_typed_as_it_is_shown() -> None:
    """Members of enumerations would be typed by their names, such as FAILED, which no other place shows."""

    def look(command: click.Command, path: tuple[str, ...]) -> None:
        for parameter in command.params:
            if isinstance(parameter.type, click.Choice):
                assert all(type(choice) is str for choice in parameter.type.choices), (path, parameter.name)
        for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
            look(inner, (*path, name))

    look(cli, ())


def test_a_job_is_pushed_listed_shown_and_cancelled(ojster: Ojster) -> None:
    id = ojster("push", "email.send", "ada", '{"n": 1}', "5", "--queue", "mail", "--priority", "3").strip()
    shown = ojster.json("jobs", "show", id)
    assert (shown["args"], shown["queue"], shown["priority"]) == (["ada", {"n": 1}, 5], "mail", 3)
    assert "email.send" in ojster("jobs", "show", id)
    listed = ojster.json("jobs", "list", "--type", "email.*", "--state", "available")
    assert [job["id"] for job in listed["jobs"]] == [id]
    assert id in ojster("jobs", "list")
    assert ojster.json("jobs", "cancel", id)["previous_state"] == "available"
    pushed = ojster.json("push", "email.send", "--queue", "mail")
    assert (pushed["queue"], pushed["state"], pushed["attempt"]) == ("mail", "available", 0)


def test_selected_jobs_are_cancelled_and_deleted_together(ojster: Ojster) -> None:
    for type in ("a.x", "a.y", "b"):
        id = ojster("push", type).strip()
    assert "Select jobs" in ojster("jobs", "cancel", "--yes", expect=2)
    asked = ojster("jobs", "cancel", "--type", "a.*", expect=1)
    assert ("Cancel 2 jobs?" in asked, "In a script, use --yes" in asked) == (True, True)
    assert ojster.json("jobs", "cancel", "--type", "a.*", "-y") == {"matched": 2, "succeeded": 2, "failed": 0}
    assert "0 of 0" in ojster("jobs", "cancel", "--older-than", "PT1H", "--yes")
    assert "2 of 2 jobs are deleted." in ojster("jobs", "delete", "--state", "cancelled", "--queue", "default", "-y")
    assert "0 of 0" in ojster("jobs", "retry", "--error-type", "Smtp*", "--yes")
    assert [entry["event_type"] for entry in ojster.json("jobs", "history", id)] == ["job.created"]
    assert "created" in ojster("jobs", "history", id)


def test_exit_codes_tell_refusals_apart(ojster: Ojster) -> None:
    ojster("migrate")
    missing = new_id()
    assert missing in ojster("jobs", "show", missing, expect=3)
    id = ojster("push", "a").strip()
    ojster("jobs", "cancel", id)
    assert "cancelled" in ojster("jobs", "cancel", id, expect=4)
    ojster("push", "NOT A TYPE", expect=1)
    ojster("push", expect=2)
    ojster("jobs", "list", "--state", "asleep", expect=2)
    ojster("queues", "list", "--url", "redis://x", expect=1)
    ojster("jobs", "retry", ojster("push", "b").strip(), expect=1)


@pytest.fixture
def nowhere(tmp_path: Path) -> Ojster:
    """The command with the URL of a file that does not exist."""
    return Ojster(tmp_path, f"sqlite:///{tmp_path}/jobs.db")


def test_commands_do_not_create_a_missing_database(nowhere: Ojster) -> None:
    ojster = nowhere
    for command in ("jobs list", "queues list", "queues pause x", "cron list", "workers list", "dead-letter list"):
        assert "no database file" in ojster(*command.split(), expect=5)
    ojster("doctor", expect=1)
    assert not list(ojster.folder.iterdir())


def test_a_command_names_the_server_that_it_cannot_reach(nowhere: Ojster, monkeypatch: pytest.MonkeyPatch) -> None:
    never_retry(monkeypatch)
    said = " ".join(nowhere("jobs", "list", "--url", "http://127.0.0.1:1", expect=5).split())
    assert "http://127.0.0.1:1 cannot be reached" in said
    assert "ojster serve" in said


def test_errors_are_json_with_the_json_option(nowhere: Ojster) -> None:
    ojster = nowhere
    assert json.loads(ojster("jobs", "list", "--json", expect=5))["error"]["code"] == "backend_unavailable"


def test_square_brackets_are_no_markup(ojster: Ojster) -> None:
    ojster("push", "a.b")
    assert "[/foo]" in ojster("jobs", "show", "[/foo]", expect=3)
    assert "[fe80::1]" in ojster("queues", "list", "--url", "redis://[fe80::1]:5/x", expect=1)


def test_texts_do_not_steer_the_terminal(ojster: Ojster) -> None:
    """Neither in errors, nor in tables, nor in drawings."""
    hostile = "a\x1b]0;owned\x07b"
    assert "a\ufffd]0;owned" in ojster("jobs", "show", hostile, expect=3)
    (ojster.folder / "flow.json").write_text(
        json.dumps({"type": "chain", "name": hostile, "steps": [{"name": "s", "type": "t", "args": []}]})
    )
    id = ojster.json("workflows", "start", "flow.json")["id"]
    for command in (("list",), ("show", id), ("draw", id, "--svg")):
        shown = ojster("workflows", *command)
        assert "owned" in shown
        assert not {"\x1b", "\x07"} & set(shown)


def test_tables_fit_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first column stays whole; the widest of the others are cut."""
    rows = [("the-id-of-a-job-is-never-cut", "t" * 30, 7, None, "e" * 60)]
    output.print_table(("id", "type", "# runs", "zone", "error"), rows, "none")
    wide = capsys.readouterr().out
    assert wide.splitlines()[1] == f"{rows[0][0]}  {'t' * 30}       7        {'e' * 60}"
    monkeypatch.setattr(output, "console", Console(width=80, force_terminal=True, no_color=True))
    output.print_table(("id", "type", "# runs", "zone", "error"), rows, "none")
    _, line = click.unstyle(capsys.readouterr().out).splitlines()
    assert len(line) == 80
    assert line.startswith(f"{rows[0][0]}  ttt")
    assert line.endswith("e…")


def test_what_cannot_be_is_refused(ojster: Ojster) -> None:
    ojster("push", "a.b", "\udcff", expect=2)
    ojster("push", "a.b")
    assert "BAD Q" in ojster("queues", "pause", "BAD Q", expect=1)


def test_queues_are_listed_paused_and_resumed(ojster: Ojster) -> None:
    ojster("migrate")
    assert "no queues" in ojster("queues", "list")
    ojster("push", "a", "--queue", "q")
    assert ojster.json("queues", "pause", "q") == {"name": "q", "paused": True}
    (queue,) = ojster.json("queues", "list")["queues"]
    assert (queue["name"], queue["paused"], queue["counts"]["available"]) == ("q", True, 1)
    ojster("queues", "resume", "q")
    shown = ojster.json("queues", "show", "q")
    assert (shown["paused"], shown["configuration"]) == (False, {})
    ojster("queues", "set", "q", "--concurrency", "5", "--rate", "100/PT1M")
    assert ojster.json("queues", "show", "q")["configuration"]["concurrency"] == 5
    assert re.search(r"rate_limit +\{\"limit\":100,\"period\":\"PT1M\"\}", ojster("queues", "show", "q"))
    assert ojster.json("queues", "unserved") == {"queues": ["q"]}
    assert "q" in ojster("queues", "unserved")
    ojster("queues", "show", "none", expect=3)


def test_a_queue_is_configured_after_a_look_at_what_that_means(ojster: Ojster) -> None:
    ojster("push", "a", "--queue", "q")
    change = ("queues", "set", "q", "--concurrency", "2", "--rate", "100/PT1M", "--max-depth", "1")
    shown = ojster(*change, "--dry-run")
    assert "1 job waits now: pushes are refused until fewer than 1 do." in shown
    assert "up to 2 more may start" in shown
    (queue,) = ojster.json("queues", "waits")["queues"]
    assert (queue["limits"], queue["depth"], queue["max_depth"]) == ({}, 1, None)
    assert len(ojster.json(*change)["changes"]) == 5
    assert "is so already" in ojster(*change)
    table = ojster("queues", "waits")
    assert "1 of 1" in table
    assert "0 of 2" in table
    (gone,) = ojster.json("queues", "set", "q", "--rate", "none")["changes"]
    assert (gone["setting"], gone["after"]) == ("rate_limit", None)
    for wrong in (("--rate", "fast"), ("--concurrency", "many"), ("--when-full", "wait")):
        ojster("queues", "set", "q", *wrong, expect=2)


def test_jobs_and_the_history_of_a_workflow_are_printed_as_csv_and_lines_of_json(ojster: Ojster) -> None:
    ojster("push", "mail.send", "=1", "--queue", "q")
    step = '{"type": "chain", "name": "n", "steps": [{"id": "first", "type": "a", "args": []}]}'
    (ojster.folder / "n.json").write_text(step)
    id = ojster.json("workflows", "start", "n.json")["id"]
    header, row = ojster("jobs", "export", "--format", "csv", "--queue", "q", "--state", "available").splitlines()
    assert header.startswith("id,type,queue,state")
    assert '"[""=1""]"' in row
    (line,) = ojster("jobs", "export", "--type", "mail.*").splitlines()
    assert json.loads(line)["args"] == ["=1"]
    mail = ("--type", "mail.*", "--type", "sms.*", "--where", "args.0==1")
    assert ojster("jobs", "export", *mail, "--state", "active", "--state", "available") == f"{line}\n"
    for none in (("--error-type", "E"), ("--where", "args.0=2"), ("--tag", "vip"), ("--worker", "w")):
        assert ojster("jobs", "export", *none).strip() == ""
    header, row = ojster("workflows", "export", id[:13], "--format", "csv").splitlines()
    assert row.startswith("first,job,a,")
    assert json.loads(ojster("workflows", "export", id))["state"] == "active"


def test_workers_are_disabled_configured_and_enabled(ojster: Ojster) -> None:
    disabled = ojster.json("workers", "disable", "w", "--reason", "its disk is full")
    assert (disabled["enabled"], disabled["reason"]) == (False, "its disk is full")
    ojster("workers", "configure", "w", "--provide", "memory_mb=4096", "--lacks", "ssd", "--deny", "report.*")
    (rule,) = ojster.json("workers", "rules")["items"]
    assert (rule["provides"], rule["denied_types"]) == ({"memory_mb": "4096", "ssd": None}, ["report.*"])
    assert "memory_mb=4096 no ssd" in ojster("workers", "rules")
    assert ojster.json("workers", "enable", "w")["enabled"] is True
    assert "Give at least one of --provide" in ojster("workers", "configure", "w", expect=2)
    assert "is not a job type" in ojster("workers", "configure", "w", "--deny", "a b", expect=1)
    ojster("workers", "forget", "w")
    assert ojster.json("workers", "rules")["items"] == []


def test_collections_are_made_filled_and_looked_at(ojster: Ojster) -> None:
    ojster("collections", "create", "releases", "--description", "what we ship")
    ojster("collections", "add", "releases", "1.0", '{"file": "a"}', "--category", "app")
    ojster("collections", "add", "releases", "1.0", "again", expect=4)
    ojster("collections", "add", "releases", "1.0", "again", "--replace")
    (item,) = ojster.json("collections", "items", "releases")["items"]
    assert (item["name"], item["data"]) == ("1.0", "again")
    assert len(ojster.json("collections", "items", "releases", "--history")["items"]) == 2
    assert "what we ship" in ojster("collections", "list")
    assert "Give exactly one" in ojster("collections", "items", expect=2)
    ojster("collections", "remove", "releases", "1.0")
    assert "no items" in ojster("collections", "items", "releases", "--starts-with", "1")
    ojster("collections", "delete", "releases")
    ojster("collections", "items", "releases", expect=3)


def test_a_priority_is_adjusted(ojster: Ojster) -> None:
    id = ojster("push", "a", "--priority", "5").strip()
    assert json.loads(ojster("jobs", "prioritize", "--json", id, "--", "-10")) == {"id": id, "priority": -5}
    assert "The priority of" in ojster("jobs", "prioritize", id, "0")


def test_push_endpoints_are_made_listed_paused_and_deleted(ojster: Ojster) -> None:
    address = "https://203.0.113.1/run"
    options = ("--queue", "mail", "--type", "email.send", "--concurrency", "3", "--timeout", "1.5", "--rate", "9/PT1M")
    assert ojster("endpoints", "set", "fn", address, *options).startswith("whsec_")
    (shown,) = ojster.json("endpoints", "list")["endpoints"]
    assert (shown["endpoint"], shown["queues"], shown["job_types"]) == (address, ["mail"], ["email.send"])
    assert shown["config"] == {"max_concurrency": 3, "timeout_ms": 1500, "rate": {"limit": 9, "period": "PT1M"}}
    assert ojster.json("endpoints", "pause", "fn")["state"] == "paused"
    assert "paused" in ojster("endpoints", "list")
    assert ojster.json("endpoints", "resume", "fn")["state"] == "active"
    assert ojster("endpoints", "rotate-secret", "fn").startswith("whsec_")
    assert "LIMIT/PERIOD" in ojster("endpoints", "set", "fn", address, "--rate", "many", expect=2)
    ojster("endpoints", "delete", "fn")
    ojster("endpoints", "delete", "fn", expect=3)


def test_channels_are_made_listed_and_deleted(ojster: Ojster) -> None:
    ojster("channels", "email", "ops", "--from", "jobs@example.com", "--to", "ada@example.com", "--subject", "{event}")
    assert ojster("channels", "webhook", "chat", "https://203.0.113.1/hook").startswith("whsec_")
    shown = ojster.json("channels", "list")["channels"]
    assert [(one["name"], one["method"]) for one in shown] == [("chat", "webhook"), ("ops", "email")]
    assert "secret" not in shown[0]
    assert "not an e-mail" in ojster("channels", "email", "x", "--from", "a", "--to", "b@example.com", expect=1)
    ojster("channels", "delete", "chat")
    ojster("channels", "delete", "chat", expect=3)


def test_prune_counts_and_deletes_jobs_past_their_retention(ojster: Ojster) -> None:
    ids = [ojster("push", "a").strip() for _ in range(3)]
    for id in ids[:2]:
        ojster("jobs", "cancel", id)
    keep = ("--keep-cancelled", "PT0S")
    assert ojster.json("prune", "--dry-run") == {"pruned": {"jobs": 0, "workflows": 0, "files": 0}, "dry_run": True}
    assert "2 jobs" in ojster("prune", "--dry-run", *keep)
    assert "cancelled PT0S" in ojster("prune", *keep, expect=1)
    assert ojster.json("prune", "--yes", *keep)["pruned"] == {"jobs": 2, "workflows": 0, "files": 0}
    assert [job["id"] for job in ojster.json("jobs", "list")["jobs"]] == ids[2:]


def test_cron_jobs_are_added_switched_and_removed(ojster: Ojster) -> None:
    added = ojster.json("cron", "add", "c", "0 9 * * MON-FRI", "report.build", "42", "--timezone", "Europe/Berlin")
    assert (added["template"]["args"], added["enabled"]) == ([42], True)
    assert len(ojster.json("cron", "show", "c", "--next", "3")["next"]) == 3
    assert "report.build" in ojster("cron", "list")
    assert ojster.json("cron", "disable", "c")["next_run_at"] is None
    assert ojster.json("cron", "enable", "c")["next_run_at"]
    assert ojster.json("cron", "run", "c")["type"] == "report.build"
    assert "missed no run" in ojster("cron", "misses", "c")
    assert ojster.json("cron", "misses", "c") == {"misses": []}
    assert "no worker" in ojster("jobs", "explain", ojster.json("jobs", "list")["jobs"][0]["id"])
    ojster("cron", "remove", "c")
    assert ojster.json("cron", "list") == {"crons": []}
    assert "fields" in ojster("cron", "add", "c", "nonsense", "a", expect=1)


def test_a_cron_job_is_backfilled_for_a_time_that_has_passed(ojster: Ojster) -> None:
    ojster("cron", "add", "c", "0 * * * *", "report.build")
    span = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-10T00:00:00Z")
    foreseen = ojster.json("cron", "backfill", "c", *span, "--dry-run")["occurrences"]
    assert (len(foreseen), foreseen[0]) == (217, "2026-01-01T00:00:00.000000Z")
    assert "217 occurrences" in ojster("cron", "backfill", "c", *span, expect=1)
    assert ojster.json("jobs", "list")["jobs"] == []
    said = ojster("cron", "backfill", "c", *span, "--yes", "--concurrency", "2")
    assert "started for 217 occurrences" in said
    assert ojster.json("cron", "show", "c")["run_count"] == 217
    assert "no occurrences" in ojster("cron", "backfill", "c", "--from", "-PT1S", "--to", "-PT0S", "--yes")
    assert "is after" in ojster("cron", "backfill", "c", "--from", "-PT0S", "--to", "-PT9S", "--yes", expect=1)
    assert "RFC 3339" in ojster("cron", "backfill", "c", "--from", "yesterday", expect=2)


def test_cron_jobs_that_an_application_no_longer_declares_are_removed(ojster: Ojster) -> None:
    (ojster.folder / "wares.py").write_text(
        "from ojster import App, Flow\n"
        "app = App()\n"
        "@app.cron('@daily', name='kept')\n"
        "@app.job('report.build')\n"
        "def build() -> None: ...\n"
        "@app.flow('order.fulfil')\n"
        "async def fulfil(flow: Flow) -> None: ...\n"
    )
    for name, what in (
        ("kept", ("report.build",)),
        ("old", ("report.build",)),
        ("older", ("--flow", "order.fulfil")),
        ("other", ("somebody.elses",)),
    ):
        ojster("cron", "add", name, "@daily", *what)
    assert ojster.json("cron", "prune", "wares:app", "--dry-run") == {"cron_jobs": ["old", "older"], "dry_run": True}
    assert "Remove old, older?" in ojster("cron", "prune", "wares:app", expect=1)
    assert ojster.json("cron", "prune", "wares:app", "--yes")["cron_jobs"] == ["old", "older"]
    assert [cron["name"] for cron in ojster.json("cron", "list")["crons"]] == ["kept", "other"]
    assert "declares all" in ojster("cron", "prune", "wares:app", "--yes")


def test_cron_jobs_are_removed_where_the_application_has_its_jobs(ojster: Ojster) -> None:
    (ojster.folder / "elsewhere.py").write_text(
        "from ojster import App\n"
        "app = App('sqlite:///elsewhere.db')\n"
        "@app.job('report.build')\n"
        "def build() -> None: ...\n"
    )
    ojster("cron", "add", "old", "@daily", "report.build")
    assert "names sqlite:///elsewhere.db" in ojster("cron", "prune", "elsewhere:app", "--yes", expect=1)
    ojster("cron", "add", "there", "@daily", "report.build", "--url", "sqlite:///elsewhere.db")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(ojster.folder)}
    assert "there is removed" in ojster.run(("cron", "prune", "elsewhere:app", "--yes"), environment)[1]
    assert "old would be removed" in ojster("cron", "prune", "elsewhere:app", "--dry-run", "--url", ojster.url)


def test_a_tenants_cron_jobs_are_removed_by_its_application_alone(ojster: Ojster) -> None:
    (ojster.folder / "shops.py").write_text(
        "from ojster import App\n"
        "def declared(tenant: str | None) -> App:\n"
        "    app = App(tenant=tenant)\n"
        "    @app.cron('@daily', name='kept')\n"
        "    @app.job('report.build')\n"
        "    def build() -> None: ...\n"
        "    return app\n"
        "acme, nobody = declared('acme'), declared(None)\n"
    )
    for name in ("kept", "old"):
        ojster("cron", "add", name, "@daily", "report.build")
    with App(ojster.url, tenant="acme") as app:
        for name in ("kept", "older"):
            cron = Cron(name=name, expression="@daily", template=b'{"type":"report.build","args":[]}')
            asyncio.run(app.client().schedules.register(cron))
    assert ojster.json("cron", "prune", "shops:nobody", "--yes")["cron_jobs"] == ["old"]
    assert ojster.json("cron", "prune", "shops:acme", "--yes")["cron_jobs"] == ["older"]
    left = [cron["name"] for cron in ojster.json("cron", "list")["crons"]]
    assert left == ["/tenant/acme/kept", "kept"]


def test_cron_jobs_of_workflows_are_added_shown_and_run(ojster: Ojster) -> None:
    (ojster.folder / "it.yaml").write_text("{type: chain, name: nightly, steps: [{type: a, args: []}]}")
    (ojster.folder / "definition.yaml").write_text("{name: stored, type: chain, steps: [{type: a, args: []}]}")
    ojster("definitions", "apply", str(ojster.folder / "definition.yaml"))
    file = ("--workflow", str(ojster.folder / "it.yaml"), "--param", "day=1")
    for name, what, starts in (
        ("file", file, "chain nightly"),
        ("named", ("--definition", "stored", "--target", "/db"), "definition stored"),
        ("flow", ("--flow", "order.fulfil", "--args", "[42]"), "flow order.fulfil"),
    ):
        assert ojster.json("cron", "add", name, "@daily", *what)["starts"] == starts
        assert starts in ojster("cron", "show", name)
        run = ojster.json("cron", "run", name)
        assert [one["id"] for one in ojster.json("workflows", "list", "--cron", name)["workflows"]] == [run["id"]]
    assert ojster.json("cron", "show", "file")["workflow"]["params"] == {"day": 1}
    assert "order.fulfil" in ojster("cron", "list")
    for wrong, why in (
        ((), "exactly one of"),
        (("a", "--flow", "f"), "exactly one of"),
        (("--flow", "f", "--queue", "q"), "--queue needs TYPE"),
        (("a", "--param", "x=1"), "--param needs --workflow or --definition"),
        (("a", "--target", "/db"), "--target needs --definition"),
        (("--flow", "f", "--args", "42"), "must be a JSON array"),
    ):
        assert why in ojster("cron", "add", "c", "@daily", *wrong, expect=2)


def test_a_worker_runs_until_its_queues_are_empty(ojster: Ojster) -> None:
    (ojster.folder / "jobs_of_mine.py").write_text(
        "from ojster import App, Retry\n"
        "app = App()\n"
        "@app.job('double')\n"
        "def double(n): return n * 2\n"
        "@app.job('die')\n"
        "def die(): raise ValueError('no')\n"
    )
    good = ojster("push", "double", "21").strip()
    bad = ojster("push", "die", "--attempts", "1", "--dead-letter").strip()
    ojster("worker", "jobs_of_mine:app", "--until-empty")
    assert ojster.json("jobs", "show", good)["result"] == 42
    listed = ojster.json("dead-letter", "list")
    assert [job["id"] for job in listed["jobs"]] == [bad]
    assert "ValueError: no" in ojster("dead-letter", "list", "--error-type", "Value*")
    assert ojster.json("dead-letter", "list", "--error-type", "KeyError")["total"] == 0
    (group,) = ojster.json("jobs", "failures", "--type", "d*", "--error-type", "Value*", "--queue", "default")["groups"]
    assert (group["type"], group["discarded"], group["job_id"], group["message"]) == ("die", 1, bad, "no")
    assert re.search(rf"die +ValueError +1 +0 .* {bad} +no", ojster("jobs", "failures"))
    assert "No jobs have failed" in ojster("jobs", "failures", "--queue", "mail")
    assert ojster.json("dead-letter", "retry", "--all", "--error-type", "KeyError")["matched"] == 0
    assert ojster.json("dead-letter", "retry", "--all")["succeeded"] == 1
    ojster("worker", "jobs_of_mine:app", "--until-empty")
    ojster("dead-letter", "delete", bad)
    assert ojster.json("dead-letter", "list")["total"] == 0
    ojster("dead-letter", "retry", expect=2)
    ojster("worker", "no_such_module:app", expect=1)


def test_the_arguments_that_workers_announce_are_shown(ojster: Ojster) -> None:
    async def announce() -> None:
        app = App(ojster.url)
        app.job("double")(lambda n: n * 2)
        await register(app.client(), app)
        await app.aclose()

    asyncio.run(announce())
    shown = json.loads(ojster("job-types", "arguments", "double"))
    assert shown["double"]["prefixItems"] == [{"title": "n"}]
    assert json.loads(ojster("job-types", "arguments", "other")) == {}


def test_a_worker_without_handlers_refuses_to_start_and_names_its_application(ojster: Ojster) -> None:
    (ojster.folder / "nothing_here.py").write_text("from ojster import App\napp = App()\n")
    said = ojster("worker", "nothing_here:app", "--until-empty", expect=1)
    assert "nothing_here:app declares no job handlers" in said
    assert "import the modules that declare them" in said


def test_a_worker_imports_the_modules_that_declare_jobs(ojster: Ojster) -> None:
    (ojster.folder / "jobs_of_mine.py").write_text("from ojster import App\napp = App()\n")
    for path, type in (("one", "of.one"), ("shop/tasks", "of.shop"), ("shop/mail/tasks", "of.mail")):
        file = ojster.folder / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(f"from jobs_of_mine import app\n@app.job({type!r})\ndef run(): return {type!r}\n")
    ids = [ojster("push", type).strip() for type in ("of.one", "of.shop", "of.mail")]
    ojster("worker", "jobs_of_mine:app", "--include", "one", "--include", "shop.*", "--until-empty")
    assert [ojster.json("jobs", "show", id)["result"] for id in ids] == ["of.one", "of.shop", "of.mail"]
    said = ojster("worker", "jobs_of_mine:app", "--include", "two", expect=1)
    assert "No module 'two'" in said
    said = ojster("worker", "jobs_of_mine:app", "--include", "json.*", expect=1)
    assert "has no modules named 'tasks'" in said


def test_a_worker_takes_queue_weights_and_a_strategy(ojster: Ojster) -> None:
    (ojster.folder / "jobs_of_mine.py").write_text(
        "from ojster import App\napp = App()\n@app.job('say')\ndef say(queue): open('said.txt', 'a').write(queue)\n"
    )
    for queue in ("a", "b"):
        for _ in range(4):
            ojster("push", "say", queue, "--queue", queue)
    ojster("worker", "jobs_of_mine:app", "--queues", "a=3,b", "--until-empty", "--concurrency", "1")
    assert (ojster.folder / "said.txt").read_text().index("b") < 4, "not all of the first queue at first"
    ojster("worker", "jobs_of_mine:app", "--strategy", "round-robin", "--pool", "p", "--until-empty")
    assert "is invalid" in ojster("worker", "jobs_of_mine:app", "--queues", "a=0", expect=2)
    assert "does not use" in ojster("worker", "jobs_of_mine:app", "-q", "a=2", "--strategy", "strict", expect=2)


def test_dead_letters_that_cannot_be_retried_do_not_keep_the_others(ojster: Ojster) -> None:
    (ojster.folder / "jobs_of_mine.py").write_text(
        "from ojster import App\napp = App()\n@app.job('die')\ndef die(): raise ValueError('no')\n"
    )
    single = ojster("push", "die", "--attempts", "1", "--dead-letter").strip()
    step = {"type": "die", "args": [], "options": {"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}}
    (ojster.folder / "chain.json").write_text(json.dumps({"type": "chain", "steps": [step]}))
    ojster("workflows", "start", "chain.json")
    ojster("worker", "jobs_of_mine:app", "--until-empty")
    ids = [job["id"] for job in ojster.json("dead-letter", "list")["jobs"]]
    assert ids[1:] == [single]
    shown = ojster("dead-letter", "retry", "--all", expect=1)
    assert "1 of 2 dead letters are retried." in shown
    assert f"{ids[0]}: Job {ids[0]} belongs to a workflow" in shown
    assert ojster.json("jobs", "show", single)["state"] == "available"


def test_migrate_and_doctor_on_a_file(nowhere: Ojster) -> None:
    ojster = nowhere
    ojster("doctor", expect=1)
    assert ojster.json("migrate")["version"] >= 1
    findings = {one["check"]: one for one in ojster.json("doctor")["checks"]}
    assert findings["integrity"]["finding"] == "ok"
    ojster("push", "a")
    assert "no worker is running" in ojster("doctor", expect=1)


def test_doctor_says_that_no_worker_can_run_the_jobs_that_wait(ojster: Ojster) -> None:
    async def appear(worker_id: str, queue: str, *types: str) -> None:
        app = App(ojster.url)
        await app.client().fleet.beat(Heartbeat(worker_id=worker_id, queues=(queue,), job_types=types))
        await app.aclose()

    def backlog() -> tuple[bool, str]:
        code, output, _ = ojster.run(["doctor", "--json"], {"OJSTER_DATABASE_URL": ojster.url})
        checks = {one["check"]: one for one in json.loads(output)["checks"]}
        assert code == (0 if all(one["ok"] for one in checks.values()) else 1)
        return checks["backlog"]["ok"], checks["backlog"]["finding"]

    ids = [ojster("push", "mail", "--queue", "mails").strip() for _ in range(2)]
    asyncio.run(appear("elsewhere", "default", "mail"))
    fine, words = backlog()
    assert not fine
    assert words.startswith("2 available jobs, 1 workers, 0 dead letters: no worker can run 2 of the jobs")
    assert f"{ids[0]} in the queue mails (no worker takes jobs of this queue)" in words
    asyncio.run(appear("other", "mails", "report"))
    fine, words = backlog()
    assert (fine, "it has no handler for 'mail'" in words) == (False, True)
    asyncio.run(appear("right", "mails", "mail"))
    assert backlog() == (True, "2 available jobs, 3 workers, 0 dead letters")


def test_migrate_and_doctor_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    other = Ojster(tmp_path, postgres_url.replace("schema=", "schema=other_"))
    refused = other("queues", "list", expect=5)
    assert "no Ojster tables" in refused
    assert "ojster migrate" in refused
    assert other.json("migrate")["version"] >= 1
    assert other("queues", "list")
    findings = {one["check"]: one for one in json.loads(other("doctor", "--json", expect=1))["checks"]}
    assert [name for name, one in findings.items() if not one["ok"]] == ["durability"], (
        "the tests' server has fsync off"
    )
    assert findings["schema"]["finding"].endswith(f"has version {len(scripts('postgres'))}")


def test_doctor_finds_what_was_lost_or_changed_of_a_schema(tmp_path: Path, postgres_url: str) -> None:
    ojster = Ojster(tmp_path, postgres_url.replace("schema=", "schema=changed_"))
    ojster("migrate")

    def finding() -> str:
        checks = {one["check"]: one for one in json.loads(ojster("doctor", "--json", expect=1))["checks"]}
        return "" if checks["tables"]["ok"] else str(checks["tables"]["finding"])

    assert finding() == ""
    url = parse_postgres_url(ojster.url)
    with psycopg.connect(url.conninfo, autocommit=True) as connection:
        assert actual_shape(connection, url.schema).indexes == intended_shape().indexes
        connection.execute(f"SET search_path TO {url.schema}".encode())
        for statement, expected in (
            ("DROP INDEX jobs_due", "the index jobs_due is missing"),
            ("ALTER TABLE jobs RESET (fillfactor)", "jobs lacks fillfactor=90"),
            ("ALTER TABLE nodes SET (autovacuum_enabled = false)", "autovacuum is off for nodes"),
            ("DROP TABLE webhooks CASCADE", "the table webhooks is missing"),
        ):
            connection.execute(statement.encode())
            assert expected in finding()


def test_the_demo_ends_well(nowhere: Ojster) -> None:
    ojster = nowhere
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(ojster.folder)}
    code, summary, shown = ojster.run_process(["demo", "--keep", "kept.db", "--json"], environment)
    assert (code, json.loads(summary)["ok"]) == (0, True), shown
    assert "Traceback" not in shown
    assert "All as expected." in shown
    assert "retryable" in shown
    assert "discarded" in shown
    assert (ojster.folder / "kept.db").exists()
    ojster("demo", "--keep", "kept.db", expect=2)


@pytest.mark.slow
def test_dev_reloads_the_worker_and_leaves_nothing_behind_when_it_is_killed(ojster: Ojster) -> None:
    code = 'from ojster import App\napp = App()\n@app.job("which")\ndef which() -> int: return {}\n'
    module = ojster.folder / "dev_jobs.py"
    module.write_text(code.format(1))
    port = free_port()
    command = [sys.executable, "-m", "ojster", "dev", "dev_jobs:app", "--port", str(port)]
    environment = os.environ | {"OJSTER_DATABASE_URL": ojster.url}
    dev = psutil.Popen(
        command, cwd=ojster.folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert ojster("push", "which", "--wait", f"{PATIENCE:g}").strip() == "1"
        deadline = time.monotonic() + PATIENCE
        changes = 1
        module.write_text(code.format(2))
        while ojster("push", "which", "--wait", f"{PATIENCE:g}").strip() != "2":
            assert time.monotonic() < deadline
            module.write_text(code.format(2) + "\n" * changes)  # the watcher may have missed the first change
            changes += 1
        family = dev.children(recursive=True)
        assert len(family) == 2
    finally:
        dev.kill()
        dev.wait()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert alive == []


def test_dev_works_on_the_database_of_its_application_and_stops_in_good_order(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        'from ojster import App\napp = App("sqlite:///shop.db")\n'
        '@app.job("which", queue="mail")\ndef which() -> int: return 7\n'
    )
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name != "OJSTER_DATABASE_URL"}
    log = tmp_path / "log"
    with log.open("wb") as file:
        dev = forked.Popen(
            [sys.executable, "-m", "ojster", "dev", "shop:app", "--port", str(port)],
            cwd=tmp_path,
            env=environment,
            stdout=file,
            stderr=file,
        )
    try:
        code = "from shop import which; print(which.enqueue().result(timeout=50))"
        done = forked.run([sys.executable, "-c", code], cwd=tmp_path, env=environment)
        assert done.stdout.strip() == "7", done.stderr + log.read_text()
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(PATIENCE) == 0
    said = log.read_text()
    assert "Fatal" not in said
    assert "Traceback" not in said
    assert f"sqlite:///{tmp_path}/shop.db" in said
    assert "which completed in" in said


@pytest.mark.parametrize(
    ("url", "why"),
    [("http://127.0.0.1:1", "is a server"), ("sqlite:///:memory:", "in memory")],
)
def test_dev_says_why_it_cannot_work_on_what_an_application_uses(tmp_path: Path, url: str, why: str) -> None:
    (tmp_path / "shop.py").write_text(f"from ojster import App\napp = App({url!r})\n")
    environment = {name: value for name, value in os.environ.items() if name != "OJSTER_DATABASE_URL"}
    done = forked.run([sys.executable, "-m", "ojster", "dev", "shop:app"], cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert why in done.stderr
    assert "--database" in done.stderr


def test_the_list_of_commands_is_short_and_each_is_what_it_says() -> None:
    for name, place in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.name == name
        assert len(place.summary) <= 64, "it does not fit into a line of 80 columns"
        assert place.summary.endswith(".")


def test_help_and_a_wrong_command_import_neither_the_engine_nor_the_server() -> None:
    """They are what people wait for in a terminal, and what a shell completes."""
    for arguments in (["--help"], ["--version"], ["no-such-command"]):
        code = f"import sys; sys.argv = ['ojster', *{arguments}]; from ojster.cli.main import main; main()"
        watched = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {code}"
        done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, timeout=PATIENCE)
        loaded = set(done.stderr.split())
        assert "ojster.cli.main" in loaded
        assert not loaded & {"asyncio", "ojster.service", "ojster.api.app", "rich.console", "starlette", "apsw"}


def test_a_second_ctrl_c_ends_a_command_that_waits_for_a_lock(postgres_url: str, tmp_path: Path) -> None:
    database = parse_postgres_url(postgres_url)
    said = tmp_path / "said"
    command = [sys.executable, "-m", "ojster", "cron", "list", "--url", postgres_url]
    with (
        psycopg.connect(database.conninfo, options=f"-c search_path={database.schema}") as other,
        psycopg.connect(database.conninfo, autocommit=True) as watching,
        said.open("wb") as errors,
    ):
        other.execute("LOCK TABLE crons IN ACCESS EXCLUSIVE MODE")
        running = forked.Popen(command, stderr=errors)
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation::regclass::text LIKE %s"
        until(lambda: watching.execute(waiting, (f"{database.schema}.crons",)).fetchall())
        running.send_signal(signal.SIGINT)
        until(lambda: "Press Ctrl+C again" in said.read_text())
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE) == -signal.SIGINT
