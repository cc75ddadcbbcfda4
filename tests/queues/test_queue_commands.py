"""Commands set limits and bounds of queues, and lists fit into a narrow terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import msgspec
import pytest
from click import unstyle
from click.testing import CliRunner, Result
from rich.console import Console

from ojster.cli import output
from ojster.cli.main import cli
from ojster.core.errors import Conflict, InvalidRequest


def test_limits_and_bounds_are_set_and_removed_and_wrong_ones_change_nothing(tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["queues", *arguments, "--url", f"sqlite:///{tmp_path}/jobs.db"])

    def changed(*arguments: str) -> dict[str, object]:
        result = run("set", *arguments, "--json")
        assert result.exit_code == 0, result.output
        return {change["setting"]: change["after"] for change in msgspec.json.decode(result.output)["changes"]}

    wrong = run("create", "mail", "--when-full", "block")
    assert isinstance(wrong.exception, InvalidRequest), wrong.output
    assert isinstance(run("set", "mail", "--when-full", "block").exception, InvalidRequest)
    assert msgspec.json.decode(run("list", "--json").output) == {"queues": []}, "no queue was made"
    created = run("create", "mail", "--rate", "100/PT1M", "--max-depth", "50", "--when-full", "block")
    assert created.exit_code == 0, created.output
    assert isinstance(run("create", "mail").exception, Conflict)
    assert changed("mail", "--concurrency", "4") == {"concurrency": 4}
    assert changed("mail", "--max-depth", "60") == {"backpressure.max_depth": 60}, "what a full queue does stays"
    assert changed("mail", "--when-full", "drop_oldest") == {"backpressure.strategy": "drop_oldest"}
    told = run("set", "mail", "--max-depth", "70", "--dry-run")
    assert "60" in told.output
    assert told.output.endswith("Nothing was changed.\n")
    assert run("set", "mail", "--max-depth", "60").output == "The queue mail is so already.\n"
    gone = changed("mail", "--concurrency", "none", "--rate", "none", "--max-depth", "none")
    bound = {f"backpressure.{name}": None for name in ("max_depth", "strategy", "warning_threshold")}
    assert gone == {"concurrency": None, "rate_limit": None, **bound}, "all that was set, and no more"
    assert run("set", "mail").exit_code == run("set", "mail", "--rate", "5").exit_code == 2


def test_ids_are_shortened_in_a_narrow_terminal_and_stay_different(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ["01a220e5-8f4e-75f7-ae1d-9294ef3f9e56", "01a220e5-8f4e-7182-9bf7-8be729d6b29e"]
    rows = [(output.Id(id), "discarded", "e" * 80, output.Id(ids[0])) for id in ids]

    def shown(columns: int, is_terminal: bool) -> list[list[str]]:
        printed = StringIO()
        console = Console(width=columns, force_terminal=is_terminal, no_color=True, file=printed)
        monkeypatch.setattr(output, "console", console)
        output.print_table(("id", "state", "error", "job"), rows, "")
        return [line.split() for line in unstyle(printed.getvalue()).splitlines()[1:]]

    assert shown(70, is_terminal=True) == [
        ["01a220e5-8f4e-75", "discarded", "e" * 25 + "…", "01a220e5-8f4e"],
        ["01a220e5-8f4e-71", "discarded", "e" * 25 + "…", "01a220e5-8f4e"],
    ]
    assert shown(70, is_terminal=False) == [[id, "discarded", "e" * 80, ids[0]] for id in ids]  # such as in a pipe
