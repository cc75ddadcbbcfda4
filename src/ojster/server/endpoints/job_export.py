"""The endpoint that exports a list of jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from ojster.core.csv_text import Row
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.filters import filter_of
from ojster.jobs.job_json import to_json
from ojster.jobs.job_rows import JOB_ROW, row_of
from ojster.jobs.queries import LARGEST_PAGE, Page
from ojster.server.answer import Answer
from ojster.server.endpoints.jobs import LIST_FILTERS
from ojster.server.export import FORMAT, exported, format_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def export_jobs(request: HttpRequest) -> Answer:
    """Export all jobs that match, the newest first, as a file: ``format`` is ``csv`` or ``json``.

    The conditions are those of the list of jobs. In CSV, a text with which a spreadsheet would begin a formula has an
    apostrophe in front.
    """
    chosen = filter_of({name: request.query.get(name) for name in LIST_FILTERS})
    return await exported(format_of(request.query), "jobs", JOB_ROW, _pages(request, chosen))


async def _pages(request: HttpRequest, chosen: JobFilter) -> AsyncGenerator[list[Row], None]:
    before = None
    while True:
        wanted = Page(LARGEST_PAGE, before=before, is_bounded=True, is_counted=False)
        page = await request.service.jobs.select(chosen, wanted)
        yield [row_of(to_json(job)) for job in page.jobs]
        if page.next_before is None:
            return
        before = page.next_before


ROUTES: Final = (Route("GET", f"{BASE}/job-export", export_jobs, "Jobs", query=(*LIST_FILTERS, *FORMAT), exports=True),)
