"""Run a command with Node, which comes from locked Python packages and is deleted afterwards: it takes 200 MB.

Usage: ``python dashboard/with_node.py requirements/dashboard.txt python dashboard/build.py``. The command finds the
packages of the lock file through ``PYTHONPATH``; a first word ``python`` is the Python that runs this program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path


def run_with_node(lock: Path, command: Sequence[str]) -> int:
    """Run a command with the packages of a lock file; return its exit code."""
    with tempfile.TemporaryDirectory(prefix="ojster-node-") as folder:
        # An environment of its own has pip, also where a build tool has made one without it.
        venv.create(Path(folder) / "pip", with_pip=True)
        scripts = "Scripts" if sys.platform == "win32" else "bin"
        pip = [str(Path(folder) / "pip" / scripts / "python"), "-m", "pip", "--disable-pip-version-check"]
        packages = Path(folder) / "packages"
        install = ["install", "--quiet", "--require-hashes", "--no-deps", "--target", str(packages), "-r", str(lock)]
        subprocess.run([*pip, *install], check=True, env={**os.environ, "PYTHONPATH": ""})
        path = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
        words = [sys.executable if command[0] == "python" else command[0], *command[1:]]
        return subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(run_with_node(Path(sys.argv[1]), sys.argv[2:]))
