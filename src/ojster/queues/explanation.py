"""Why a queue does not hand out a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ojster.core.job import Job
from ojster.core.tenant import called
from ojster.core.timestamps import format_optional
from ojster.jobs.reason import Reason
from ojster.queues.gates import Gate
from ojster.queues.limits import QUEUE_PREFIX, count_active, find_limit, key_of_queue
from ojster.queues.maintenance import find_maintenance
from ojster.queues.queues import find_queue
from ojster.storage.transaction import Transaction

_WORDS: Final = {
    "blocked": "a handler has asked to wait",
    "concurrency": "as many jobs run as may run at once",
    "rate": "as many jobs have started as may start in its window",
    "throttle": "the next job may start a little later",
}


def why_held_back(tx: Transaction, job: Job) -> Iterator[Reason]:
    """Yield whether maintenance, a pause or a limit keeps a job from starting."""
    if find_maintenance(tx, (None,))[0] is not None:
        yield Reason("maintenance", "The server is in maintenance: nothing starts until its end.")
    queue = find_queue(tx, job.queue)
    if queue is not None and queue.paused_at is not None:
        since = format_optional(queue.paused_at)
        yield Reason("paused", f"The queue {job.queue!r} has been paused since {since}: resume it.")
    for key in dict.fromkeys(filter(None, (key_of_queue(job.queue), job.limit_key))):
        limit = find_limit(tx, key)
        if limit is None:
            continue
        gate = Gate(tx, limit, count_active(tx, key))
        if gate.strategy is not None:
            of = f"the queue {job.queue!r}" if key.startswith(QUEUE_PREFIX) else f"{called(key)!r}"
            message = f"The limit of {of} is reached: {_WORDS[gate.strategy]}."
            yield Reason("limit", message, until=format_optional(gate.opens_at))
