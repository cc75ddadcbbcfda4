"""The locked requirements: all dependencies, in the versions of ``constraints.txt``, with hashes and no addresses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    return {normal(name): version for name, version in re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", text)}


CONSTRAINTS = pinned((ROOT / "constraints.txt").read_text())


@pytest.mark.parametrize("lock", LOCKS, ids=[lock.stem for lock in LOCKS])
def test_each_locked_version_has_hashes_and_is_the_constrained_one(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    entries = re.split(r"(?m)^(?=\w)", text)[1:]
    assert all("--hash=sha256:" in entry for entry in entries), [entry for entry in entries if "--hash" not in entry]
    locked = pinned(text)
    assert {name: CONSTRAINTS.get(name, version) for name, version in locked.items()} == locked


@pytest.mark.parametrize(
    ("lock", "extras"), [("run", ()), ("all", ("all",)), ("dev", ("dev",)), ("fuzz", ("dev", "fuzz"))]
)
def test_each_dependency_is_locked(lock: str, extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted, left = list(project["dependencies"]), list(extras)
    while left:
        for requirement in project["optional-dependencies"][left.pop()]:
            if inner := re.match(r"ojster\[(.+)\]", requirement):
                left += inner[1].split(",")
            else:
                wanted.append(requirement)
    names = {normal(re.split(r"[\[<>=!;~ ]", requirement)[0]) for requirement in wanted}
    assert names <= pinned((ROOT / "requirements" / f"{lock}.txt").read_text()).keys()
