"""A workflow in the terminal: a progress bar and a tree of its steps, live if it is followed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

import msgspec
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ojster.api.workflow_handle import MAX_WATCH_POLL_SECONDS
from ojster.cli.options import ask
from ojster.cli.output import console, print_json
from ojster.client.interface import Client
from ojster.workflows.plan.rules import CONTAINERS
from ojster.workflows.read.drawing import MARKS
from ojster.workflows.read.flow_info import WaitInfo
from ojster.workflows.read.info import StepInfo, WorkflowInfo
from ojster.workflows.read.status import WorkflowStatus

STYLES: Final = {
    "waiting": "bright_black",
    "blocked": "bold magenta",
    "held": "magenta",
    "pending": "blue",
    "running": "bold yellow",
    "compensating": "bold yellow",
    "cancelling": "bold yellow",
    "active": "bold yellow",
    "completed": "green",
    "failed": "bold red",
    "compensated": "yellow",
    "cancelled": "bright_black",
    "retried": "yellow",
    "skipped": "bright_black",
}

MAX_SHOWN_CHILDREN: Final = 40
"""Maximum number of children of a container shown without ``--all``; completed and waiting ones are left out first."""


def follow(
    url: str,
    begin: Callable[[Client], Awaitable[WorkflowInfo]],
    *,
    watch: bool,
    as_json: bool,
    whole: bool,
    makes: bool,
) -> int:
    """Run ``begin`` to get a workflow, show it once or until it finishes, and return the exit code."""

    async def look(client: Client) -> WorkflowInfo:
        workflow = await begin(client)
        if not watch or workflow.finished:
            return workflow
        if as_json or not console.is_terminal:
            return await _until_finished(client, workflow)
        with Live(console=console, refresh_per_second=12, get_renderable=lambda: _render(workflow, whole)):
            while not workflow.finished:
                workflow = await client.workflows.show(
                    workflow.id, wait=MAX_WATCH_POLL_SECONDS, version=workflow.version
                )
        return workflow

    workflow = ask(url, look, makes=makes)
    if as_json:
        print_json(workflow)
    elif not (watch and console.is_terminal):
        console.print(_render(workflow, whole))
    return int(watch and workflow.state != "completed")


async def _until_finished(client: Client, workflow: WorkflowInfo) -> WorkflowInfo:
    while not workflow.finished:
        workflow = await client.workflows.show(workflow.id, wait=30.0)
        await asyncio.sleep(0)
    return workflow


def _render(workflow: WorkflowInfo, whole: bool) -> Group:
    """Return a workflow as a progress bar and a tree of its steps."""
    jobs, ended = workflow.metadata.get("job_count", 0), 0
    for name in ("completed_count", "failed_count", "cancelled_count"):
        ended += workflow.metadata.get(name, 0)
    head = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, jobs), completed=jobs if workflow.finished else ended, width=24)
    head.add_row(bar, Text(f"{ended}/{jobs} jobs", style="bright_black"), Text(workflow.id, style="bright_black"))
    label = Text.assemble((workflow.label, "bold"), "  ", shown_state(workflow.state, "held" if workflow.held else ""))
    if workflow.error is not None:
        label.append(f"  {workflow.error.message}", style="red")
    tree = Tree(label, guide_style="bright_black")
    _add_steps(tree, workflow.children, whole)
    if workflow.steps_omitted:
        tree.add(Text(f"too many steps to show: ojster workflows steps {workflow.id}", style="bright_black"))
    return Group(head, tree)


def _add_steps(tree: Tree, steps: Iterable[StepInfo], whole: bool) -> None:
    steps = list(steps)
    shown = steps
    if not whole and len(steps) > MAX_SHOWN_CHILDREN:
        interesting = [step for step in steps if step.state not in ("completed", "waiting")]
        shown = (interesting or steps)[:MAX_SHOWN_CHILDREN]
    for step in shown:
        branch = tree.add(_line(step))
        for wait in step.waits:
            branch.add(wait_line(wait))
        _add_steps(branch, step.children, whole)
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
        line.append(f" attempt {step.attempt}", style="yellow")
    if step.progress is not msgspec.UNSET:
        progress = msgspec.json.decode(step.progress)
        line.append(f" {progress.get('progress', 0):.0%} {progress.get('message') or ''}", style="yellow")
    if step.on_hold or step.stopping:
        line.append("  suspended" if step.on_hold else "  stopping", style="magenta")
    if step.state == "blocked":
        line.append(f"  approve or reject {step.path}", style="magenta")
    if step.error is not msgspec.UNSET and step.state == "failed":
        error = msgspec.json.decode(step.error) or {}
        line.append(f"  {error.get('message', '')}"[:100], style="red")
    return line


def wait_line(wait: WaitInfo) -> Text:
    """Return a line about something that a flow waits for: what it is, until when, and where in the code."""
    until = "" if wait.until is None else f" until {wait.until}"
    line = Text.assemble(("waits ", "magenta"), f"{WAITS[wait.kind]} ", (wait.name, "bold"), until)
    line = Text.assemble("waits to wake up", until, style="magenta") if wait.kind == "sleep" else line
    return line if wait.at is None else line.append(f"  {wait.at}: {wait.code}", style="bright_black")


WAITS: Final = {
    "run": "for",
    "receive": "for a message",
    "receive_many": "for messages",
    "listen": "for a message with a key",
    "listen_many": "for messages with a key",
}
"""What a flow waits for, in words."""


def shown_state(state: str, more: str = "") -> Text:
    """Return a state with its colour, and more about it in brackets."""
    return Text(f"{state} ({more})" if more else state, style=STYLES.get(state, ""))


def status_lines(status: WorkflowStatus) -> Iterator[Text]:
    """Yield the lines of a status: the ended steps of each branch, and those in progress."""
    workflow = status.workflow
    yield Text.assemble((workflow.label, "bold"), "  ", shown_state(workflow.state))
    for branch, results in status.results.items():
        yield Text(f"{branch}:", style="bright_black")
        for result in results:
            called = result.display_name or result.name
            line = Text.assemble("  ", (result.path, "bold"), f" {called} ", shown_state(result.state))
            shown = result.error if result.error is not msgspec.UNSET else result.result
            if shown is not msgspec.UNSET:
                line.append(f"  {bytes(shown).decode()}"[:100])
            yield line
    for current in status.current:
        more = (
            f" until {current.deadline}" if current.deadline else f" on {current.worker_id}" * bool(current.worker_id)
        )
        waits = "" if current.waiting_for is None else f" for a {current.waiting_for}"
        called = current.display_name or current.name
        yield Text.assemble("now: ", (current.path, "bold"), f" {called} ", shown_state(current.state), waits, more)
        for wait in current.waits:
            yield Text.assemble("  ", wait_line(wait))
