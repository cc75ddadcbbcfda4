"""Installation of the peers into the folder ``.peers``, each with the toolchain of its language."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.catalog import Peer

HERE = Path(__file__).parent
MAX_SECONDS = 900
"""Maximum time that the installation of one peer may take, in seconds."""


class CannotInstall(Exception):
    """The peer is left out; the text says why, in one line."""


class Installed(NamedTuple):
    """The Python that runs the driver, the program or server of a peer, if any, and the versions of its packages."""

    python: Path
    program: Sequence[str]
    versions: Sequence[str]


def install(peer: Peer, folder: Path) -> Installed:
    """Install a peer if it is not there yet."""
    try:
        return {"python": _python, "node": _node, "go": _go, "cargo": _cargo}[peer.toolchain](peer, folder)
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"not installed within {MAX_SECONDS} s") from error


def _python(peer: Peer, folder: Path) -> Installed:
    home = folder / peer.module
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        _run([sys.executable, "-m", "venv", str(home)])
        _run([str(python), "-m", "pip", "install", "--quiet", *peer.packages])
        (home / "installed").touch()
    listed = json.loads(_run([str(python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]))
    names = {package.partition("[")[0].lower() for package in peer.packages}
    versions = [f"{one['name']} {one['version']}" for one in listed if one["name"].lower() in names]
    if not peer.server:
        return Installed(python, (), versions)
    server, version = _server(peer, home)
    return Installed(python, (str(server),), [*versions, version])


def _server(peer: Peer, home: Path) -> tuple[Path, str]:
    package, _, version = peer.server.partition("@")
    server = home / "go" / version / Path(package).name
    if not server.exists():
        _need("go")
        _run(["go", "install", peer.server], variables={"GOBIN": str(server.parent)})
    return server, f"{server.name} {version[1:]}"


def _node(peer: Peer, folder: Path) -> Installed:
    _need("node", "npm")
    home = folder / "node"
    _copy(HERE / "node", home)
    wanted = (home / "package.json").read_text()
    done = home / "installed.json"
    if not done.exists() or done.read_text() != wanted:
        _run(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"], home)
        done.write_text(wanted)
    imported = re.findall(r'from "([a-z-]+)"', (home / peer.source).read_text())
    versions = [f"{name} {version}" for name, version in json.loads(wanted)["dependencies"].items() if name in imported]
    return Installed(Path(sys.executable), ("node", str(home / peer.source)), versions)


def _go(peer: Peer, folder: Path) -> Installed:
    _need("go")
    home = folder / peer.source
    _copy(HERE / peer.source, home)
    _run(["go", "build", "-o", "peer", "."], home)
    versions = re.findall(r"github.com/([a-z]+/[a-z]+) v([\d.]+)\n", (home / "go.mod").read_text())
    return Installed(
        Path(sys.executable), (str(home / "peer"),), [f"{name} {version}" for name, version in versions[:1]]
    )


def _cargo(peer: Peer, folder: Path) -> Installed:
    _need("cargo")
    home = folder / peer.source
    _copy(HERE / peer.source, home)
    _run(["cargo", "build", "--release", "--quiet"], home)
    versions = re.findall(r'^([a-z-]+) = "=([\d.]+)"$', (home / "Cargo.toml").read_text(), re.MULTILINE)
    program = str(home / "target" / "release" / "peers")
    return Installed(Path(sys.executable), (program,), [f"{name} {version}" for name, version in versions])


def _need(*commands: str) -> None:
    for command in commands:
        if shutil.which(command) is None:
            raise CannotInstall(f"no {command} on the path")


def _copy(source: Path, home: Path) -> None:
    """Copy the files of a folder that are new, with their times, so that nothing is built twice."""
    for file in source.rglob("*"):
        target = home / file.relative_to(source)
        if file.is_file() and not (target.exists() and target.read_bytes() == file.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)


def _run(command: Sequence[str], folder: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | (variables or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=MAX_SECONDS,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise CannotInstall(f"{command[0]} failed: {last[:200]}")
    return done.stdout
