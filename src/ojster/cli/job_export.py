"""The command that exports jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import click

from ojster.cli.export import LineFormat, with_format, write_rows
from ojster.cli.job_selection import found_by
from ojster.cli.options import ask, examples, with_url
from ojster.cli.output import job_json
from ojster.client.interface import Client
from ojster.core.csv_text import Row
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.job_rows import JOB_ROW, row_of
from ojster.jobs.queries import LARGEST_PAGE, Page


@click.command(
    "export",
    epilog=examples("ojster jobs export --state discarded --format csv > dead.csv", "ojster jobs export > jobs.jsonl"),
)
@with_url
@found_by
@with_format
def export_jobs(url: str, format: LineFormat, **filters: Any) -> None:
    """Print all jobs that match, the newest first: as lines of JSON, or as CSV."""
    chosen = JobFilter(**filters)

    async def pages(client: Client) -> AsyncIterator[list[Row]]:
        before = None
        while True:
            wanted = Page(LARGEST_PAGE, before=before, is_bounded=True, is_counted=False)
            page = await client.jobs.select(chosen, wanted)
            yield [row_of(bytes(job_json(job))) for job in page.jobs]
            if page.next_before is None:
                return
            before = page.next_before

    ask(url, lambda client: write_rows(format, JOB_ROW, pages(client)))
