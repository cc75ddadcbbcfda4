"""Commands for the recorded history of tasks."""

from __future__ import annotations

from typing import Final

import click

from ojster.cli.declared import together
from ojster.cli.options import ask, examples, with_json, with_url
from ojster.cli.output import Id, print_list
from ojster.core.outcome import Outcome


@click.group(
    epilog=examples(
        "ojster tasks statistics",
        "ojster tasks statistics --type package.test --subject core",
        "ojster tasks runs --type package.test --outcome failure",
    )
)
def tasks() -> None:
    """Show the recorded runs of tasks: jobs with the reaction `record`, by type, subject and context."""


_with_filter: Final = together(
    click.option("--type", help="Only runs of this job type."),
    click.option("--subject", help="Only runs about this subject."),
    click.option("--context", help="Only runs in this context."),
    click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True),
)


@tasks.command("runs", epilog=examples("ojster tasks runs --type package.test --outcome failure"))
@_with_filter
@click.option(
    "--outcome", type=click.Choice([outcome.value for outcome in Outcome]), help="Only runs with this outcome."
)
@with_url
@with_json
def list_runs(
    type: str | None,
    subject: str | None,
    context: str | None,
    limit: int,
    outcome: str | None,
    url: str,
    as_json: bool,
) -> None:
    """List recorded runs, latest first: the last success, the last failure and the last five runs of each task."""
    wanted = None if outcome is None else Outcome(outcome)
    runs = ask(url, lambda client: client.tasks.runs(type, subject, context, outcome=wanted, limit=limit))
    rows = [
        (
            run.task.type,
            run.task.subject,
            run.task.context,
            run.outcome.value,
            run.finished_at,
            f"{run.duration:.3f} s",
            run.attempts,
            Id(run.job_id),
        )
        for run in runs
    ]
    head = ("type", "subject", "context", "outcome", "ended", "ran", "# attempts", "job")
    print_list(as_json, {"runs": runs}, head, rows, "There are no recorded runs.")


@tasks.command("statistics", epilog=examples("ojster tasks statistics --type package.test"))
@_with_filter
@with_url
@with_json
def list_statistics(
    type: str | None, subject: str | None, context: str | None, limit: int, url: str, as_json: bool
) -> None:
    """List how often tasks succeeded and failed, and their durations."""
    statistics = ask(url, lambda client: client.tasks.statistics(type, subject, context, limit=limit))
    rows = [
        (
            of_task.task.type,
            of_task.task.subject,
            of_task.task.context,
            of_task.runs,
            "" if of_task.success_rate is None else f"{of_task.success_rate:.0%}",
            of_task.failures,
            of_task.errors,
            of_task.skipped,
            "" if of_task.average_duration is None else f"{of_task.average_duration:.3f} s",
            "" if of_task.longest_duration is None else f"{of_task.longest_duration:.3f} s",
            of_task.last_failure_at,
        )
        for of_task in statistics
    ]
    head = ("type", "subject", "context", "# runs", "rate", "# failures", "# errors", "# skipped", "average", "longest")
    print_list(as_json, {"statistics": statistics}, (*head, "last failure"), rows, "There are no recorded runs.")
