"""Commands that list the steps of a workflow, and export them as its history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import click

from ojster.cli.declared import PLACE
from ojster.cli.export import LineFormat, with_format, write_rows
from ojster.cli.options import ask, examples, with_json, with_url
from ojster.cli.output import Id, print_json, print_table
from ojster.cli.workflow_selection import takes_workflow
from ojster.client.interface import Client
from ojster.core.csv_text import Row
from ojster.workflows.read.rows import STEP_ROW, step_row
from ojster.workflows.read.step_pages import DEFAULT_STEPS, MOST_STEPS, STEP_STATES, StepFilter

ID: Final = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"


@click.command(
    "steps",
    epilog=examples(f"ojster workflows steps {ID} --state failed", f"ojster workflows steps {ID} --search mail --json"),
)
@takes_workflow()
@with_url
@click.option("--state", "-s", type=click.Choice(sorted(STEP_STATES)), help="Only steps in this state.")
@click.option("--held", is_flag=True, help="Only steps that wait for an answer, a time or a resumption.")
@click.option("--search", default="", metavar="TEXT", help="Only steps with this text in their name or type.")
@click.option("--after", type=PLACE, default=0, help="Go on after this number, which a page ends with.")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, MOST_STEPS),
    default=DEFAULT_STEPS,
    show_default=True,
    help="Maximum number to list.",
)
@with_json
def show_steps(
    workflow_id: str, url: str, state: str | None, held: bool, search: str, after: int, limit: int, as_json: bool
) -> None:
    """List the steps of a workflow, in the order of their creation."""
    chosen = StepFilter(workflow_id, state, after, limit, is_held=held, search=search)
    page = ask(url, lambda client: client.workflows.steps(chosen))
    if as_json:
        print_json({"steps": page.steps, "next_after": page.next_after})
        return
    rows = [
        (
            step.path,
            step.display_name or step.type,
            step.job_state or step.state,
            step.job_id and Id(step.job_id),
            step.attempt,
        )
        for step in page.steps
    ]
    print_table(("step", "type", "state", "job", "# attempt"), rows, "There are no such steps.")
    if page.next_after is not None:
        click.echo(f"There are more: --after {page.next_after}", err=True)


@click.command("export", epilog=examples(f"ojster workflows export {ID} --format csv > history.csv"))
@takes_workflow()
@with_format
@with_url
def export_workflow(workflow_id: str, format: LineFormat, url: str) -> None:
    """Print the history of a workflow: each step, with its times, its error and who decided."""

    async def pages(client: Client) -> AsyncIterator[list[Row]]:
        after: int | None = 0
        while after is not None:
            page = await client.workflows.steps(StepFilter(workflow_id, after=after, limit=MOST_STEPS))
            yield [step_row(step) for step in page.steps]
            after = page.next_after

    ask(url, lambda client: write_rows(format, STEP_ROW, pages(client)))
