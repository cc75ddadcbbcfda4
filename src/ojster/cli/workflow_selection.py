"""Arguments and options that select workflows."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, get_args

import click

from ojster.cli.declared import Command, IsoSpan, together
from ojster.cli.options import ask, moment_at, parameters
from ojster.cli.sweeps import sweep
from ojster.client.interface import Client
from ojster.core.ids import ids_beginning_with, is_job_id
from ojster.jobs.sweeps import Sweep
from ojster.workflows.bulk import WorkflowAction
from ojster.workflows.plan.rules import CONTAINERS
from ojster.workflows.read.selection import WorkflowConditions
from ojster.workflows.stored_workflow import ALL_STATES
from ojster.workflows.wait import WaitingFor

chooses_workflows: Final = together(
    click.option(
        "--state", "-s", "states", multiple=True, type=click.Choice(ALL_STATES), help="Only in this state; repeatable."
    ),
    click.option("--id", "ids", multiple=True, help="Only the workflow with this id; repeatable."),
    click.option("--type", "-t", type=click.Choice(sorted(CONTAINERS)), help="Only workflows of this type."),
    click.option("--name", help="Only workflows of this name."),
    click.option("--definition", help="Only workflows of this definition."),
    click.option("--target", help="Only workflows with this target."),
    click.option("--cron", "cron_name", help="Only workflows that this cron job has started."),
    click.option(
        "--param", "-p", multiple=True, metavar="NAME=VALUE", help="Only with this parameter; JSON or a string."
    ),
    click.option(
        "--meta", multiple=True, metavar="NAME=VALUE", help="Only with this member of the metadata; JSON or a string."
    ),
    click.option("--waiting-for", type=click.Choice(get_args(WaitingFor)), help="Only workflows that wait for this."),
    click.option(
        "--older-than",
        type=IsoSpan(takes_never=False),
        metavar="DURATION",
        help="Only workflows older than this (PT1H).",
    ),
)
"""Adds the options that select workflows."""

sweeps_workflows: Final = together(
    chooses_workflows,
    click.option("--dry-run", is_flag=True, help="Only print what would be done."),
    click.option("--yes", "-y", is_flag=True, help="Skip the confirmation."),
)
"""Adds the options that select workflows for a bulk operation, ``--dry-run`` and ``--yes``."""


def takes_workflow(*, required: bool = True) -> Callable[[Command], Command]:
    """Add the argument ``workflow_id``: an id, or the beginning of one with which no other id begins."""

    def add(function: Command) -> Command:
        @functools.wraps(function)
        def call(*args: Any, workflow_id: str | None, url: str, **more: Any) -> Any:
            if workflow_id is not None and not is_job_id(workflow_id) and ids_beginning_with(workflow_id) is not None:
                start = workflow_id
                workflow_id = ask(url, lambda client: client.workflows.show(start, steps=False)).id
            return function(*args, workflow_id=workflow_id, url=url, **more)

        return click.argument("workflow_id", required=required)(call)

    return add


def selected(url: str, filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of the filter that the options describe."""
    members = {name: value for name, value in filters.items() if name not in ("param", "meta", "older_than")}
    if filters["older_than"] is not None:
        members["created_before"] = moment_at(url, filters["older_than"])
    params, metadata = (parameters(filters[name]) for name in ("param", "meta"))
    return members | {"params": params, "metadata": metadata}


def sweep_workflows(
    action: WorkflowAction, url: str, as_json: bool, filters: dict[str, Any], step: str | None = None, **more: Any
) -> int:
    """Apply an action to all selected workflows, and print the outcome; return the exit status.

    Parameters
    ----------
    filters:
        The options that ``sweeps_workflows`` adds.
    step:
        The option ``--step``, which belongs to one workflow.
    more:
        Arguments of the call.
    """
    if step is not None:
        raise click.UsageError("--step needs a workflow id.")
    yes, dry_run = filters.pop("yes"), filters.pop("dry_run")
    chosen = WorkflowConditions(**selected(url, filters))
    if chosen == WorkflowConditions():
        raise click.UsageError(
            "Select workflows with a workflow id, --state, --type, --name, --definition, --target, --cron, --param, "
            "--meta, --waiting-for or --older-than."
        )

    def call(client: Client, foresees: bool) -> Awaitable[Sweep]:
        made: Awaitable[Sweep] = getattr(client.workflow_bulk, action)(chosen, dry_run=foresees, **more)
        return made

    return sweep(action, "workflow", url, call, yes=yes, dry_run=dry_run, as_json=as_json)


def refuse_selection(filters: Mapping[str, Any]) -> None:
    """Refuse options that select workflows beside the id of one."""
    if any(value for name, value in filters.items() if name != "yes"):
        raise click.UsageError("A workflow id selects one workflow. Leave out the options that select others.")
