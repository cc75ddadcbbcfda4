"""The command that deletes finished workflows for good."""

from __future__ import annotations

from typing import Any

import click

from ojster.cli.options import examples, with_json, with_url
from ojster.cli.workflow_selection import sweep_workflows, sweeps_workflows
from ojster.workflows.bulk import WorkflowAction


@click.command(
    "delete",
    epilog=examples(
        "ojster workflows delete --param customer=42 --dry-run", "ojster workflows delete --type flow --older-than P1Y"
    ),
)
@sweeps_workflows
@with_url
@with_json
def delete_workflows(url: str, as_json: bool, **filters: Any) -> int:
    """Delete the selected workflows that have finished, for good, with all that they and their jobs have left."""
    return sweep_workflows(WorkflowAction.DELETE, url, as_json, filters)
