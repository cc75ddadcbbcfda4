"""Options that select jobs, in lists, in exports and for what is done with many of them."""

from __future__ import annotations

from typing import Any, Final

import click

from ojster.cli.declared import Command, together
from ojster.core.states import JobState

_STATES: Final = [state.value for state in JobState]


def _several(*names: str, help: str) -> Command:
    """Return an option that may be given several times; a job must then have one of the values."""

    def value_of(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> Any:
        return values[0] if len(values) == 1 else values or None

    return click.option(*names, multiple=True, callback=value_of, help=f"{help}; repeatable.")


found_by: Final = together(
    click.option(
        "--state", "-s", "states", multiple=True, type=click.Choice(_STATES), help="Only in this state; repeatable."
    ),
    _several("--queue", "-q", help="Only jobs of this queue"),
    _several("--type", "-t", "type", help="Only jobs of this type, which may end in '*'"),
    _several("--error-type", help="Only jobs with a last error of this type, which may end in '*'"),
    click.option("--error-text", help="Only jobs with this text in the type or message of their last error."),
    _several("--cron", "cron_name", help="Only jobs of this cron job"),
    _several("--worker", help="Only jobs that this worker runs or has ended"),
    _several("--workflow", help="Only steps of the workflow with this id"),
    _several("--tag", help="Only jobs with this tag"),
    click.option(
        "--where",
        multiple=True,
        metavar="MEMBER=VALUE",
        help="Only jobs with this member of arguments or metadata (args.order_id=42); repeatable: with all.",
    ),
)
"""Adds the options that select jobs."""
