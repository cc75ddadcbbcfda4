"""Tries each version of Python that is at hand: a release, or tests.

``python -m tests.pythons wheel`` checks the packages in ``dist/``, installs the wheel in an empty environment of each
version, and runs the demo and the quick start of the README there, without Node. ``python -m tests.pythons tests`` runs
tests with each version but the one that runs this program; other arguments are for pytest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

UV: Final = str(Path(sys.executable).with_name("uv"))

FOLDERS: Final = ("worker", "sandbox", "testing", "core")
"""Folders of the tests that run: those of code that depends most on the version, such as tasks and tracebacks."""


def main() -> int:
    """Do what the command line says."""
    kind, *arguments = sys.argv[1:]
    return {"wheel": try_wheel, "tests": run_tests}[kind](arguments)


def interpreters() -> dict[str, str]:
    """Return the path of an interpreter of each version that the classifiers name, if it is at hand."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {}
    for version in re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])):
        name = f"python{version}"
        # A version that pyenv has, but not chosen, is on the path as a script that fails.
        kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"{version}.*/bin/{name}")
        candidates = [shutil.which(name), *map(str, sorted(kept))]
        if usable := [path for path in candidates if path is not None and runs(path)]:
            found[version] = usable[0]
        else:
            print(f"--- Python {version} is not at hand: left out", flush=True)
    return found


def runs(interpreter: str) -> bool:
    """Return whether a program can be run with this interpreter."""
    return subprocess.run([interpreter, "-c", "pass"], capture_output=True).returncode == 0


def environment(interpreter: str, folder: Path, lock: str, *package: str) -> Path:
    """Make an environment with the locked requirements and the package, and return its folder of programs."""
    make = [UV, "venv", "--quiet", "--no-python-downloads", "--python", interpreter, str(folder)]
    install = [UV, "pip", "install", "--quiet", "--no-deps", "--python", str(folder)]
    subprocess.run(make, check=True)
    subprocess.run([*install, "--require-hashes", "-r", str(ROOT / "requirements" / f"{lock}.txt")], check=True)
    subprocess.run([*install, *package], check=True)
    return folder / "bin"


def try_wheel(packages: list[str]) -> int:
    """Check the packages, and try the wheel with each version."""
    files = packages or [str(path) for path in sorted((ROOT / "dist").iterdir())]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    (wheel,) = (file for file in files if file.endswith(".whl"))
    for version, interpreter in interpreters().items():
        print(f"--- the wheel with Python {version}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            programs = environment(interpreter, Path(folder, "environment"), "run", wheel)
            begin(programs, Path(folder))
    return 0


def begin(programs: Path, folder: Path) -> None:
    """Do what a newcomer does first: watch the demo, and follow the quick start of the README."""
    # Neither may use what the caller's variables name, above all not the database in OJSTER_DATABASE_URL.
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OJSTER_"))}
    alone = others | {"PATH": str(programs)}
    subprocess.run([str(programs / "python"), "-m", "ojster", "demo"], cwd=folder, env=alone, check=True)
    (folder / "myapp.py").write_text(quick_start())
    with worker([str(programs / "ojster"), "worker", "myapp:app"], folder, alone):
        command = [str(programs / "python"), "myapp.py"]
        answer = subprocess.run(command, cwd=folder, env=alone, check=True, capture_output=True, text=True)
    print(answer.stdout, end="", flush=True)
    if answer.stdout != "Welcome sent to ada@example.com\n":
        raise SystemExit("The quick start did not print what the README says.")


@contextmanager
def worker(command: list[str], folder: Path, variables: dict[str, str]) -> Iterator[None]:
    """Run a worker, and stop it as an operator does."""
    process = subprocess.Popen(command, cwd=folder, env=variables)
    try:
        yield
    finally:
        process.terminate()
        status = process.wait(60)
    if status != 0:
        raise SystemExit(f"The worker ended with {status}.")


def quick_start() -> str:
    """Return the first program of the README."""
    program = re.search(r"```python\n(# myapp\.py\n.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None
    return program[1]


def run_tests(arguments: list[str]) -> int:
    """Run tests with each version but this one; return the worst exit status."""
    chosen = arguments or [str(ROOT / "tests" / folder) for folder in FOLDERS]
    worst = 0
    for version, interpreter in interpreters().items():
        if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
            continue
        print(f"--- Python {version}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            programs = environment(interpreter, Path(folder), "dev", "--editable", str(ROOT))
            command = [str(programs / "python"), "-m", "pytest", "-m", "not slow and not thorough", *chosen]
            worst = max(worst, subprocess.run(command, cwd=ROOT).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
