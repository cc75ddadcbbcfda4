"""Completion of commands in the shell, installed by one command."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import forked

COMMAND = [sys.executable, "-m", "ojster", "completion"]


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".local/share/bash-completion/completions/ojster"),
        ("zsh", ".zfunc/_ojster"),
        ("fish", ".config/fish/completions/ojster.fish"),
    ],
)
def test_it_is_installed_where_the_shell_looks(shell: str, file: str, tmp_path: Path) -> None:
    env = os.environ | {"HOME": str(tmp_path), "SHELL": f"/usr/bin/{shell}"}
    assert forked.run([*COMMAND, "--install"], env=env).returncode == 0
    assert "_OJSTER_COMPLETE" in (tmp_path / file).read_text()


def test_an_unknown_shell_is_refused() -> None:
    env = os.environ | {"SHELL": "/bin/sh"}
    done = forked.run(COMMAND, env=env)
    assert (done.returncode, "Name one of bash, zsh, fish" in done.stderr) == (2, True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_options() -> None:
    ask = "import sys; sys.argv = ['ojster']; from ojster.cli.main import main; main()"
    for words, number, expected in (("ojster que", "1", "queues"), ("ojster jobs list --sta", "3", "--state")):
        env = os.environ | {"COMP_WORDS": words, "COMP_CWORD": number, "_OJSTER_COMPLETE": "bash_complete"}
        done = forked.run([sys.executable, "-c", ask], env=env)
        assert f"plain,{expected}" in done.stdout.splitlines(), done.stderr
