"""The command that deletes finished workflows for good."""

from __future__ import annotations

from typing import Any, Final

import click

from ojster.cli.options import ask, examples, with_json, with_url
from ojster.cli.workflow_selection import refuse_selection, sweep_workflows, sweeps_workflows, takes_workflow
from ojster.workflows.bulk import WorkflowAction

ID: Final = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"


@click.command(
    "delete",
    epilog=examples(
        f"ojster workflows delete {ID}",
        "ojster workflows delete --meta customer=42 --dry-run",
        "ojster workflows delete --type flow --older-than P1Y",
    ),
)
@takes_workflow(required=False)
@sweeps_workflows
@with_url
@with_json
def delete_workflows(workflow_id: str | None, url: str, as_json: bool, **filters: Any) -> int:
    """Delete a workflow, or all selected ones that have finished, for good, with all that they and their jobs left."""
    if workflow_id is not None:
        refuse_selection({name: value for name, value in filters.items() if name != "dry_run"})
        ask(url, lambda client: client.workflows.show(workflow_id, steps=False))  # one that is unknown is no success
        filters["ids"] = (workflow_id,)
    return sweep_workflows(WorkflowAction.DELETE, url, as_json, filters)
