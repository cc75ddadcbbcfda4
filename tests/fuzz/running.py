"""Runs one target in this process: guided by coverage if atheris is installed, and by chance alone otherwise.

An input that never ends, or that ends the process, is seen by the parent (``tests.fuzz.supervisor``): each input is
written to a file before it is run.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import logging
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from tests.fuzz.mutation import MAX_BYTES, mutate
from tests.fuzz.report import Finding, Kind, place_of

SLOW_SECONDS: Final = 1.0
"""Time that the processor may spend on an input."""

MAX_GROWTH: Final = 300 << 20
"""Number of bytes by which an input may make the process larger."""

MAX_TOTAL_GROWTH: Final = 1 << 30
"""Number of bytes by which all inputs together may make it larger."""

MAX_ADDRESS_SPACE: Final = 6 << 30
HANG_SECONDS: Final = 20
"""Time after which an input counts as one that never ends."""

POOL: Final = 300
"""Number of inputs that the search by chance goes on from."""


class Outcome(msgspec.Struct):
    """What became of a run: a line for each finding, and a last one with the number of inputs."""

    finding: Finding | None = None
    executions: int = 0
    service: str = ""


class Probe:
    """Runs inputs, measures them, and writes down what is wrong.

    Parameters
    ----------
    target:
        A ``tests.fuzz.targets.Target``. It is imported late, so that atheris can instrument what it imports.
    out:
        File of the findings, a line each.
    """

    def __init__(self, target: Any, out: Path) -> None:
        self.executions = 0
        self.accepted = 0
        self._target = target
        self._out = out
        self._input = out.with_suffix(".input")
        self._known: dict[tuple[str, str, str], int] = {}
        self._before = self._first = _peak()

    def __call__(self, data: bytes) -> bool:
        """Run an input; return whether it was accepted."""
        self.executions += 1
        self._input.write_bytes(data)
        started = time.process_time()
        accepted = self._run(data)
        spent = time.process_time() - started
        if spent > SLOW_SECONDS:
            self._tell("slow", self._target.name, f"{spent:.1f} s for {len(data)} bytes", data)
        self._weigh(data)
        self.accepted += accepted
        return accepted

    def _run(self, data: bytes) -> bool:
        try:
            self._target.run(data)
        except AssertionError as error:
            self._tell("rule", place_of(error.__traceback__), f"Broken: {error!s:.500}", data)
        except Exception as error:
            if not self._target.is_refusal(error):
                place = f"{type(error).__name__} at {place_of(error.__traceback__)}"
                self._tell("error", place, f"{type(error).__name__}: {error!s:.300}", data)
        else:
            return True
        return False

    def _weigh(self, data: bytes) -> None:
        peak = _peak()
        if peak - self._before > MAX_GROWTH:
            self._tell("memory", self._target.name, f"{(peak - self._before) >> 20} MiB more", data)
            self._first += peak - self._before
        elif peak - self._first > MAX_TOTAL_GROWTH:
            why = f"{(peak - self._first) >> 20} MiB more after {self.executions} inputs"
            self._tell("memory", f"{self._target.name}, all inputs", why, data)
            self._first = peak
        self._before = peak

    def _tell(self, kind: Kind, place: str, text: str, data: bytes) -> None:
        finding = Finding(self._target.name, kind, place, text, data)
        if len(data) < self._known.get(finding.key, sys.maxsize):
            self._known[finding.key] = len(data)
            self.write(Outcome(finding))

    def write(self, outcome: Outcome) -> None:
        """Add a line to the file."""
        with self._out.open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")


def _peak() -> int:
    """Return the largest size that this process has had, in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size << 10


def by_chance(probe: Probe, seeds: list[bytes], seconds: float, most: int | None, rng: random.Random) -> None:
    """Run changed inputs for some seconds, at most so many, more often changes of those that were accepted."""
    pool = list(seeds)
    for seed in seeds:
        probe(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end and (most is None or probe.executions < most):
        data = mutate(rng.choice(pool), seeds, rng)
        if probe(data) and len(data) < 4_000:
            pool.append(data)
            if len(pool) > POOL + len(seeds):
                del pool[rng.randrange(len(seeds), len(pool))]


def guided(atheris: ModuleType, probe: Probe, seeds: list[bytes], seconds: float, folder: Path) -> None:
    """Let libFuzzer choose inputs by the branches that they reach. It ends the process."""
    for number, seed in enumerate(seeds):
        (folder / f"{number:03}").write_bytes(seed)

    def changed(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(data, max_size))
        return mutate(data, seeds, rng)[:max_size]

    def run(data: bytes) -> None:
        probe(data)
        if probe.executions % 200 == 0:
            probe.write(Outcome(executions=probe.executions, service="atheris"))

    options = [f"-max_total_time={round(seconds)}", f"-max_len={MAX_BYTES}", "-rss_limit_mb=0", "-print_final_stats=0"]
    options += [f"-timeout={10**6}", "-len_control=0", "-verbosity=0", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], str(folder), *options], run, custom_mutator=changed)
    atheris.Fuzz()


def main() -> None:
    """Run the target named on the command line."""
    for name in ("uvicorn.error", "ojster.server.fast_path"):
        logging.getLogger(name).setLevel(logging.ERROR)  # each refused request is logged
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.running", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by-chance", action="store_true")
    chosen = parser.parse_args()
    atheris = None
    if not chosen.by_chance and importlib.util.find_spec("atheris") is not None:
        atheris = importlib.import_module("atheris")
    around: Callable[[], Any] = contextlib.nullcontext if atheris is None else lambda: _instrumented(atheris)
    with around():
        targets = importlib.import_module("tests.fuzz.parsers").TARGETS
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    faulthandler.enable()
    sys.set_int_max_str_digits(0)  # what is accepted is read again here, by Python's own decoder
    gc.collect()
    target = targets[chosen.target]
    probe = Probe(target, chosen.out)
    if atheris is not None:
        folder = chosen.out.with_suffix(".corpus")
        folder.mkdir(exist_ok=True)
        guided(atheris, probe, target.seeds(), chosen.seconds, folder)
    by_chance(probe, target.seeds(), chosen.seconds, chosen.inputs, random.Random(chosen.seed))
    probe.write(Outcome(executions=probe.executions, service=f"chance, {probe.accepted} accepted"))


def _instrumented(atheris: ModuleType) -> Any:
    return atheris.instrument_imports(include=["ojster.core", "ojster.jobs", "ojster.workflows", "ojster.schedules"])


if __name__ == "__main__":
    main()
