"""Commands that push, list, show and manage jobs."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click
import msgspec
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from ojster.cli.application import encoded_request, with_codecs
from ojster.cli.declared import IsoSpan, Seconds, option_of, together
from ojster.cli.job_export import export_jobs
from ojster.cli.job_selection import found_by
from ojster.cli.option_rules import excludes
from ojster.cli.options import ask, done, examples, moment_at, resumption, with_json, with_url
from ojster.cli.output import Id, ago, console, job_json, print_json, print_list, print_page, state_text
from ojster.cli.sweeps import sweep
from ojster.client.interface import Client
from ojster.core.errors import Conflict, InvalidRequest, NotFound
from ojster.core.ids import is_job_id
from ojster.core.states import FINISHED, JobState
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.handlers.codec import Codecs
from ojster.handlers.job_options import JobOptions, request_of
from ojster.jobs.bulk import Action
from ojster.jobs.failure import pattern_of
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.filters import is_part_of_id
from ojster.jobs.history_wire import show_entry
from ojster.jobs.job_logs import LogLine
from ojster.jobs.options import PRIORITIES
from ojster.jobs.options_wire import OptionsBody
from ojster.jobs.policy_wire import MAX_ATTEMPTS_LIMIT, RetryPolicyBody
from ojster.jobs.queries import SORTS, Page
from ojster.worker.job_log import escaped


@click.command(
    epilog=examples(
        'ojster push email.send \'"ada@example.com"\' \'{"subject": "Hi"}\'',
        "ojster push report.build 42 --queue reports --delay 60 --attempts 5",
        "ojster push cleanup --wait 30          # print its result",
        "ojster push card.charge 4111 --app shop.app:app   # encrypted, as the application does",
    )
)
@with_codecs
@click.argument("type")
@click.argument("args", nargs=-1)
@with_url
@click.option("--queue", "-q", help="Queue; by default 'default'.")
@option_of(
    OptionsBody,
    "priority",
    "--priority",
    "-p",
    help=f"Priority from {PRIORITIES[0]} to {PRIORITIES[-1]}; higher priorities run first.",
)
@click.option("--delay", type=Seconds(0), metavar="SECONDS", help="Delay before the first attempt.")
@click.option("--timeout", type=Seconds(0), metavar="SECONDS", help="Maximum run time of an attempt; 0: no limit.")
@option_of(
    RetryPolicyBody,
    "max_attempts",
    "--attempts",
    default=None,
    type=click.IntRange(0, MAX_ATTEMPTS_LIMIT),
    help="Maximum number of attempts, including the first; by default that of the job type, or 3.",
)
@click.option("--dead-letter", is_flag=True, help="Keep it as a dead letter when retries are exhausted.")
@click.option("--wait", type=Seconds(0), metavar="SECONDS", help="Maximum wait for the job; prints its result.")
@with_json
def push(
    type: str,
    args: tuple[str, ...],
    url: str,
    queue: str | None,
    priority: int | None,
    delay: float | None,
    timeout: float | None,
    max_attempts: int | None,
    dead_letter: bool,
    wait: float | None,
    codecs: Codecs,
    as_json: bool,
) -> int:
    """Enqueue a job of TYPE. Each of ARGS is JSON; an argument that is not JSON is a string."""
    retry: dict[str, Any] = {} if max_attempts is None else {"max_attempts": max_attempts}
    retry |= {"on_exhaustion": "dead_letter"} if dead_letter else {}
    options = JobOptions(queue=queue, priority=priority, delay=delay, timeout=timeout, retry=retry or None)
    request = encoded_request(request_of(type, [_argument(text) for text in args], options), codecs)

    async def enqueue(client: Client) -> Any:
        (pushed,) = await client.jobs.enqueue([request])
        return pushed.job if wait is None else await client.jobs.wait_for(pushed.job.id, wait)

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
    commands=[export_jobs],
    epilog=examples("ojster jobs list --state active", "ojster jobs show ID", "ojster jobs cancel --type 'report.*'"),
)
def jobs() -> None:
    """List, show, cancel, retry, delete jobs, and group failures."""


@jobs.command(
    "list",
    epilog=examples(
        "ojster jobs list --state active",
        "ojster jobs list --type 'email.*' --limit 100 --json",
        "ojster jobs list --where args.order_id=42 --error-text 'card expired'",
    ),
)
@with_url
@found_by
@click.option(
    "--sort", type=click.Choice(list(SORTS)), default="newest", show_default=True, help="What comes first in the list."
)
@click.option(
    "--limit", "-n", type=click.IntRange(1, 200), default=20, show_default=True, help="Maximum number to list."
)
@with_json
def list_jobs(url: str, sort: str, limit: int, as_json: bool, **filters: Any) -> None:
    """List jobs, newest first.

    Errors' texts, tags, workers and --where are looked for among the newest 50,000 jobs. Encoded arguments cannot be
    searched.
    """
    chosen = JobFilter(**filters)
    order, ascending = SORTS[sort]
    page = ask(
        url, lambda client: client.jobs.select(chosen, Page(limit, sort=order, ascending=ascending, is_bounded=True))
    )
    print_page(page, as_json, "There are no such jobs.")


@jobs.command("show", epilog=examples("ojster jobs show 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"))
@click.argument("job_id")
@with_url
@with_json
def show_job(job_id: str, url: str, as_json: bool) -> None:
    """Show a job with its arguments, its result and its errors."""
    job_id = full_id(url, job_id)
    job = ask(url, lambda client: client.jobs.find(job_id))
    if as_json:
        print_json(job_json(job))
        return
    console.print(job.type, state_text(job.state), f"attempt {job.attempt} of {job.possible_attempts}", style="bold")
    shown = msgspec.json.format(bytes(job_json(job)), indent=2).decode()
    console.print(Syntax(shown, "json", background_color="default", word_wrap=True))


_CHOICES: Final = (
    *("states", "queue", "type", "error_type", "error_text", "error_pattern", "cron_name", "worker", "workflow"),
    *("tag", "where", "older_than", "dry_run"),
)
"""Options that choose among jobs, or look first: without effect on one job that is named."""

chooses: Final = together(
    found_by,
    click.option(
        "--error-pattern",
        callback=lambda context, option, text: None if text is None else pattern_of(text),
        help="Only jobs whose last error has this message, whatever its numbers, ids and quoted values.",
    ),
    click.option(
        "--older-than",
        type=IsoSpan(takes_never=False),
        metavar="DURATION",
        help="Only jobs older than this (PT1H).",
    ),
    click.option("--dry-run", is_flag=True, help="Only print what would be done."),
    click.option("--yes", "-y", is_flag=True, help="Skip the confirmation."),
)
"""Adds the options that select jobs, ``--dry-run`` and ``--yes``."""

LENGTH_OF_ENDING: Final = 12
"""Length of the end of an id, as the dashboard prints it; a shorter end is not looked for."""


def full_id(url: str, job_id: str) -> str:
    """Return the id of a job of which the beginning is given, or the end, as the dashboard prints it.

    A command acts on this job. So the end must be as long as the dashboard prints it, and no other job may have it,
    also among those that a search leaves out.
    """

    async def look(client: Client) -> str:
        try:
            return (await client.jobs.find(job_id)).id
        except NotFound:
            if not is_part_of_id(job_id) or len(job_id) < LENGTH_OF_ENDING:
                raise
            ending = await client.jobs.select(JobFilter(id=job_id, internal=True), Page(2, is_bounded=True))
            if not ending.jobs and ending.is_complete:
                raise
            if len(ending.jobs) != 1 or not ending.is_complete:
                why = "Several jobs have" if len(ending.jobs) > 1 else "Not all jobs were searched for"
                raise Conflict(f"{why} an id that ends in {job_id}. Give the whole id.", resource_id=job_id) from None
            return ending.jobs[0].id

    return job_id if is_job_id(job_id) else ask(url, look)


def _sweep(action: Action, url: str, as_json: bool, yes: bool, dry_run: bool, **filters: Any) -> int:
    """Apply the action to all selected jobs, and print the outcome."""
    older = filters.pop("older_than")
    chosen = JobFilter(created_before=None if older is None else moment_at(url, older), **filters)
    if chosen == JobFilter():
        raise click.UsageError(
            "Select jobs with a job id or an option such as --state, --queue, --type, --where or --older-than."
        )
    return sweep(
        action,
        "job",
        url,
        lambda client, foresees: client.bulk.sweep(action, chosen, dry_run=foresees),
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
    )


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
@excludes("job_id", *_CHOICES)
def cancel_job(job_id: str | None, url: str, as_json: bool, **filters: Any) -> int:
    """Cancel an unfinished job, or all selected jobs, by default those that are available or scheduled."""
    if job_id is None:
        return _sweep(Action.CANCEL, url, as_json, **filters)
    job_id = full_id(url, job_id)
    steered = ask(url, lambda client: client.jobs.cancel(job_id))
    shown = {"id": job_id, "state": "cancelled", "previous_state": steered.before}
    done(f"{job_id} is cancelled; it was {steered.before}.", as_json, shown)
    return 0


@jobs.command("delete", epilog=examples("ojster jobs delete --state completed --queue imports --older-than P7D"))
@chooses
@with_url
@with_json
def delete_jobs(url: str, as_json: bool, **filters: Any) -> int:
    """Delete all selected finished jobs permanently."""
    return _sweep(Action.DELETE, url, as_json, **filters)


@jobs.command("explain", epilog=examples("ojster jobs explain 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"))
@click.argument("job_id")
@with_url
@with_json
def explain_job(job_id: str, url: str, as_json: bool) -> None:
    """Say why a job waits: a pause, a limit, no worker that can run it, its turn, or a time."""
    job_id = full_id(url, job_id)
    explanation = ask(url, lambda client: client.jobs.explain(job_id))
    if as_json:
        print_json(explanation)
        return
    for reason in explanation.reasons:
        click.echo(reason.message + (f" Until {reason.until}." if reason.until and reason.code == "limit" else ""))


@jobs.command(
    "failures",
    epilog=examples("ojster jobs failures", "ojster jobs failures --queue mail --error-type 'Smtp*'"),
)
@with_url
@click.option("--queue", "-q", help="Only jobs of this queue.")
@click.option("--type", "-t", help="Only jobs of this type; it may end in '*'.")
@click.option("--error-type", help="Only jobs with a last error of this type; it may end in '*'.")
@with_json
def list_failures(url: str, queue: str | None, type: str | None, error_type: str | None, as_json: bool) -> None:
    """Group jobs that gave up or wait for another attempt by their errors, the largest group first.

    Messages that differ in numbers, ids and quoted values are one group, shown with its last message. To retry a group:
    ojster jobs retry --type TYPE --error-type ERROR --error-pattern MESSAGE
    """
    failures = ask(url, lambda client: client.insight.failures(queue=queue, type=type, error_type=error_type))
    rows = [
        (
            group.type, group.error_type, group.discarded, group.retrying, ago(parse_timestamp(group.last_at)),
            Id(group.job_id), group.message.partition("\n")[0],
        )
        for group in failures.groups
    ]  # fmt: skip
    columns = ("type", "error", "# discarded", "# retryable", "last", "last job", "last message")
    print_list(as_json, failures, columns, rows, "No jobs have failed.")
    if not as_json and not failures.is_complete:
        console.print(f"{failures.examined:,} jobs were examined; there are more.", style="bright_black")


@jobs.command("history", epilog=examples("ojster jobs history 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"))
@click.argument("job_id")
@with_url
@with_json
def show_history(job_id: str, url: str, as_json: bool) -> None:
    """Show the events of a job, oldest first."""
    job_id = full_id(url, job_id)
    entries = ask(url, lambda client: client.jobs.history(job_id))
    if as_json:
        print_json([msgspec.to_builtins(show_entry(entry, job_id, number)) for number, entry in enumerate(entries)])
        return
    table = Table("time", "event", "actor", "details", box=None, header_style="bold", pad_edge=False)
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
@click.option("--result", help="Result to resume the job with: JSON, otherwise a string.")
@click.option("--error", help="Error to resume the job with instead; the job fails without a retry.")
@with_json
def activate_job(job_id: str, url: str, result: str | None, error: str | None, as_json: bool) -> None:
    """Make a pending job available, or resume a suspended job."""
    job_id = full_id(url, job_id)
    answer, failure = resumption(result, error)

    async def activate(client: Client) -> str:
        await client.workflows.activate(job_id, answer, failure)
        return (await client.jobs.find(job_id)).state

    state = ask(url, activate)
    done(f"{job_id} is {state}.", as_json, {"id": job_id, "state": state})


@jobs.command("info", epilog=examples("ojster jobs info 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"))
@click.argument("job_id")
@with_url
@with_json
def show_notes(job_id: str, url: str, as_json: bool) -> None:
    """Show the notes on a job, oldest first."""
    job_id = full_id(url, job_id)
    notes = ask(url, lambda client: client.notes.of_job(job_id))
    rows = [(ago(parse_timestamp(note.at)), bytes(note.note).decode()) for note in notes]
    print_list(as_json, {"notes": notes}, ("when", "note"), rows, "There are no notes.")


@jobs.command("logs", epilog=examples("ojster jobs logs 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f --follow"))
@click.argument("job_id")
@with_url
@click.option("--follow", "-f", is_flag=True, help="Print further lines until the job has finished.")
@with_json
def show_log(job_id: str, url: str, follow: bool, as_json: bool) -> None:
    """Show what the handler of a job has logged, if its type keeps it (keep_logs), oldest line first.

    With --json, each line is an object on a line of its own.
    """
    job_id = full_id(url, job_id)

    async def show(client: Client) -> int:
        after = 0
        while True:
            log = await client.jobs.log(job_id, after)
            if log.dropped and not as_json:
                click.echo(f"{log.dropped} lines are not kept.", err=True)
            for line in log.lines:
                click.echo(msgspec.json.encode(line).decode() if as_json else _shown_line(line))
            after = log.lines[-1].number if log.lines else after
            if log.is_complete or not follow:
                return after
            await asyncio.sleep(FOLLOW_SECONDS)

    if not ask(url, show) and not as_json:
        click.echo("There are no lines. They are kept for handlers with @app.job(keep_logs='info').", err=True)


def _shown_line(line: LogLine) -> str:
    lines = [escaped(part) for part in line.message.splitlines()]
    text = "\n".join(lines)
    return f"{line.at} attempt {line.attempt} {line.level.upper()} {escaped(line.logger)} {text}"


FOLLOW_SECONDS: Final = 1.0
"""Interval at which ``--follow`` asks for further lines, in seconds."""


@jobs.command(
    "retry",
    epilog=examples(
        "ojster jobs retry 019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f",
        "ojster jobs retry --error-type 'Smtp*' --yes",
        "ojster jobs retry --error-pattern 'customer 17 has no address'",
    ),
)
@click.argument("job_id", required=False)
@chooses
@with_url
@with_json
@excludes("job_id", *_CHOICES)
def retry_job(job_id: str | None, url: str, as_json: bool, **filters: Any) -> int:
    """Retry a discarded job as a new job, or all selected jobs that are discarded or retryable."""
    if job_id is None:
        return _sweep(Action.RETRY, url, as_json, **filters)
    job_id = full_id(url, job_id)

    async def retry(client: Client) -> None:
        job = await client.jobs.find(job_id)
        if job.state not in FINISHED:
            raise InvalidRequest(f"The job {job_id} is {job.state}; only a discarded job can be retried.")
        await client.jobs.retry_dead(job_id)

    ask(url, retry)
    done(f"{job_id} is available again.", as_json, {"id": job_id, "state": "available"})
    return 0


@jobs.command("prioritize", epilog=examples("ojster jobs prioritize ID -- -10", "ojster jobs prioritize ID 20"))
@click.argument("job_id")
@click.argument("by", type=click.IntRange(-200, 200))
@with_url
@with_json
def prioritize_job(job_id: str, by: int, url: str, as_json: bool) -> None:
    """Set the priority of an unfinished job to the priority of its push plus BY."""
    job_id = full_id(url, job_id)
    job = ask(url, lambda client: client.jobs.adjust_priority(job_id, by))
    done(f"The priority of {job.id} is {job.priority}.", as_json, {"id": job.id, "priority": job.priority})
