"""A server without an optional capability still passes levels 0 and 1 of the conformance suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ojster.capabilities import CAPABILITIES
from tests.conformance.run import SKIPPED_TESTS, failures, wait_for
from tests.postgres import free_port
from tests.waiting import PATIENCE

SUITE = os.environ.get("OJSTER_CONFORMANCE_SUITE", "")

OPTIONAL = [one.name for one in CAPABILITIES if one.is_optional]


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.skipif(not SUITE, reason="OJSTER_CONFORMANCE_SUITE does not say where the suite is")
@pytest.mark.parametrize("left_out", OPTIONAL)
def test_a_server_without_it_conforms_to_levels_0_and_1(left_out: str, tmp_path: Path) -> None:
    port, report = free_port(), tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.conformance.without", left_out, f"sqlite:///{tmp_path}/jobs.db", str(port)]
    server = subprocess.Popen(command)
    try:
        wait_for(url := f"http://127.0.0.1:{port}")
        arguments = ["--url", url, "--cleanup", "--jobs", "4", "--json", str(report), "--strict"]
        for level in ("level-0-core", "level-1-reliable"):
            arguments += ["--suite", level]
        for test in sorted(SKIPPED_TESTS["strict"]):
            arguments += ["--skip", test]
        subprocess.run([sys.executable, str(Path(SUITE) / "run.py"), *arguments], capture_output=True)
        results = json.loads(report.read_text())
    finally:
        server.terminate()
        server.wait(PATIENCE)
    assert [(test["test_id"], test.get("name")) for test in failures(results)] == []
