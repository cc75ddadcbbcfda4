"""Every command of ojster in the documentation exists, with the options that it is shown with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ojster import App
from ojster.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]


def commands() -> Iterator[tuple[str, str]]:
    """Yield each documented command with its page."""
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
            for line in re.findall(r"(?m)^\s*\$ (.*)", block):
                for part in re.split(r"[|;&]+", line.split(" #")[0]):
                    if part.strip().startswith("ojster "):
                        yield page.name, part.strip()


COMMANDS = list(dict.fromkeys(commands()))


SHOWN_AS = {
    "30 minutes": "PT30M",
    "30 s": "PT30S",
    "1 day": "P1D",
    "7 days": "P7D",
    "90 days": "P90D",
    "365 days": "P365D",
    "1 MiB": 1 << 20,
    "256 MiB": 256 << 20,
    "100 GiB": 100 << 30,
    "none": None,
    "off": False,
    "by address": None,
}
"""How the documentation shows defaults, beside plain words and numbers."""


def documented_options() -> Iterator[tuple[str, str]]:
    """Yield each option in the table of server options, with its default."""
    section = (ROOT / "docs/operations.md").read_text().partition("## Server options")[2].partition("\n## ")[0]
    for flags, defaults in re.findall(r"(?m)^\| (`--[^|]*`) \| ([^|]*) \|", section):
        names = re.findall("`(--[a-z-]+)`", flags)
        if names == ["--files"]:  # its default is a sentence
            continue
        shown = re.split(r", (?![0-9]{3}(?:\D|$))", defaults.replace("`", ""))
        yield from zip(names, shown * len(names) if len(shown) == 1 else shown, strict=True)


def test_the_table_of_server_options_has_the_defaults_of_the_command() -> None:
    serve = cli.get_command(click.Context(cli), "serve")
    assert serve is not None
    defaults = {max(option.opts, key=len): option.to_info_dict()["default"] for option in serve.params}
    documented = dict(documented_options())
    assert len(documented) >= 25
    for name, default in documented.items():
        plain = default.replace(",", "")
        assert defaults[name] == SHOWN_AS.get(default, int(plain) if plain.isdecimal() else default), name


def test_the_documentation_has_commands() -> None:
    assert len(COMMANDS) >= 60


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_documented_command_exists_with_its_options(page: str, line: str) -> None:
    words = iter(shlex.split(line)[1:])
    command: click.Command = cli
    context = click.Context(cli)
    options: list[str] = []
    for word in words:
        if re.fullmatch(r"-[a-z]|--[a-z-]+(=.*)?", word):
            options.append(word.split("=")[0])
        elif isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(context, word)
            assert found is not None, f"there is no command {word!r}"
            command, context = found, click.Context(found, parent=context)
    known = {name for one in command.get_params(context) for name in (*one.opts, *one.secondary_opts)}
    assert set(options) <= known


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the files that the documented commands read."""
    folder = tmp_path_factory.mktemp("documented")
    for name in ("app-2.0.tar.gz", "gist.yaml", "nightly.yaml"):
        (folder / name).write_text("{name: a, type: chain, steps: []}")
    App(f"sqlite:///{folder}/ojster.db").job_type("a").enqueue()
    return folder


NOT_RUN = {"bench", "completion", "dev", "mcp", "run", "serve", "top", "worker"}
"""Commands that do not end, take long, or change the home directory."""


@pytest.mark.parametrize(("page", "line"), [one for one in COMMANDS if one[1].split()[1] not in NOT_RUN])
def test_a_documented_command_is_no_wrong_usage(
    page: str, line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv(
        "OJSTER_DATABASE_URL", "postgresql://127.0.0.1:9/a" if "migrate" in line else "sqlite:///ojster.db"
    )
    words = shlex.split(re.sub(r" --(url|database) \S+| > .*", "", line))
    done = CliRunner().invoke(cli, words[1:])
    assert done.exit_code != 2, done.output
