"""How are workflows started, followed and steered from the command line?"""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import ago, console, print_json, print_table
from ojster.client.interface import Client
from ojster.core.settings import Settings
from ojster.core.timestamps import parse_timestamp
from ojster.jobs.failure import Failure
from ojster.jobs.request import read_members
from ojster.workflow import preview
from ojster.workflows.drawing import MARKS, draw
from ojster.workflows.graph import WORKFLOW_STATES
from ojster.workflows.handle import LIVELY_POLL
from ojster.workflows.info import StepInfo, WorkflowInfo
from ojster.workflows.notes import NewNote
from ojster.workflows.plan import CONTAINERS, read_workflow
from ojster.workflows.properties import PropertyChange
from ojster.workflows.property_values import Changes
from ojster.workflows.suspensions import WorkflowResumption
from ojster.workflows.views import WorkflowFilter
from ojster.workflows.workflows import Review, StepAddress

STYLES: Final = {
    "waiting": "bright_black",
    "blocked": "bold magenta",
    "held": "magenta",
    "pending": "blue",
    "running": "bold yellow",
    "compensating": "bold yellow",
    "active": "bold yellow",
    "completed": "green",
    "failed": "bold red",
    "compensated": "yellow",
    "cancelled": "bright_black",
    "retried": "yellow",
    "skipped": "bright_black",
}

MOST_SHOWN: Final = 40
"""How many children of a container are shown, unless all are asked for; completed ones are left out first."""

ID: Final = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"


@click.group(
    epilog=examples(
        "ojster workflows start nightly.yaml --param day=2026-11-21 --watch",
        "ojster workflows show ID --watch",
        "ojster workflows approve ID release --notes 'looks good'",
        "ojster workflows retry ID",
    )
)
def workflows() -> None:
    """Start, list, show, draw, approve, reject, hold, release, resume, retry and cancel workflows."""


@workflows.command(
    epilog=examples(
        "ojster workflows start nightly.yaml",
        "ojster workflows start order.json --param order_id=42 --watch",
        "generate-workflow | ojster workflows start -",
    )
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@with_url
@click.option(
    "--param", "-p", "params", multiple=True, metavar="NAME=VALUE", help="A parameter; JSON, or else a string."
)
@click.option("--name", help="What to call it.")
@click.option("--watch", "-w", is_flag=True, help="Show it until it has finished; exit with 1 if it does not succeed.")
@with_json
def start(file: Path, url: str, params: tuple[str, ...], name: str | None, watch: bool, as_json: bool) -> int:
    """Start the workflow that FILE describes, as JSON or YAML; '-' is the standard input."""
    wire = read_file(file)
    if params:
        wire["params"] = dict(wire.get("params") or {}) | dict(map(parameter, params))
    if name is not None:
        wire["name"] = name
    members = read_members(msgspec.json.encode(wire), str(file))
    return follow(
        url, lambda client: client.create_workflow(members), watch=watch, as_json=as_json, whole=False, makes=True
    )


def read_file(file: Path) -> dict[str, Any]:
    """Return the object that a file describes, as JSON or YAML; '-' is the standard input."""
    text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        wire = msgspec.yaml.decode(text)  # JSON is YAML
    except msgspec.DecodeError as error:
        raise click.UsageError(f"{file} is neither JSON nor YAML: {error}") from None
    if not isinstance(wire, dict):
        raise click.UsageError(f"{file} must be an object, with a 'type' and 'steps' or 'jobs'.")
    return wire


def parameter(text: str) -> tuple[str, Any]:
    """Return the name and the value of ``NAME=VALUE``: JSON, or else a string."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--param must be NAME=VALUE, not {text!r}.")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


@workflows.command(
    "list", epilog=examples("ojster workflows list --state failed", "ojster workflows list --name nightly")
)
@with_url
@click.option("--state", "-s", type=click.Choice(WORKFLOW_STATES), help="Only workflows in this state.")
@click.option("--type", "-t", type=click.Choice(sorted(CONTAINERS)), help="Only workflows of this type.")
@click.option("--name", help="Only workflows of this name.")
@click.option("--definition", help="Only workflows of this definition.")
@click.option("--target", help="Only workflows with this target.")
@click.option("--limit", "-n", type=click.IntRange(1, 200), default=20, show_default=True, help="How many at most.")
@with_json
def list_workflows(url: str, as_json: bool, **chosen: Any) -> None:
    """List workflows, newest first."""
    page = ask(url, lambda client: client.list_workflows(WorkflowFilter(**chosen)))
    if as_json:
        print_json({"workflows": page.workflows, "total": page.total})
        return
    print_table(
        ("id", "name", "type", "state", "# jobs", "# done", "# failed", "created"),
        [
            (
                one.id,
                one.name,
                one.type,
                _state(one.state, "held" if one.held else ""),
                one.metadata.get("job_count"),
                one.metadata.get("completed_count"),
                one.metadata.get("failed_count"),
                ago(parse_timestamp(one.created_at)),
            )
            for one in page.workflows
        ],
        "There are no such workflows.",
    )
    if page.total > len(page.workflows):
        console.print(f"{len(page.workflows)} of {page.total}", style="bright_black")


@workflows.command(epilog=examples(f"ojster workflows show {ID}", f"ojster workflows show {ID} --watch"))
@click.argument("workflow_id")
@with_url
@click.option("--watch", "-w", is_flag=True, help="Show it until it has finished; exit with 1 if it does not succeed.")
@click.option("--all", "whole", is_flag=True, help=f"Show all steps, also of containers with more than {MOST_SHOWN}.")
@with_json
def show(workflow_id: str, url: str, watch: bool, whole: bool, as_json: bool) -> int:
    """Show a workflow as a tree, with the state of each step."""
    return follow(
        url, lambda client: client.show_workflow(workflow_id), watch=watch, as_json=as_json, whole=whole, makes=False
    )


@workflows.command(
    "draw",
    epilog=examples(
        f"ojster workflows draw {ID} > run.mmd",
        f"ojster workflows draw {ID} --svg > run.svg",
        "ojster workflows draw --file nightly.yaml --svg > nightly.svg",
    ),
)
@click.argument("workflow_id", required=False)
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Draw what this file describes."
)
@click.option("--svg", is_flag=True, help="An SVG document, instead of the text of a Mermaid diagram.")
@with_url
def draw_workflow(workflow_id: str | None, file: Path | None, svg: bool, url: str) -> None:
    """Draw a workflow, or one that was not started yet."""
    if (workflow_id is None) == (file is None):
        raise click.UsageError("Say either the id of a workflow or --file.")
    if file is not None:
        wire = read_file(file)
        read_workflow(read_members(msgspec.json.encode(wire), str(file)), 0, largest=Settings().largest_job)
        info = preview(wire)
    else:
        info = ask(url, lambda client: client.show_workflow(workflow_id or ""))
    click.echo(draw(info, "svg" if svg else "mermaid"), nl=False)


def _review(name: str, action: Any, verb: str, help: str) -> None:
    @workflows.command(name, help=help, epilog=examples(f"ojster workflows {name} {ID} release --notes 'because'"))
    @click.argument("workflow_id")
    @click.argument("step")
    @with_url
    @click.option("--notes", "-m", help="What to note with it.")
    @click.option("--as", "author", default=getpass.getuser, help="Who says so; by default your user name.")
    @with_json
    def command(workflow_id: str, step: str, url: str, notes: str | None, author: str, as_json: bool) -> None:
        info = ask(url, lambda client: client.review_step(Review(workflow_id, step, action, notes, author)))
        done(f"The step {step} of {workflow_id} is {verb}.", as_json, info)


_review("approve", "approve", "approved", "Approve STEP, named by its path, which waits for it.")
_review("reject", "reject", "rejected", "Reject STEP, named by its path: it is cancelled.")
_review("note", None, "noted", "Note something on STEP, which waits for an approval, without deciding.")


def _order(name: str, call: Callable[[Client, str], Awaitable[WorkflowInfo]], verb: str, help: str) -> None:
    @workflows.command(name, help=help, epilog=examples(f"ojster workflows {name} {ID}"))
    @click.argument("workflow_id")
    @with_url
    @with_json
    def command(workflow_id: str, url: str, as_json: bool) -> None:
        info = ask(url, lambda client: call(client, workflow_id))
        done(f"{workflow_id} {verb}.", as_json, info)


_order("retry", lambda client, one: client.retry_workflow(one), "runs again", "Run again what did not succeed.")
_order("hold", lambda client, one: client.hold_workflow(one), "is held", "Let nothing start until it is released.")
_order("release", lambda client, one: client.release_workflow(one), "goes on", "Let a workflow go on that is held.")


@workflows.command(
    epilog=examples(f"ojster workflows cancel {ID}", f"ojster workflows cancel {ID} --step build.2   # only that")
)
@click.argument("workflow_id")
@with_url
@click.option("--step", help="Cancel only this step, named by its path, and what is inside it, active jobs too.")
@with_json
def cancel(workflow_id: str, url: str, step: str | None, as_json: bool) -> None:
    """Cancel a workflow: what has not started never does, active jobs may finish."""
    if step is None:
        info = ask(url, lambda client: client.cancel_workflow(workflow_id))
    else:
        info = ask(url, lambda client: client.cancel_step(StepAddress(workflow_id, step)))
    done(f"{workflow_id if step is None else f'The step {step}'} is cancelled.", as_json, info)


@workflows.command(
    epilog=examples(
        f"ojster workflows resume {ID}",
        f"ojster workflows resume {ID} --result '{{\"approved\": true}}'",
        f"ojster workflows resume {ID} --step deploy.wait --error 'the ticket was closed'",
    )
)
@click.argument("workflow_id")
@with_url
@click.option("--result", help="What it waits for: JSON, or else a string.")
@click.option("--error", help="Instead of that: why it will not come; the step fails for good.")
@click.option("--step", help="Which step is meant, named by its path, if several wait.")
@with_json
def resume(workflow_id: str, url: str, result: str | None, error: str | None, step: str | None, as_json: bool) -> None:
    """Let the job of a workflow go on that waits."""
    item = WorkflowResumption(workflow_id, step, *resumption(result, error))
    done(f"{workflow_id} goes on.", as_json, ask(url, lambda client: client.resume_workflow(item)))


def resumption(result: str | None, error: str | None) -> tuple[bytes | None, Failure | None]:
    """Return what a job is resumed with."""
    if error is not None:
        if result is not None:
            raise click.UsageError("Say either --result or --error.")
        return None, Failure("ResumedWithError", error, "resumed_with_error", retryable=False)
    return (None if result is None else msgspec.json.encode(parameter(f"x={result}")[1])), None


@workflows.command(epilog=examples(f"ojster workflows status {ID}"))
@click.argument("workflow_id")
@with_url
@with_json
def status(workflow_id: str, url: str, as_json: bool) -> None:
    """Show what became of each step so far, by branch and in the order in which they ended, and what is under way."""
    found = ask(url, lambda client: client.workflow_status(workflow_id))
    if as_json:
        print_json(found)
        return
    info = found.workflow
    console.print(Text.assemble((info.name or info.type, "bold"), "  ", _state(info.state)))
    for branch, results in found.results.items():
        console.print(f"{branch}:", style="bright_black")
        for one in results:
            line = Text.assemble("  ", (one.path, "bold"), f" {one.name} ", _state(one.state))
            shown = one.error if one.error is not msgspec.UNSET else one.result
            if shown is not msgspec.UNSET:
                line.append(f"  {bytes(shown).decode()}"[:100])
            console.print(line, soft_wrap=True)
    for current in found.current:
        more = (
            f" until {current.deadline}" if current.deadline else f" on {current.worker_id}" * bool(current.worker_id)
        )
        console.print(Text.assemble("now: ", (current.path, "bold"), f" {current.name} ", _state(current.state), more))


@workflows.command("stats", epilog=examples("ojster workflows stats", "ojster workflows stats --definition gist"))
@with_url
@click.option("--definition", help="Only workflows of this definition.")
@with_json
def show_statistics(url: str, definition: str | None, as_json: bool) -> None:
    """Count workflows by state, and by when they were created; each is in one column."""
    found = ask(url, lambda client: client.workflow_statistics(definition))
    if as_json:
        print_json(found)
        return
    columns = (found.current, found.past_hour, found.past_24h, found.all_time)
    print_table(
        ("state", "# last hour", "# the hour before", "# last day", "# earlier"),
        [(state, *(column[state] for column in columns)) for state in WORKFLOW_STATES],
        "",
    )


@workflows.command(
    "info", epilog=examples(f"ojster workflows info {ID}", f"ojster workflows info {ID} --add 'looked at'")
)
@click.argument("workflow_id")
@with_url
@click.option("--add", help="Note this: JSON, or else a string.")
@with_json
def show_notes(workflow_id: str, url: str, add: str | None, as_json: bool) -> None:
    """Show what was noted of a workflow and its jobs, the oldest first, or note something."""
    if add is not None:
        note = NewNote(msgspec.json.encode(parameter(f"x={add}")[1]), workflow_id=workflow_id)
        done("Noted.", as_json, ask(url, lambda client: client.add_note(note)))
        return
    notes = ask(url, lambda client: client.workflow_notes(workflow_id))
    if as_json:
        print_json({"notes": notes})
        return
    rows = [(ago(parse_timestamp(one.at)), one.job_id, bytes(one.note).decode()) for one in notes]
    print_table(("when", "job", "note"), rows, "Nothing was noted.")


@workflows.command(
    "properties",
    epilog=examples(
        f"ojster workflows properties {ID}", f"ojster workflows properties {ID} --set tries=0 --delete lock"
    ),
)
@click.argument("workflow_id")
@with_url
@click.option("--set", "values", multiple=True, metavar="NAME=VALUE", help="Set one; JSON, or else a string.")
@click.option("--delete", "names", multiple=True, metavar="NAME", help="Delete one.")
@with_json
def show_properties(workflow_id: str, url: str, values: tuple[str, ...], names: tuple[str, ...], as_json: bool) -> None:
    """Show what the tasks of a workflow share, or change it."""
    given = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in map(parameter, values)}
    changes = Changes(given, names)
    if changes.is_nothing:
        found = ask(url, lambda client: client.properties(workflow_id))
    else:
        found = ask(url, lambda client: client.change_properties(PropertyChange(workflow_id, changes)))
    if as_json:
        print_json({"properties": found})
        return
    rows = [(name, bytes(one.value).decode(), one.version) for name, one in found.items()]
    print_table(("name", "value", "# version"), rows, "It has no properties.")


# Showing


def follow(
    url: str,
    begin: Callable[[Client], Awaitable[WorkflowInfo]],
    *,
    watch: bool,
    as_json: bool,
    whole: bool,
    makes: bool,
) -> int:
    """Begin with a workflow, and show it, once or until it has finished; return the exit code."""

    async def look(client: Client) -> WorkflowInfo:
        info = await begin(client)
        if not watch or info.finished:
            return info
        if as_json or not console.is_terminal:
            return await _until_finished(client, info)
        with Live(console=console, refresh_per_second=12, get_renderable=lambda: _picture(info, whole)):
            while not info.finished:
                info = await client.show_workflow(info.id, wait=LIVELY_POLL, version=info.version)
        return info

    info = ask(url, look, makes=makes)
    if as_json:
        print_json(info)
    elif not (watch and console.is_terminal):
        console.print(_picture(info, whole))
    return int(watch and info.state != "completed")


async def _until_finished(client: Client, info: WorkflowInfo) -> WorkflowInfo:
    while not info.finished:
        info = await client.show_workflow(info.id, wait=30.0)
        await asyncio.sleep(0)
    return info


def _picture(info: WorkflowInfo, whole: bool) -> Group:
    """The workflow: its head, how far it is, and its steps as a tree."""
    jobs, ended = info.metadata.get("job_count", 0), 0
    for name in ("completed_count", "failed_count", "cancelled_count"):
        ended += info.metadata.get(name, 0)
    head = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, jobs), completed=jobs if info.finished else ended, width=24)
    head.add_row(bar, Text(f"{ended}/{jobs} jobs", style="bright_black"), Text(info.id, style="bright_black"))
    label = Text.assemble((info.name or info.type, "bold"), "  ", _state(info.state, "held" if info.held else ""))
    if info.error is not None:
        label.append(f"  {info.error.message}", style="red")
    tree = Tree(label, guide_style="bright_black")
    _grow(tree, info.children, whole)
    return Group(head, tree)


def _grow(tree: Tree, steps: Iterable[StepInfo], whole: bool) -> None:
    steps = list(steps)
    shown = steps
    if not whole and len(steps) > MOST_SHOWN:
        interesting = [step for step in steps if step.state not in ("completed", "waiting")]
        shown = (interesting or steps)[:MOST_SHOWN]
    for step in shown:
        _grow(tree.add(_line(step)), step.children, whole)
    if len(shown) < len(steps):
        left = len(steps) - len(shown)
        tree.add(Text(f"… and {left} more (--all)", style="bright_black"))


def _line(step: StepInfo) -> Text:
    style = STYLES.get(step.state, "")
    line = Text.assemble((f"{MARKS[step.state]} ", style), (step.path.rpartition(".")[2], "bold"), " ")
    if step.label != step.id:
        line.append(f"{step.label} ", style="" if step.children else "cyan")
    elif step.type not in CONTAINERS:
        line.append(f"{step.type} ", style="cyan")
    line.append(step.state, style=style)
    if step.attempt and step.attempt > 1:
        line.append(f" attempt {step.attempt}/{step.max_attempts}", style="yellow")
    if step.progress is not msgspec.UNSET:
        progress = msgspec.json.decode(step.progress)
        line.append(f" {progress.get('progress', 0):.0%} {progress.get('message') or ''}", style="yellow")
    if step.on_hold:
        line.append("  waits to be resumed", style="magenta")
    if step.state == "blocked":
        line.append(f"  approve or reject {step.path}", style="magenta")
    if step.error is not msgspec.UNSET and step.state == "failed":
        error = msgspec.json.decode(step.error) or {}
        line.append(f"  {error.get('message', '')}"[:100], style="red")
    return line


def _state(state: str, more: str = "") -> Text:
    return Text(f"{state} ({more})" if more else state, style=STYLES.get(state, ""))
