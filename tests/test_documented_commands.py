"""Every command of ojster in the documentation exists, with the options that it is shown with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

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
