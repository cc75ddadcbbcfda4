"""A disk that fills up: new jobs are refused while there is room to end and to delete what exists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.full_disk import ENDED

MOUNT = ["unshare", "-rm", "sh", "-c"]
DISK = "mount -t tmpfs -o size=64m none '{folder}' && "


def may_mount(folder: Path) -> bool:
    """Return whether this user may mount a small disk in a namespace of its own."""
    try:
        return not subprocess.run(
            [*MOUNT, DISK.format(folder=folder) + "true"], capture_output=True, check=False
        ).returncode
    except FileNotFoundError:
        return False


def test_finished_jobs_can_be_deleted_on_a_full_disk(tmp_path: Path) -> None:
    if not may_mount(tmp_path):
        pytest.skip("mounting a small disk is not allowed here")
    command = f"{DISK.format(folder=tmp_path)} '{sys.executable}' -m tests.storage.full_disk '{tmp_path}'"
    done = subprocess.run([*MOUNT, command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "almost full" in told["refusal"]
    assert "ojster jobs delete" in told["refusal"]
    assert "almost full" in told["ready"]
    assert (told["deleted"], told["pushed"]) == (ENDED, ["available"])
