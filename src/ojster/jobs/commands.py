"""How are jobs pushed, listed, looked at and steered from the command line?"""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from ojster.app import JobOptions, Retry, request_of
from ojster.cli.options import Command, Duration, ask, done, examples, with_json, with_url
from ojster.cli.output import ago, console, job_json, print_json, print_page, print_table, state_text
from ojster.client.interface import Client
from ojster.core.errors import InvalidRequest
from ojster.core.states import FINISHED, JobState
from ojster.core.timestamps import format_timestamp, parse_timestamp, system_clock
from ojster.jobs.bulk import Action
from ojster.jobs.queries import Page
from ojster.jobs.selection import JobFilter
from ojster.workflows.commands import resumption

STATES: Final = [state.value for state in JobState]

MOST_REFUSALS: Final = 20
"""Of how many jobs it is said why it was not done to them."""


@click.command(
    epilog=examples(
        'ojster push email.send \'"ada@example.com"\' \'{"subject": "Hi"}\'',
        "ojster push report.build 42 --queue reports --delay 60 --attempts 5",
        "ojster push cleanup --wait 30          # print its result",
    )
)
@click.argument("type")
@click.argument("args", nargs=-1)
@with_url
@click.option("--queue", "-q", help="The queue; 'default' if it is left out.")
@click.option("--priority", "-p", type=int, help="From -100 to 100; the highest first.")
@click.option("--delay", type=float, metavar="SECONDS", help="Run it no earlier than in so many seconds.")
@click.option("--timeout", type=float, metavar="SECONDS", help="How long it may run.")
@click.option("--attempts", type=int, help="How often it is tried at most.")
@click.option("--dead-letter", is_flag=True, help="Keep it as a dead letter if it fails for good.")
@click.option("--wait", type=float, metavar="SECONDS", help="Wait so long for its end, and print its result.")
@with_json
def push(
    type: str,
    args: tuple[str, ...],
    url: str,
    queue: str | None,
    priority: int | None,
    delay: float | None,
    timeout: float | None,
    attempts: int | None,
    dead_letter: bool,
    wait: float | None,
    as_json: bool,
) -> int:
    """Enqueue a job of TYPE. Each of ARGS is JSON; what is no JSON is taken as a string."""
    retry = None
    if attempts is not None or dead_letter:
        retry = Retry(max_attempts=attempts if attempts is not None else 3, dead_letter=dead_letter)
    options = JobOptions(queue=queue, priority=priority, delay=delay, timeout=timeout, retry=retry)
    request = request_of(type, [_argument(text) for text in args], options)

    async def enqueue(client: Client) -> Any:
        (pushed,) = await client.enqueue([request])
        return pushed.job if wait is None else await client.wait_for(pushed.job.id, wait)

    job = ask(url, enqueue, makes=True)
    if as_json:
        print_json(job_json(job))
    elif wait is not None and job.state == JobState.COMPLETED:
        print_json(msgspec.Raw(job.result or b"null"))
    else:
        click.echo(job.id if wait is None else f"{job.id} is {job.state}")
    return 0 if wait is None or job.state == JobState.COMPLETED else 1


def _argument(text: str) -> Any:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise click.UsageError(f"The argument {text!r} is not UTF-8.")
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


@click.group(
    epilog=examples("ojster jobs list --state active", "ojster jobs show ID", "ojster jobs cancel --type 'report.*'")
)
def jobs() -> None:
    """List, show, cancel, activate, retry and delete jobs."""


@jobs.command(
    "list",
    epilog=examples("ojster jobs list --state active", "ojster jobs list --type 'email.*' --limit 100 --json"),
)
@with_url
@click.option("--state", "-s", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--queue", "-q", help="Only jobs of this queue.")
@click.option("--type", "-t", help="Only jobs of this type; it may end in '*'.")
@click.option("--limit", "-n", type=click.IntRange(1, 200), default=20, show_default=True, help="How many at most.")
@with_json
def list_jobs(url: str, state: str | None, queue: str | None, type: str | None, limit: int, as_json: bool) -> None:
    """List jobs, newest first."""
    chosen = JobFilter(states=(state,) if state else (), queue=queue, type=type)
    page = ask(url, lambda client: client.list_jobs(chosen, Page(limit)))
    print_page(page, as_json, "There are no such jobs.")


@jobs.command("show", epilog=examples("ojster jobs show 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"))
@click.argument("job_id")
@with_url
@with_json
def show_job(job_id: str, url: str, as_json: bool) -> None:
    """Show all of a job: its arguments, its result, its errors."""
    job = ask(url, lambda client: client.find(job_id))
    if as_json:
        print_json(job_json(job))
        return
    console.print(job.type, state_text(job.state), f"attempt {job.attempt} of {job.max_attempts}", style="bold")
    shown = msgspec.json.format(bytes(job_json(job)), indent=2).decode()
    console.print(Syntax(shown, "json", background_color="default", word_wrap=True))


def chooses(command: Command) -> Command:
    """Give a command options that choose jobs, and ``--yes``."""
    for option in (
        click.option("--state", "-s", "states", multiple=True, type=click.Choice(STATES), help="In it; repeatable."),
        click.option("--queue", "-q", help="Of this queue."),
        click.option("--type", "-t", "type", help="Of this type; it may end in '*'."),
        click.option("--error-type", help="Whose last error was of this type; it may end in '*'."),
        click.option("--older-than", type=Duration(), metavar="DURATION", help="Made before so long, such as PT1H."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    ):
        command = option(command)
    return command


def _sweep(action: Action, url: str, as_json: bool, yes: bool, **given: Any) -> int:
    """Do something to all jobs that are chosen, and say what became of it; ask first."""
    older = given.pop("older_than")
    chosen = JobFilter(created_before=None if older is None else system_clock() - older, **given)
    if chosen == JobFilter():
        raise click.UsageError("Say which: the job's id, or at least one of --state, --queue, --type and the others.")
    if not yes:
        click.confirm(f"{action.capitalize()} all jobs that match?", abort=True, err=True)
    found = ask(url, lambda client: client.sweep(action, chosen))
    refusals = [(id, refusal) for id, refusal in found.items if refusal is not None]
    shown = {"matched": found.matched, "succeeded": found.succeeded, "failed": found.failed}
    done(f"{found.succeeded} of {found.matched} jobs are {action.past}.", as_json, shown)
    if not as_json:
        for id, refusal in refusals[:MOST_REFUSALS]:
            click.echo(f"  {id}: {refusal.message}", err=True)
    return 1 if found.failed else 0


@jobs.command(
    "cancel",
    epilog=examples(
        "ojster jobs cancel 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "ojster jobs cancel --type 'report.*' --queue slow --older-than P1D",
    ),
)
@click.argument("job_id", required=False)
@chooses
@with_url
@with_json
def cancel_job(job_id: str | None, url: str, as_json: bool, **given: Any) -> int:
    """Cancel a job that is not finished, or all that are chosen and have not begun."""
    if job_id is None:
        return _sweep(Action.CANCEL, url, as_json, **given)
    steered = ask(url, lambda client: client.cancel(job_id))
    shown = {"id": job_id, "state": "cancelled", "previous_state": steered.before}
    done(f"{job_id} is cancelled; it was {steered.before}.", as_json, shown)
    return 0


@jobs.command("delete", epilog=examples("ojster jobs delete --state completed --queue imports --older-than P7D"))
@chooses
@with_url
@with_json
def delete_jobs(url: str, as_json: bool, **given: Any) -> int:
    """Delete all finished jobs that are chosen, for good."""
    return _sweep(Action.DELETE, url, as_json, **given)


@jobs.command("history", epilog=examples("ojster jobs history 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"))
@click.argument("job_id")
@with_url
@with_json
def show_history(job_id: str, url: str, as_json: bool) -> None:
    """Show what has happened to a job, the oldest first."""
    entries = ask(url, lambda client: client.history(job_id))
    if as_json:
        print_json([entry.to_wire(job_id, number) for number, entry in enumerate(entries)])
        return
    table = Table("when", "what", "who", "more", box=None, header_style="bold", pad_edge=False)
    for entry in entries:
        who = entry.actor.get("id") or entry.actor["type"]
        more = " ".join(f"{name}={value}" for name, value in entry.data.items() if value is not None)
        table.add_row(format_timestamp(entry.at), entry.type.removeprefix("job."), escape(who), escape(more))
    console.print(table)


@jobs.command(
    "activate",
    epilog=examples(
        "ojster jobs activate 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "ojster jobs activate 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f --result '{\"paid\": true}'",
    ),
)
@click.argument("job_id")
@with_url
@click.option("--result", help="What the job waits for: JSON, or else a string.")
@click.option("--error", help="Instead of that: why it will not come; the job fails for good.")
@with_json
def activate_job(job_id: str, url: str, result: str | None, error: str | None, as_json: bool) -> None:
    """Make a pending job available, or resume one that waits."""
    data, failure = resumption(result, error)

    async def activate(client: Client) -> str:
        await client.activate(job_id, data, failure)
        return (await client.find(job_id)).state

    state = ask(url, activate)
    done(f"{job_id} is {state}.", as_json, {"id": job_id, "state": state})


@jobs.command("info", epilog=examples("ojster jobs info 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"))
@click.argument("job_id")
@with_url
@with_json
def show_notes(job_id: str, url: str, as_json: bool) -> None:
    """Show what was noted of a job, the oldest first."""
    notes = ask(url, lambda client: client.job_notes(job_id))
    if as_json:
        print_json({"notes": notes})
        return
    rows = [(ago(parse_timestamp(one.at)), bytes(one.note).decode()) for one in notes]
    print_table(("when", "note"), rows, "Nothing was noted.")


@jobs.command(
    "retry",
    epilog=examples(
        "ojster jobs retry 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "ojster jobs retry --error-type 'Smtp*' --yes",
    ),
)
@click.argument("job_id", required=False)
@chooses
@with_url
@with_json
def retry_job(job_id: str | None, url: str, as_json: bool, **given: Any) -> int:
    """Run a discarded job again, as if it were new, or all that are chosen and were discarded or wait for a retry."""
    if job_id is None:
        return _sweep(Action.RETRY, url, as_json, **given)

    async def retry(client: Client) -> None:
        job = await client.find(job_id)
        if job.state not in FINISHED:
            raise InvalidRequest(f"The job {job_id} is {job.state}, not finished; there is nothing to retry.")
        await client.retry_dead(job_id)

    ask(url, retry)
    done(f"{job_id} is available again.", as_json, {"id": job_id, "state": "available"})
    return 0


@jobs.command("prioritize", epilog=examples("ojster jobs prioritize ID -- -10", "ojster jobs prioritize ID 20"))
@click.argument("job_id")
@click.argument("by", type=click.IntRange(-200, 200))
@with_url
@with_json
def prioritize_job(job_id: str, by: int, url: str, as_json: bool) -> None:
    """Raise or lower the priority of an unfinished job: by so much from the one with which it was pushed."""
    job = ask(url, lambda client: client.adjust_priority(job_id, by))
    done(f"The priority of {job.id} is {job.priority}.", as_json, {"id": job.id, "priority": job.priority})
