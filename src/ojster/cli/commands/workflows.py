"""Commands that start, follow and manage workflows."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from ojster.cli.application import with_codecs
from ojster.cli.declared import NUMBER, Seconds
from ojster.cli.forks import fork_one
from ojster.cli.option_rules import excludes
from ojster.cli.options import (
    ask,
    done,
    examples,
    parameter,
    parameters,
    read_file,
    resumption,
    with_json,
    with_url,
)
from ojster.cli.output import Id, ago, console, print_json, print_list, print_table
from ojster.cli.workflow_deletion import delete_workflows
from ojster.cli.workflow_file import SUFFIXES, named_start, read_start
from ojster.cli.workflow_selection import (
    chooses_workflows,
    refuse_selection,
    selected,
    sweep_workflows,
    sweeps_workflows,
    takes_workflow,
)
from ojster.cli.workflow_steps import export_workflow, show_steps
from ojster.cli.workflow_tree import MAX_SHOWN_CHILDREN, follow, shown_state, status_lines
from ojster.client.interface import Client
from ojster.core.errors import NotFound
from ojster.core.json_objects import read_members
from ojster.core.property_values import Changes
from ojster.core.settings import ServiceSettings
from ojster.core.timestamps import parse_timestamp
from ojster.handlers.codec import Codecs
from ojster.workflows.bulk import WorkflowAction
from ojster.workflows.plan.request import refuse_unknown
from ojster.workflows.properties import PropertyChange
from ojster.workflows.read.drawing import draw
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.preview import preview
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.run.control import Review
from ojster.workflows.run.dependencies import NewDependencies
from ojster.workflows.run.steps import StepAddress
from ojster.workflows.run.suspensions import WorkflowResumption
from ojster.workflows.stored_workflow import ALL_STATES

ID: Final = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"


@click.group(
    commands=[delete_workflows, export_workflow, show_steps],
    epilog=examples(
        "ojster workflows start nightly.yaml --param day=2026-11-21 --watch",
        "ojster workflows show ID --watch",
        "ojster workflows approve ID release --notes 'looks good'",
    ),
)
def workflows() -> None:
    """Start, list, show, draw, approve, reject, hold, release, resume, retry, cancel and delete workflows."""


@workflows.command(
    epilog=examples(
        "ojster workflows start nightly.yaml",
        "ojster workflows start order.json --param order_id=42 --watch",
        "generate-workflow | ojster workflows start -",
        "ojster workflows start gist --param description=demo --watch",
        "ojster workflows start backup --target /db/1 --locks '^/db/1/(modify|destroy)$'",
        "ojster workflows start report --delay 3600 --property tries=0",
    )
)
@click.argument("workflow")
@with_url
@click.option(
    "--param", "-p", "params", multiple=True, metavar="NAME=VALUE", help="Parameter; JSON or a string; repeatable."
)
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Initial shared property; JSON or a string."
)
@click.option("--name", help="Name of the workflow.")
@click.option("--delay", type=Seconds(0), metavar="SECONDS", help="Delay before the start.")
@click.option("--version", "-V", type=NUMBER, help="Version of the definition; by default the latest.")
@click.option(
    "--target",
    help="Resource of a workflow of a definition; no two unfinished ones have the same target and parameters.",
)
@click.option("--locks", metavar="REGEX", help="Block workflows with a matching target until it finishes.")
@click.option("--watch", "-w", is_flag=True, help="Follow it until it finishes; exit with 1 unless it completes.")
@with_json
def start(
    workflow: str,
    url: str,
    params: tuple[str, ...],
    properties: tuple[str, ...],
    watch: bool,
    as_json: bool,
    **more: Any,
) -> int:
    """Start WORKFLOW: a JSON or YAML file, '-' for the standard input, or the name of a definition."""
    values = {"params": parameters(params), "properties": parameters(properties)}
    is_file = workflow == "-" or "/" in workflow or Path(workflow).suffix in SUFFIXES or Path(workflow).is_file()
    members = read_start(Path(workflow), values, **more) if is_file else named_start(workflow, values, more)

    async def create(client: Client) -> WorkflowInfo:
        try:
            return await client.workflows.create(members)
        except NotFound as error:
            hint = "" if is_file else f" There is no file {workflow} either. Check the name, or the path."
            raise NotFound(error.message + hint, **error.details) from None

    return follow(url, create, watch=watch, as_json=as_json, whole=False, makes=is_file)


@workflows.command(
    "list", epilog=examples("ojster workflows list --state failed", "ojster workflows list --name nightly")
)
@chooses_workflows
@with_url
@click.option(
    "--limit", "-n", type=click.IntRange(1, 200), default=20, show_default=True, help="Maximum number to list."
)
@with_json
def list_workflows(url: str, as_json: bool, limit: int, **filters: Any) -> None:
    """List workflows, newest first."""
    wanted = WorkflowFilter(**selected(url, filters), limit=limit)
    page = ask(url, lambda client: client.workflows.select(wanted))
    if as_json:
        print_json({"workflows": page.workflows, "total": page.total})
        return
    print_table(
        ("id", "name", "type", "state", "# jobs", "# done", "# failed", "created", "error"),
        [
            (
                Id(workflow.id),
                workflow.name,
                workflow.kind or workflow.type,
                shown_state(workflow.state, ", ".join([*(["held"] if workflow.held else []), *workflow.waiting_for])),
                workflow.metadata.get("job_count"),
                workflow.metadata.get("completed_count"),
                workflow.metadata.get("failed_count"),
                *(ago(parse_timestamp(workflow.created_at)), workflow.error and workflow.error.message[:80]),
            )
            for workflow in page.workflows
        ],
        "There are no such workflows.",
    )
    if page.total > len(page.workflows):
        console.print(f"{len(page.workflows)} of {page.total}", style="bright_black")


@workflows.command(epilog=examples(f"ojster workflows show {ID}", f"ojster workflows show {ID} --watch"))
@takes_workflow()
@with_url
@click.option("--watch", "-w", is_flag=True, help="Follow it until it finishes; exit with 1 unless it completes.")
@click.option("--all", "whole", is_flag=True, help=f"Show all steps, not just {MAX_SHOWN_CHILDREN} per container.")
@with_json
def show(workflow_id: str, url: str, watch: bool, whole: bool, as_json: bool) -> int:
    """Show a workflow as a tree, with the state of each step."""
    return follow(
        url, lambda client: client.workflows.show(workflow_id), watch=watch, as_json=as_json, whole=whole, makes=False
    )


@workflows.command(
    "draw",
    epilog=examples(
        f"ojster workflows draw {ID} > run.mmd",
        f"ojster workflows draw {ID} --svg > run.svg",
        "ojster workflows draw --file nightly.yaml --svg > nightly.svg",
    ),
)
@takes_workflow(required=False)
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Draw the workflow in this file."
)
@click.option("--svg", is_flag=True, help="Print an SVG document instead of a Mermaid diagram.")
@with_url
@excludes("file", "url")
def draw_workflow(workflow_id: str | None, file: Path | None, svg: bool, url: str) -> None:
    """Draw a workflow, or the workflow in a file."""
    if (workflow_id is None) == (file is None):
        raise click.UsageError("Give either a workflow id or --file.")
    if file is not None:
        wire = read_file(file)
        refuse_unknown(read_members(msgspec.json.encode(wire), str(file)), 0, largest=ServiceSettings().largest_job)
        workflow = preview(wire)
    else:
        workflow = ask(url, lambda client: client.workflows.show(workflow_id or ""))
        if workflow.steps_omitted:
            raise click.ClickException("It has too many steps to be drawn. List them: ojster workflows steps.")
    click.echo(draw(workflow, "svg" if svg else "mermaid"), nl=False)


def _add_review_command(name: str, action: Any, verb: str, help: str) -> None:
    @workflows.command(name, help=help, epilog=examples(f"ojster workflows {name} {ID} release --notes 'because'"))
    @takes_workflow()
    @click.argument("step")
    @with_url
    @click.option("--notes", "-m", help="Text of the note.")
    @click.option("--as", "author", default=getpass.getuser, help="Author; by default your user name.")
    @with_json
    def command(workflow_id: str, step: str, url: str, notes: str | None, author: str, as_json: bool) -> None:
        workflow = ask(
            url, lambda client: client.workflows.review_step(Review(workflow_id, step, action, notes, author))
        )
        done(f"The step {step} of {workflow_id} is {verb}.", as_json, workflow)


_add_review_command("approve", "approve", "approved", "Approve STEP, a path. The step must wait for an approval.")
_add_review_command("reject", "reject", "rejected", "Reject STEP, a path. The step is cancelled.")
_add_review_command("note", None, "noted", "Add a note to STEP, a path, without a decision.")


def _add_workflow_command(
    action: WorkflowAction, call: Callable[[Client, str], Awaitable[WorkflowInfo]], help: str
) -> None:
    @workflows.command(
        action.value,
        help=help,
        epilog=examples(f"ojster workflows {action} {ID}", f"ojster workflows {action} --name nightly --dry-run"),
    )
    @takes_workflow(required=False)
    @sweeps_workflows
    @with_url
    @with_json
    def command(workflow_id: str | None, url: str, as_json: bool, **filters: Any) -> int:
        if workflow_id is None:
            return sweep_workflows(action, url, as_json, filters)
        refuse_selection(filters)
        workflow = ask(url, lambda client: call(client, workflow_id))
        done(f"{workflow_id} is {action.past}.", as_json, workflow)
        return 0


_add_workflow_command(
    WorkflowAction.HOLD,
    lambda client, workflow_id: client.workflows.hold(workflow_id),
    "Start no further steps of a workflow, or of all selected workflows, until released.",
)
_add_workflow_command(
    WorkflowAction.RELEASE,
    lambda client, workflow_id: client.workflows.release(workflow_id),
    "Release a held workflow, or all selected workflows that are held.",
)


@workflows.command(
    epilog=examples(
        f"ojster workflows retry {ID}",
        f"ojster workflows retry {ID} --step build.2   # while others run",
        "ojster workflows retry --name nightly --older-than PT1H --dry-run",
    )
)
@takes_workflow(required=False)
@sweeps_workflows
@with_url
@click.option("--step", help="Retry only the step with this path, and everything after it.")
@with_json
def retry(workflow_id: str | None, url: str, step: str | None, as_json: bool, **filters: Any) -> int:
    """Retry the unsuccessful steps of a workflow, or of all selected ones, by default failed or compensated."""
    if workflow_id is None:
        return sweep_workflows(WorkflowAction.RETRY, url, as_json, filters, step=step)
    refuse_selection(filters)
    if step is None:
        workflow = ask(url, lambda client: client.workflows.retry(workflow_id))
    else:
        workflow = ask(url, lambda client: client.workflows.retry_step(StepAddress(workflow_id, step)))
    done(f"{workflow_id if step is None else f'The step {step}'} runs again.", as_json, workflow)
    return 0


@workflows.command(
    "fork",
    epilog=examples(
        f"ojster workflows fork {ID} --from-step charge",
        f"ojster workflows fork {ID} --from-step build.2 --args '[42]'",
        f"ojster workflows fork {ID} --args '[\"4111\"]' --app shop.app:app   # encrypted, as the application does",
        f"ojster workflows fork {ID} --from-step charge --dry-run   # what runs again",
        "ojster workflows fork --name nightly --from-step charge --dry-run",
    ),
)
@with_codecs
@takes_workflow(required=False)
@sweeps_workflows
@with_url
@click.option("--from-step", help="Path of the step, or of a flow the key of what it asked for. Default: the start.")
@click.option("--args", help="New arguments of the step, or of a flow: a JSON array.")
@click.option("--result", help="Result of the step, which then does not run: JSON, otherwise a string.")
@with_json
@excludes("result", "args")
def fork_workflow(
    workflow_id: str | None, url: str, from_step: str | None, codecs: Codecs, as_json: bool, **filters: Any
) -> int:
    """Run a workflow, or all selected ones, again from a step on, as new workflows that keep what had ended before."""
    args, result = filters.pop("args"), filters.pop("result")
    if workflow_id is None:
        if args is not None or result is not None:
            raise click.UsageError("--args and --result need a workflow id.")
        return sweep_workflows(WorkflowAction.FORK, url, as_json, filters, from_step=from_step)
    dry_run = filters.pop("dry_run")
    refuse_selection(filters)
    return fork_one(url, workflow_id, from_step, args, result, codecs, dry_run=dry_run, as_json=as_json)


@workflows.command(epilog=examples(f"ojster workflows depend {ID} publish --on scan --on sign"))
@takes_workflow()
@click.argument("step")
@with_url
@click.option("--on", "others", multiple=True, required=True, help="Id of a step to wait for; can be repeated.")
@with_json
def depend(workflow_id: str, step: str, url: str, others: tuple[str, ...], as_json: bool) -> None:
    """Let a step of a graph that has not started wait for others, too."""
    item = NewDependencies(workflow_id, step, others)
    workflow = ask(url, lambda client: client.workflows.add_dependencies(item))
    done(f"The step {step} waits for {', '.join(others)}, too.", as_json, workflow)


@workflows.command(
    epilog=examples(
        f"ojster workflows cancel {ID}",
        f"ojster workflows cancel {ID} --step build.2   # only that",
        "ojster workflows cancel --name nightly --older-than P1D --dry-run",
    )
)
@takes_workflow(required=False)
@sweeps_workflows
@with_url
@click.option("--step", help="Cancel only the step with this path and all steps inside it, active jobs too.")
@click.option("--active", is_flag=True, help="Cancel active jobs, too. By default they may finish.")
@with_json
@excludes("step", "active")
def cancel(workflow_id: str | None, url: str, step: str | None, active: bool, as_json: bool, **filters: Any) -> int:
    """Cancel a workflow, or all selected ones, by default pending or running: no further step starts."""
    if workflow_id is None:
        return sweep_workflows(WorkflowAction.CANCEL, url, as_json, filters, step=step, stop_active=active)
    refuse_selection(filters)
    if step is None:
        workflow = ask(url, lambda client: client.workflows.cancel(workflow_id, stop_active=active))
    else:
        workflow = ask(url, lambda client: client.workflows.cancel_step(StepAddress(workflow_id, step)))
    done(f"{workflow_id if step is None else f'The step {step}'} is cancelled.", as_json, workflow)
    return 0


@workflows.command(epilog=examples(f"ojster workflows terminate {ID}"))
@takes_workflow()
@with_url
@with_json
def terminate(workflow_id: str, url: str, as_json: bool) -> None:
    """End a workflow without letting it clean up: active jobs are stopped, and nothing is compensated."""
    workflow = ask(url, lambda client: client.workflows.terminate(workflow_id))
    done(f"{workflow_id} is terminated.", as_json, workflow)


@workflows.command(
    epilog=examples(
        f"ojster workflows resume {ID}",
        f"ojster workflows resume {ID} --result '{{\"approved\": true}}'",
        f"ojster workflows resume {ID} --step deploy.wait --error 'the ticket was closed'",
    )
)
@takes_workflow()
@with_url
@click.option("--result", help="Result to resume it with: JSON, otherwise a string.")
@click.option("--error", help="Error to resume it with instead; the step fails without a retry.")
@click.option("--step", help="Path of the step to resume; required if several are suspended.")
@with_json
def resume(workflow_id: str, url: str, result: str | None, error: str | None, step: str | None, as_json: bool) -> None:
    """Resume the suspended job of a workflow."""
    item = WorkflowResumption(workflow_id, step, *resumption(result, error))
    done(f"{workflow_id} is resumed.", as_json, ask(url, lambda client: client.workflows.resume(item)))


@workflows.command(epilog=examples(f"ojster workflows status {ID}"))
@takes_workflow()
@with_url
@with_json
def status(workflow_id: str, url: str, as_json: bool) -> None:
    """Show the outcomes of ended steps, by branch and in order of completion, and the current steps."""
    status = ask(url, lambda client: client.workflows.status(workflow_id))
    if as_json:
        print_json(status)
        return
    for line in status_lines(status):
        console.print(line, soft_wrap=True)


@workflows.command("stats", epilog=examples("ojster workflows stats", "ojster workflows stats --definition gist"))
@with_url
@click.option("--definition", help="Only workflows of this definition.")
@with_json
def show_statistics(url: str, definition: str | None, as_json: bool) -> None:
    """Count workflows by state and time of creation; each is in one column."""
    statistics = ask(url, lambda client: client.workflows.statistics(definition))
    columns = (statistics.current, statistics.past_hour, statistics.past_24h, statistics.all_time)
    print_list(
        as_json,
        statistics,
        ("state", "# last hour", "# the hour before", "# last day", "# earlier"),
        [(state, *(column[state] for column in columns)) for state in ALL_STATES],
        "",
    )


@workflows.command(
    "info", epilog=examples(f"ojster workflows info {ID}", f"ojster workflows info {ID} --add 'looked at'")
)
@takes_workflow()
@with_url
@click.option("--add", help="Note to add: JSON, otherwise a string.")
@with_json
def show_notes(workflow_id: str, url: str, add: str | None, as_json: bool) -> None:
    """Show the notes on a workflow and its jobs, oldest first, or add a note."""
    if add is not None:
        note = msgspec.json.encode(parameter(f"x={add}")[1])
        done("Noted.", as_json, ask(url, lambda client: client.notes.add_to_workflow(workflow_id, note)))
        return
    notes = ask(url, lambda client: client.notes.of_workflow(workflow_id))
    rows = [
        (ago(parse_timestamp(note.at)), note.job_id and Id(note.job_id), bytes(note.note).decode()) for note in notes
    ]
    print_list(as_json, {"notes": notes}, ("when", "job", "note"), rows, "There are no notes.")


@workflows.command(
    "properties",
    epilog=examples(
        f"ojster workflows properties {ID}", f"ojster workflows properties {ID} --set tries=0 --delete lock"
    ),
)
@takes_workflow()
@with_url
@click.option("--set", "values", multiple=True, metavar="NAME=VALUE", help="Set a property; JSON or a string.")
@click.option("--delete", "names", multiple=True, metavar="NAME", help="Delete a property; repeatable.")
@with_json
def show_properties(workflow_id: str, url: str, values: tuple[str, ...], names: tuple[str, ...], as_json: bool) -> None:
    """Show or change the properties that the tasks of a workflow share."""
    new_values = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in parameters(values).items()}
    changes = Changes(new_values, names)
    if changes.is_nothing:
        properties = ask(url, lambda client: client.workflows.properties(workflow_id))
    else:
        properties = ask(url, lambda client: client.workflows.change_properties(PropertyChange(workflow_id, changes)))
    rows = [(name, bytes(stored.value).decode(), stored.version) for name, stored in properties.items()]
    print_list(
        as_json, {"properties": properties}, ("name", "value", "# version"), rows, "The workflow has no properties."
    )


# Output
