"""Commands for dead letters."""

from __future__ import annotations

import click

from ojster.cli.option_rules import excludes
from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import print_page
from ojster.cli.sweeps import sweep
from ojster.client.interface import Client
from ojster.core.states import JobState
from ojster.jobs.bulk import Action
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page


@click.group("dead-letter", epilog=examples("ojster dead-letter list", "ojster dead-letter retry ID"))
def dead_letter() -> None:
    """List, retry and delete dead letters."""


@dead_letter.command("list", epilog=examples("ojster dead-letter list", "ojster dead-letter list --queue email --json"))
@with_url
@click.option("--queue", "-q", help="Only jobs of this queue.")
@click.option("--type", "-t", help="Only jobs of this type; it may end in '*'.")
@click.option("--error-type", help="Only jobs with a last error of this type; it may end in '*'.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 200), default=20, show_default=True, help="Maximum number to list."
)
@with_json
def list_letters(
    url: str, queue: str | None, type: str | None, error_type: str | None, limit: int, as_json: bool
) -> None:
    """List dead letters: failed jobs that are kept for inspection and retry."""
    chosen = JobFilter(dead=True, queue=queue, type=type, error_type=error_type)
    page = ask(url, lambda client: client.jobs.select(chosen, Page(limit)))
    print_page(page, as_json, "There are no dead letters.")


@dead_letter.command(
    "retry",
    epilog=examples(
        "ojster dead-letter retry 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "ojster dead-letter retry --all --queue email",
        "ojster dead-letter retry --all --error-type 'Smtp*'",
    ),
)
@click.argument("job_ids", nargs=-1)
@click.option("--all", "retry_all", is_flag=True, help="Retry all that match the other options.")
@click.option("--queue", "-q", help="With --all: only jobs of this queue.")
@click.option("--type", "-t", help="With --all: only jobs of this type; it may end in '*'.")
@click.option("--error-type", help="With --all: only jobs with a last error of this type; it may end in '*'.")
@with_url
@with_json
@excludes("job_ids", "queue", "type", "error_type")
def retry_letters(
    job_ids: tuple[str, ...],
    retry_all: bool,
    queue: str | None,
    type: str | None,
    error_type: str | None,
    url: str,
    as_json: bool,
) -> int:
    """Retry dead letters with all their attempts; earlier errors stay in their history."""
    if bool(job_ids) == retry_all:
        raise click.UsageError("Give either job ids or --all.")
    if retry_all:
        states = (JobState.DISCARDED.value,)
        chosen = JobFilter(states=states, dead=True, queue=queue, type=type, error_type=error_type)
        return sweep(
            Action.RETRY,
            "dead letter",
            url,
            lambda client, _: client.bulk.sweep(Action.RETRY, chosen),
            yes=True,
            dry_run=False,
            as_json=as_json,
        )

    async def retry(client: Client) -> None:
        for job_id in job_ids:
            await client.jobs.retry_dead(job_id)

    ask(url, retry)
    done(f"{len(job_ids)} jobs are available again.", as_json, {"retried": list(job_ids)})
    return 0


@dead_letter.command("delete", epilog=examples("ojster dead-letter delete 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"))
@click.argument("job_ids", nargs=-1, required=True)
@with_url
@with_json
def delete_letters(job_ids: tuple[str, ...], url: str, as_json: bool) -> None:
    """Delete dead letters permanently."""

    async def delete(client: Client) -> None:
        for job_id in job_ids:
            await client.jobs.delete_dead(job_id)

    ask(url, delete)
    done(f"{len(job_ids)} dead letters are deleted.", as_json, {"deleted": list(job_ids)})
