"""Endpoints for dead letters.

Spec: ojs-http-binding 12
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.access import CANCEL
from ojster.core.job import Job
from ojster.core.timestamps import format_timestamp
from ojster.jobs.answer_wire import DeletedJobAnswer, JobPageAnswer, RevivedAnswer
from ojster.jobs.filters import filter_of
from ojster.jobs.interventions import DeadLetterRetry
from ojster.jobs.job_json import to_json
from ojster.jobs.wire import DEAD_LETTER_RETRY, DeadLetterRetryBody
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.jobs import job_page
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, PAGE, Route


async def list_dead_letters(request: HttpRequest) -> Answer:
    """List the dead letters (kept jobs with exhausted retries), newest first, optionally only some."""
    query = request.query
    given = {name: query[name] for name in _FILTERS if name in query}
    chosen = msgspec.structs.replace(filter_of(given), dead=True)
    return await job_page(request, chosen)


async def retry_dead_letter(request: HttpRequest) -> Answer:
    """Run a discarded job again with attempts and errors reset; ``override`` replaces arguments or options."""
    job = await retried_dead_letter(request)
    at = format_timestamp(job.enqueued_at or 0).encode()
    return Answer(b'{"job":%b,"re_enqueued_at":"%b"}' % (to_json(job), at))


async def retried_dead_letter(request: HttpRequest) -> Job:
    """Run the discarded job in the path again, with the overrides of the optional body."""
    id, raw = request.path["id"], await request.body()
    override = request.decode(raw, DEAD_LETTER_RETRY).override if raw.strip() else None
    if override is None:
        return await request.service.jobs.retry_dead(id)
    revival = DeadLetterRetry(id, override.args, override.queue, override.meta, override.retry)
    return await request.service.jobs.retry_dead(id, revival)


async def delete_dead_letter(request: HttpRequest) -> Answer:
    """Delete a discarded job permanently."""
    job = await request.service.jobs.delete_dead(request.path["id"])
    return Answer(encode(DeletedJobAnswer(job.id)))


_TAG: Final = "Dead letters"

_TIMES: Final = ("since", "until", "discarded_after", "discarded_before")

_FILTERS: Final[tuple[str, ...]] = ("queue", "type", "error_type", *_TIMES)
"""Query parameters that select dead letters; ``since`` and ``until`` are about their creation."""

ROUTES: Final = (
    Route("GET", f"{BASE}/dead-letter", list_dead_letters, _TAG, None, JobPageAnswer, query=(*_FILTERS, *PAGE)),
    Route(
        "POST",
        f"{BASE}/dead-letter/{{id}}/retry",
        retry_dead_letter,
        _TAG,
        DeadLetterRetryBody,
        RevivedAnswer,
        may_be_empty=True,
        needs=CANCEL,
    ),
    Route("DELETE", f"{BASE}/dead-letter/{{id}}", delete_dead_letter, _TAG, answer=DeletedJobAnswer),
)
