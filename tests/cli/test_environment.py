"""Environment variables: the ones that Ojster reads, and warnings of those that look like one of them."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from ojster import App
from ojster.cli.main import main
from ojster.core import environment
from ojster.core.environment import INTERNAL, VARIABLES

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_told", set())


def test_each_variable_in_the_source_is_in_the_register() -> None:
    named: set[str] = set()
    for path in (ROOT / "src" / "ojster").rglob("*.py"):
        named |= set(re.findall(r"(?<!_)OJSTER_[A-Z_]+[A-Z]", path.read_text()))
    assert named == VARIABLES.keys() | INTERNAL


def test_the_table_in_the_documentation_has_each_variable_with_what_it_is() -> None:
    section = (ROOT / "docs/operations.md").read_text().partition("## Environment variables")[2].partition("\n## ")[0]
    assert dict(re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", section)) == VARIABLES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OJSTER_URL", "OJSTER_DATABASE_URL"),
        ("OJSTER_DATABASE", "OJSTER_DATABASE_URL"),
        ("OJSTER_TOKN", "OJSTER_TOKEN"),
        ("OJSTER_FILE", "OJSTER_FILES"),
        ("OJSTER_OIDC_SECRET", "OJSTER_OIDC_CLIENT_SECRET"),
    ],
)
def test_a_misspelt_variable_brings_a_warning_once(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "x")
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(["--version"])
    said = capsys.readouterr().err
    assert (
        said.count(f"Warning: The environment variable {name} is unknown and has no effect; did you mean {meant}?") == 1
    )


def test_a_program_that_names_no_command_is_warned_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OJSTER_DATABSE_URL", "x")
    with caplog.at_level(logging.WARNING, "ojster"), App("sqlite:///:memory:") as app:
        app.service()
    assert ["did you mean OJSTER_DATABASE_URL?" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    "name",
    [
        *VARIABLES,
        *sorted(INTERNAL),
        "OJSTER_PORT",
        "OJSTER_SERVICE_HOST",
        "OJSTER_SERVICE_PORT",
        "OJSTER_PORT_8080_TCP_ADDR",
    ],
)
def test_known_variables_and_those_of_kubernetes_bring_no_warning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    said: list[str] = []
    environment.warn_of_unknown_variables(said.append)
    assert said == []
