"""Runs targets one after the other, each in a process of its own, which may hang or die."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.fuzz.report import Finding, Report
from tests.fuzz.running import HANG_SECONDS, Outcome

START_SECONDS: Final = 60
"""Time that a process has to start."""

ROOT: Final = Path(__file__).parents[2]

_read: Final = msgspec.json.Decoder(Outcome).decode


def fuzz_parsers(
    names: Sequence[str], seconds: float, *, by_chance: bool, most: int | None, seed: int, report: Report
) -> None:
    """Fuzz targets for some seconds each, by chance with at most so many inputs, and add what is found to a report."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix="ojster-fuzz-") as folder:
            started = time.monotonic()
            run = _Run(name, Path(folder), by_chance=by_chance, most=most)
            report.add_all(run.findings(seconds, seed))
            spent = time.monotonic() - started
            print(f"{name:14} {run.executions:9} inputs in {spent:4.0f} s ({run.service})", flush=True)


class _Run:
    """The run of one target. After an input that hangs, the target is started again."""

    def __init__(self, name: str, folder: Path, *, by_chance: bool, most: int | None) -> None:
        self.executions = 0
        self.service = "none"
        self._is_killed = False
        self._name = name
        self._out = folder / "findings"
        self._by_chance = by_chance
        self._most = most

    def findings(self, seconds: float, seed: int) -> list[Finding]:
        """Run the target for some seconds; return what was found."""
        found: list[Finding] = []
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 1 or seed == 0:
            ending = self._run_once(max(left, 1), seed)
            if ending is not None:
                found.append(ending)
            found += self._read()
            seed += 1
            if ending is None:
                break
        return found

    def _run_once(self, seconds: float, seed: int) -> Finding | None:
        """Run the process; return a finding if an input hangs or ends it."""
        self._out.unlink(missing_ok=True)
        self._input.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.fuzz.running", self._name, str(self._out)]
        command += [f"--seconds={seconds}", f"--seed={seed}", *["--by-chance"] * self._by_chance]
        command += [] if self._most is None else [f"--inputs={self._most}"]
        with self._out.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
            why = self._watch(process, seconds)
        data = self._input.read_bytes() if self._input.exists() else b""
        if why is not None:
            return Finding(self._name, "hang", self._name, why, data)
        if process.returncode and not self._is_killed:
            tail = self._out.with_suffix(".log").read_text(errors="replace")[-800:]
            return Finding(self._name, "hang", f"exit {process.returncode}", f"The process has ended: {tail}", data)
        return None

    @property
    def _input(self) -> Path:
        return self._out.with_suffix(".input")

    def _watch(self, process: subprocess.Popen[bytes], seconds: float) -> str | None:
        """Wait for the process; end it if one input takes too long, and return why."""
        started = time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            running = time.time() - self._input.stat().st_mtime if self._input.exists() else 0.0
            late = time.monotonic() - started > seconds + START_SECONDS
            if running > HANG_SECONDS or late:
                process.kill()
                process.wait()
                self._is_killed = True
                return f"An input did not end in {HANG_SECONDS} s." if running > HANG_SECONDS else None
        return None

    def _read(self) -> list[Finding]:
        outcomes = [_read(line) for line in self._out.read_bytes().splitlines()] if self._out.exists() else []
        counted = [one for one in outcomes if one.executions]
        if counted:
            self.executions += max(one.executions for one in counted)
            self.service = counted[-1].service
        return [one.finding for one in outcomes if one.finding is not None]
