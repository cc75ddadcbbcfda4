"""The files that a job passes when it is enqueued, claimed and completed (``python -m benchmarks.ways``).

The files of ``jobs/`` are the way itself. Those of other capabilities are looks at their extension points, and those of
``core/`` and ``storage/`` carry every transaction.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

import ojster
from ojster.core.json_objects import read_members
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.service import Service
from ojster.storage.open import open_database

R = TypeVar("R")

SOURCE = f"{Path(ojster.__file__).parent}/"


class Trace:
    """Collects the files of Ojster whose functions are called."""

    def __init__(self) -> None:
        self._files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            self._files.add(frame.f_code.co_filename.removeprefix(SOURCE))

    async def of(self, call: Callable[[], Awaitable[R]]) -> tuple[R, list[str]]:
        """Return what a call returns, and the files that it passed."""
        self._files.clear()
        result = await call()
        return result, sorted(self._files)


async def ways(folder: str) -> dict[str, list[str]]:
    """Return the files of each way, without those of ``core/`` and ``storage/``; ``folder`` is for the database."""
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        service = Service(open_database(f"sqlite:///{folder}/jobs.db"))
        found: dict[str, list[str]] = {}
        for _ in range(3):  # the first rounds fill caches: a request is kept as a model when it comes again
            request = read_members(b'{"type":"email.send","args":[]}', "the job")
            _, found["enqueue"] = await trace.of(lambda: service.jobs.enqueue([request]))  # noqa: B023
            (job,), found["claim"] = await trace.of(lambda: service.jobs.fetch(Claim(("default",), 1, worker_id="w")))
            done = Acknowledgement(job.id, None, "w", 1)
            _, found["complete"] = await trace.of(lambda: service.jobs.acknowledge([done]))  # noqa: B023
        await service.close()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {way: [file for file in files if not file.startswith(("core/", "storage/"))] for way, files in found.items()}


def main() -> None:
    """Print the files of each way."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(ways(folder))
    for way, files in found.items():
        own = [file for file in files if file.startswith("jobs/")]
        print(f"{way}: {len(own)} files: {', '.join(own)}")
        print(f"    looks at: {', '.join(file for file in files if file not in own)}")


if __name__ == "__main__":
    main()
