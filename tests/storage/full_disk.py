"""Fill the disk of a folder with jobs, end and delete some of them, and print what happened as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from ojster.core.errors import BackendUnavailable, OjsterError
from ojster.insight.readiness import why_not_ready
from ojster.jobs.bulk import Action
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.messages import Acknowledgement
from ojster.service import Service
from ojster.storage.open import open_database
from tests.conftest import request
from tests.waiting import PATIENCE

ENDED = 2_000


async def fill(folder: str) -> dict[str, Any]:
    """Return the refusal of a job, whether jobs could be ended and deleted then, and whether one was pushed again."""
    service = Service(open_database(f"sqlite:///{folder}/jobs.db"))
    told: dict[str, Any] = {}
    while told.get("ready") is None:  # a little room is there again when the write-ahead log has moved to the file
        try:
            while True:
                await service.jobs.enqueue([request(args=["x" * 2000]) for _ in range(20)])
        except OjsterError as refusal:
            told["refusal"] = refusal.message
        told["ready"] = await why_not_ready(service.database)
    for _ in range(ENDED // 100):
        jobs = await service.jobs.fetch(Claim(("default",), 100, "w"))
        await service.jobs.acknowledge([Acknowledgement(job.id, b"1") for job in jobs])
    told["deleted"] = (await service.bulk.sweep(Action.DELETE, JobFilter(queue="default"))).succeeded
    told["pushed"] = await pushed_soon(service)
    await service.close()
    return told


async def pushed_soon(service: Service) -> list[str]:
    """Push a job as soon as the write-ahead log of what was deleted is in the file, though nothing else is written."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(BackendUnavailable):
                return [pushed.job.state for pushed in await service.jobs.enqueue([request()])]
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(fill(sys.argv[1]))))
