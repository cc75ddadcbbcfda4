"""A copy of a process is what the command would be: its arguments, environment, folder, streams and end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.waiting import PATIENCE

SHOWN = "import json, os, sys; print(json.dumps([sys.argv, dict(os.environ), os.getcwd(), sys.path[0], __name__]))"


@pytest.mark.parametrize("how", ["-c", "-m", "file"])
def test_a_copy_has_what_the_command_has(how: str, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    program = {"-c": ("-c", SHOWN), "-m": ("-m", "shown"), "file": ("shown.py",)}[how]
    command = [sys.executable, *program, "one", "two"]
    copy = forked.run(command, cwd=tmp_path, env={"A": "1"})
    real = subprocess.run(command, cwd=tmp_path, env={"A": "1"}, capture_output=True, text=True, check=True)
    expected = json.loads(real.stdout)
    expected[1].pop("LC_CTYPE", None)  # Python sets it when it starts
    assert json.loads(copy.stdout) == expected


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("raise KeyError('x')", 1, "KeyError: 'x'\n"),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("import atexit, sys; atexit.register(sys.stderr.write, 'bye'); sys.exit(2)", 2, "bye"),
    ],
)
def test_a_copy_ends_as_the_command_ends(code: str, status: int, said: str) -> None:
    ended = forked.run([sys.executable, "-c", code])
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.endswith(said)


def test_a_copy_is_interrupted_and_killed_like_a_command(tmp_path: Path) -> None:
    code = (
        "import time\ntry:\n    print('sleeps', flush=True); time.sleep(300)\nexcept KeyboardInterrupt:\n    exit(130)"
    )
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)):
        log = tmp_path / str(number)
        with log.open("wb") as file:
            process = forked.Popen([sys.executable, "-c", code], stdout=file, stderr=subprocess.DEVNULL)
        while "sleeps" not in log.read_text():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(PATIENCE) == status
