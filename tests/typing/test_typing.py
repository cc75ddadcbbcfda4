"""mypy --strict and pyright find the types of the public API, and refuse wrong uses of it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent

MODULES = {
    "mypy": ("mypy", "--strict", "--no-error-summary"),
    "pyright": ("basedpyright", "--level", "error"),
}


@cache
def said(checker: str) -> str:
    """Return what a checker says of both files: it reads the packages that they import once."""
    files = [str(FOLDER / name) for name in ("accepted.py", "refused.py")]
    done = subprocess.run([sys.executable, "-m", *MODULES[checker], *files], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def refused_lines(checker: str, name: str) -> set[int]:
    """Return the numbers of the lines of a file with an error."""
    return {int(line) for line in re.findall(rf"{name}:(\d+)(?::\d+)?(?:: error| - error)", said(checker))}


@pytest.fixture(params=sorted(MODULES))
def refused(request: pytest.FixtureRequest) -> Callable[[str], set[int]]:
    if find_spec(MODULES[request.param][0]) is None:  # pyright needs Node, so that `make lint` installs it for a moment
        pytest.skip(f"{MODULES[request.param][0]} is not installed here")
    return lambda name: refused_lines(request.param, name)


@pytest.mark.slow
def test_a_checker_finds_the_types_of_the_public_api(refused: Callable[[str], set[int]]) -> None:
    assert refused("accepted.py") == set()


@pytest.mark.slow
def test_a_checker_refuses_each_wrong_use(refused: Callable[[str], set[int]]) -> None:
    lines = (FOLDER / "refused.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "# wrong: " in line}
    assert len(wrong) > 10
    assert refused("refused.py") == wrong
