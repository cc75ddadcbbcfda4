"""Commands for the recorded history of tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ojster.cli.options import Command, ask, examples, with_json, with_url
from ojster.cli.output import print_json, print_table
from ojster.core.outcome import Outcome
from ojster.insight.task_values import TaskFilter


@click.group(
    epilog=examples(
        "ojster tasks statistics",
        "ojster tasks statistics --type package.test --subject core",
        "ojster tasks runs --type package.test --outcome failure",
    )
)
def tasks() -> None:
    """Show the recorded runs of tasks: jobs with the reaction `record`, by type, subject and context."""


def _with_filter(command: Command) -> Command:
    result: Command = command
    options: list[Callable[[Command], Any]] = [
        click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True),
        click.option("--context", help="Only runs in this context."),
        click.option("--subject", help="Only runs about this subject."),
        click.option("--type", help="Only runs of this job type."),
    ]
    for option in options:
        result = option(result)
    return result


@tasks.command("runs", epilog=examples("ojster tasks runs --type package.test --outcome failure"))
@_with_filter
@click.option("--outcome", type=click.Choice([one.value for one in Outcome]), help="Only runs with this outcome.")
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
    chosen = TaskFilter(type, subject, context, None if outcome is None else Outcome(outcome), limit)
    found = ask(url, lambda client: client.tasks.runs(chosen))
    if as_json:
        print_json({"runs": found})
        return
    rows = [
        (
            one.task.type,
            one.task.subject,
            one.task.context,
            one.outcome.value,
            one.finished_at,
            f"{one.duration:.3f} s",
            one.attempts,
            one.job_id,
        )
        for one in found
    ]
    head = ("type", "subject", "context", "outcome", "ended", "ran", "# attempts", "job")
    print_table(head, rows, "There are no recorded runs.")


@tasks.command("statistics", epilog=examples("ojster tasks statistics --type package.test"))
@_with_filter
@with_url
@with_json
def list_statistics(
    type: str | None, subject: str | None, context: str | None, limit: int, url: str, as_json: bool
) -> None:
    """List how often tasks succeeded and failed, and their durations."""
    found = ask(url, lambda client: client.tasks.statistics(TaskFilter(type, subject, context, None, limit)))
    if as_json:
        print_json({"statistics": found})
        return
    rows = [
        (
            one.task.type,
            one.task.subject,
            one.task.context,
            one.runs,
            "" if one.success_rate is None else f"{one.success_rate:.0%}",
            one.failures,
            one.errors,
            one.skipped,
            "" if one.average_duration is None else f"{one.average_duration:.3f} s",
            "" if one.longest_duration is None else f"{one.longest_duration:.3f} s",
            one.last_failure_at,
        )
        for one in found
    ]
    head = ("type", "subject", "context", "# runs", "rate", "# failures", "# errors", "# skipped", "average", "longest")
    print_table((*head, "last failure"), rows, "There are no recorded runs.")
