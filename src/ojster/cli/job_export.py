"""The command that exports jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import click

from ojster.cli.export import LineFormat, with_format, write_rows
from ojster.cli.options import ask, examples, with_url
from ojster.cli.output import job_json
from ojster.client.interface import Client
from ojster.core.csv_text import Row
from ojster.core.states import JobState
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.job_rows import JOB_ROW, row_of
from ojster.jobs.queries import LARGEST_PAGE, Page


@click.command(
    "export",
    epilog=examples("ojster jobs export --state discarded --format csv > dead.csv", "ojster jobs export > jobs.jsonl"),
)
@with_url
@click.option("--state", "-s", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state.")
@click.option("--queue", "-q", help="Only jobs of this queue.")
@click.option("--type", "-t", help="Only jobs of this type; it may end in '*'.")
@click.option("--error-type", help="Only jobs with a last error of this type; it may end in '*'.")
@with_format
def export_jobs(
    url: str, state: str | None, queue: str | None, type: str | None, error_type: str | None, format: LineFormat
) -> None:
    """Print all jobs that match, the newest first: as lines of JSON, or as CSV."""
    chosen = JobFilter(states=(state,) if state else (), queue=queue, type=type, error_type=error_type)

    async def pages(client: Client) -> AsyncIterator[list[Row]]:
        before = None
        while True:
            page = await client.jobs.select(chosen, Page(LARGEST_PAGE, before=before))
            yield [row_of(bytes(job_json(job))) for job in page.jobs]
            if page.next_before is None:
                return
            before = page.next_before

    ask(url, lambda client: write_rows(format, JOB_ROW, pages(client)))
