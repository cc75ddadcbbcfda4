"""Commands for cron jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from ojster.api.loading import load_app
from ojster.cli.application import database_of, encoded_request, with_codecs
from ojster.cli.commands.jobs import _argument
from ojster.cli.declared import PointInTime, option_of
from ojster.cli.options import ask, confirm, done, examples, json_array, moment_at, parameters, with_json, with_url
from ojster.cli.output import Id, ago, job_json, print_list
from ojster.cli.workflow_file import named_start, read_start
from ojster.client.interface import Client
from ojster.core.errors import NotFound
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.tenant import NOBODY, called, shown_tenant
from ojster.core.timestamps import format_optional, format_timestamp
from ojster.handlers.codec import Codecs
from ojster.schedules.backfill import Backfill, BackfilledRun
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import OverlapPolicy
from ojster.schedules.misses_wire import CronMissesAnswer
from ojster.schedules.wire import BackfillBody
from ojster.worker.registration import leftover_crons


@click.group(
    epilog=examples("ojster cron list", "ojster cron add nightly '0 3 * * *' cleanup --timezone Europe/Berlin")
)
def cron() -> None:
    """List, show, add, run, backfill, enable, disable, remove and prune cron jobs, and show missed runs."""


@cron.command("list", epilog=examples("ojster cron list"))
@with_url
@with_json
def list_crons(url: str, as_json: bool) -> None:
    """List the cron jobs."""
    crons = ask(url, lambda client: client.schedules.all())
    print_list(
        as_json,
        {"crons": [_shown(cron) for cron in crons]},
        ("name", "schedule", "zone", "starts", "overlap", "next run", "last run", "# runs"),
        [
            (
                cron.name,
                cron.expression,
                cron.timezone,
                cron.starts,
                cron.overlap_policy,
                ago(cron.next_run_at) if cron.enabled else "disabled",
                ago(cron.last_run_at),
                cron.run_count,
            )
            for cron in crons
        ],
        "There are no cron jobs.",
    )


@cron.command("show", epilog=examples("ojster cron show daily-report", "ojster cron show daily-report --next 10"))
@click.argument("name")
@click.option("--next", "occurrences", type=click.IntRange(1, 1000), default=5, help="Number of runs to show.")
@with_url
@with_json
def show_cron(name: str, occurrences: int, url: str, as_json: bool) -> None:
    """Show a cron job and its next runs."""
    cron = ask(url, lambda client: client.schedules.find(name))
    moments: list[str] = []
    at: int | None = moment_at(url, timedelta())
    while cron.enabled and len(moments) < occurrences and (at := cron.schedule.next_after(at or 0)) is not None:
        moments.append(format_timestamp(at))
    rows = [(key, value) for key, value in _shown(cron).items() if not isinstance(value, msgspec.Raw)]
    print_list(
        as_json,
        _shown(cron) | {"next": moments},
        ("", name),
        [*rows, *(("then" if index else "next", at) for index, at in enumerate(moments))],
        "",
    )


@cron.command("misses", epilog=examples("ojster cron misses daily-report"))
@click.argument("name")
@with_url
@with_json
def list_misses(name: str, url: str, as_json: bool) -> None:
    """List the occurrences of a cron job that started nothing, with the reason, the newest first."""
    misses = ask(url, lambda client: client.schedules.misses(name))
    print_list(
        as_json,
        msgspec.to_builtins(CronMissesAnswer.of(misses)),
        ("since", "until", "#", "reason", "message", "unfinished run"),
        [
            (
                format_timestamp(miss.since),
                format_timestamp(miss.until),
                f"{'' if miss.is_complete else '>= '}{miss.occurrences}",
                miss.reason,
                miss.message,
                miss.active_id and Id(miss.active_id),
            )
            for miss in misses
        ],
        f"{name} has missed no run in the last 30 days.",
    )


@cron.command(
    "add",
    epilog=examples(
        "ojster cron add daily-report '0 9 * * MON-FRI' report.build 42 --timezone Europe/Berlin",
        "ojster cron add sweep '@every 90s' cache.sweep",
        "ojster cron add nightly '0 3 * * *' --workflow nightly.yaml",
        "ojster cron add backup '0 4 * * *' --definition backup --param depth=2 --target /db/1",
        "ojster cron add fulfil @hourly --flow order.fulfil --args '[42]'",
    ),
)
@with_codecs
@click.argument("name")
@click.argument("expression")
@click.argument("type", required=False)
@click.argument("args", nargs=-1)
@option_of(Cron, "timezone")
@option_of(Cron, "overlap_policy", "--overlap")
@click.option("--queue", "-q", help="Queue of the jobs of TYPE; by default 'default'.")
@click.option("--flow", metavar="TYPE", help="Start this flow.")
@click.option("--args", "flow_args", metavar="JSON", help="Arguments of the flow, a JSON array.")
@click.option(
    "--workflow",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="Start the workflow in this JSON or YAML file; '-' for the standard input.",
)
@click.option("--definition", metavar="NAME", help="Start a workflow of this definition, in its latest version.")
@click.option(
    "--param", "-p", "params", multiple=True, metavar="NAME=VALUE", help="Parameter of the workflow; repeatable."
)
@click.option("--target", help="Resource of the workflow of a definition.")
@with_url
@with_json
def add_cron(
    name: str, expression: str, timezone: str, overlap_policy: OverlapPolicy, url: str, as_json: bool, **what: Any
) -> None:
    """Register the cron job NAME, or update it: it enqueues jobs of TYPE, or starts a workflow or a flow."""
    template, workflow = _requests(**what)
    cron = Cron(
        name=name,
        expression=expression,
        timezone=timezone,
        overlap_policy=overlap_policy,
        template=template,
        workflow=workflow,
    )
    _ = cron.schedule
    registered = ask(url, lambda client: client.schedules.register(cron), makes=True)
    verb = "registered" if registered.is_new else "updated" if registered.is_changed else "unchanged"
    shown = registered.cron
    done(f"{name} is {verb} and runs next {ago(shown.next_run_at)}.", as_json, _shown(shown))


_NEEDS: Final = {
    "queue": ("--queue", ("type",)),
    "flow_args": ("--args", ("flow",)),
    "params": ("--param", ("workflow", "definition")),
    "target": ("--target", ("definition",)),
}
"""How options of a cron job are written, and what they belong to, by their names."""


def _requests(
    *, args: tuple[str, ...], params: tuple[str, ...], codecs: Codecs, **what: Any
) -> tuple[bytes, bytes | None]:
    """Return the ``template`` and the ``workflow`` of a cron job."""
    chosen = {name for name, value in (what | {"params": params or None}).items() if value is not None}
    if len(chosen & {"type", "flow", "workflow", "definition"}) != 1:
        raise click.UsageError("Give exactly one of TYPE, --flow, --workflow and --definition.")
    if codecs and chosen & {"workflow", "definition"}:
        raise click.UsageError("The codecs of --app encode arguments of TYPE or --flow alone. Leave --app out.")
    for option, (shown, owners) in _NEEDS.items():
        if option in chosen and not chosen & set(owners):
            names = [name if name == "type" else f"--{name}" for name in owners]
            raise click.UsageError(f"{shown} needs {' or '.join(names).replace('type', 'TYPE')}.")
    values = {"params": parameters(params)}
    if "workflow" in chosen:
        return b"{}", msgspec.json.encode(read_start(what["workflow"], values, name=None, delay=None))
    if "definition" in chosen:
        return b"{}", msgspec.json.encode(named_start(what["definition"], values, {"target": what["target"]}))
    if "flow" in chosen:
        job = encoded_request(_members({"type": what["flow"], "args": json_array(what["flow_args"])}), codecs)
        return b"{}", msgspec.json.encode({"type": "flow", "name": what["flow"], "job": job})
    options = {"queue": what["queue"] or "default"}
    job = _members({"type": what["type"], "args": list(map(_argument, args)), "options": options})
    return msgspec.json.encode(encoded_request(job, codecs)), None


def _members(job: dict[str, Any]) -> Members:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in job.items()}


@cron.command("run", epilog=examples("ojster cron run daily-report"))
@click.argument("name")
@with_url
@with_json
def run_cron(name: str, url: str, as_json: bool) -> None:
    """Enqueue the job of a cron job, or start its workflow, now; its next run stays as it is."""
    run = ask(url, lambda client: client.schedules.trigger(name))
    done(run.id, as_json, job_json(run) if isinstance(run, Job) else run)


@cron.command(
    "backfill",
    epilog=examples(
        "ojster cron backfill daily-report --from -P7D --dry-run",
        "ojster cron backfill daily-report --from 2026-11-01T00:00:00Z --to 2026-11-20T00:00:00Z --concurrency 4",
    ),
)
@click.argument("name")
@click.option(
    "--from",
    "since",
    type=PointInTime(),
    required=True,
    help="First moment: RFC 3339, or a duration before now such as -P1D.",
)
@click.option("--to", "until", type=PointInTime(), help="Last moment, likewise; by default now.")
@option_of(BackfillBody, "concurrency")
@click.option("--dry-run", is_flag=True, help="Show the occurrences, and start nothing.")
@click.option("--yes", "-y", is_flag=True, help="Start them without asking.")
@with_url
@with_json
def backfill_cron(
    name: str,
    since: int | timedelta,
    until: int | timedelta | None,
    concurrency: int,
    dry_run: bool,
    yes: bool,
    url: str,
    as_json: bool,
) -> None:
    """Start the runs of a cron job for occurrences that have passed, such as those of an outage.

    The schedule goes on beside them, whatever its overlap policy is.
    """
    begin, end = moment_at(url, since), moment_at(url, timedelta() if until is None else until)

    async def foresee(client: Client) -> list[int]:
        parts = _parts(client, name, begin, end, concurrency, dry_run=True)
        return [run.scheduled_for async for part in parts for run in part.runs]

    async def start(client: Client) -> list[BackfilledRun]:
        runs: list[BackfilledRun] = []
        async for part in _parts(client, name, begin, end, concurrency, dry_run=False):
            runs += part.runs
            if part.next is not None:  # so that it can go on from there if the connection breaks
                last = format_timestamp(runs[-1].scheduled_for)
                click.echo(f"{len(runs)} of {len(foreseen)} are done, up to {last}.", err=True)
        return runs

    foreseen = ask(url, foresee)
    if dry_run or not foreseen:
        moments = list(map(format_timestamp, foreseen))
        done("\n".join(moments) or f"{name} has no occurrences in this time.", as_json, {"occurrences": moments})
        return
    if not yes:
        first, last = format_timestamp(foreseen[0]), format_timestamp(foreseen[-1])
        confirm(f"Start {name} for {len(foreseen)} occurrences, from {first} to {last}?")
    runs = ask(url, start)
    shown = [{"scheduled_for": format_timestamp(run.scheduled_for), "id": run.id} for run in runs]
    made = sum(run.id is not None for run in runs)
    others = f" The jobs of {len(runs) - made} others would be duplicates." if made < len(runs) else ""
    done(f"{name} is started for {made} occurrences.{others}", as_json, {"runs": shown})


async def _parts(
    client: Client, name: str, since: int, until: int, concurrency: int, *, dry_run: bool
) -> AsyncIterator[Backfill]:
    """Backfill a cron job, one call after the other."""
    following: int | None = since
    while following is not None:
        part = await client.schedules.backfill(name, following, until, concurrency=concurrency, dry_run=dry_run)
        yield part
        following = part.next


@cron.command("prune", epilog=examples("ojster cron prune shop.app:app --dry-run", "ojster cron prune shop.app:app"))
@click.argument("app")
@click.option("--include", multiple=True, metavar="MODULE", help="Module with further tasks; 'PACKAGE.*': its tasks.")
@click.option("--dry-run", is_flag=True, help="Show the cron jobs, and remove none.")
@click.option("--yes", "-y", is_flag=True, help="Remove them without asking.")
@with_url
@with_json
def prune_crons(app: str, include: tuple[str, ...], dry_run: bool, yes: bool, url: str, as_json: bool) -> None:
    """Remove the cron jobs that start jobs or flows of APP (MODULE:NAME), and that it does not declare any more.

    Those that somebody has added by hand for its job types are among them, those of other tenants are not. Cron jobs
    that start steps or definitions belong to no application: see `ojster cron remove`.
    """
    loaded = load_app(app, include)
    url = database_of(loaded, url)
    tenant = shown_tenant(loaded.tenant or NOBODY)  # cron jobs of others have the same names, and start the same jobs
    leftovers = ask(url, lambda client: leftover_crons(client, loaded), tenant=tenant)
    if not leftovers:
        done(
            f"{app} declares all cron jobs that start its jobs and flows.",
            as_json,
            {"cron_jobs": [], "dry_run": dry_run},
        )
        return
    names = [called(cron.name) for cron in leftovers]
    if not dry_run:
        if not yes:
            confirm(f"Remove {', '.join(names)}?")

        async def remove(client: Client) -> None:
            for name in names:
                with suppress(NotFound):  # somebody else has removed it
                    await client.schedules.unregister(name)

        ask(url, remove, tenant=tenant)
    words = "would be removed" if dry_run else "is removed"
    lines = "\n".join(f"{called(cron.name)} {words}: {cron.expression} {cron.starts}" for cron in leftovers)
    done(lines, as_json, {"cron_jobs": names, "dry_run": dry_run})


@cron.command("enable", epilog=examples("ojster cron enable daily-report"))
@click.argument("name")
@with_url
@with_json
def enable_cron(name: str, url: str, as_json: bool) -> None:
    """Enable a cron job."""
    cron = ask(url, lambda client: client.schedules.switch(name, True))
    done(f"{name} runs next {ago(cron.next_run_at)}.", as_json, _shown(cron))


@cron.command("disable", epilog=examples("ojster cron disable daily-report"))
@click.argument("name")
@with_url
@with_json
def disable_cron(name: str, url: str, as_json: bool) -> None:
    """Disable a cron job without removing it."""
    cron = ask(url, lambda client: client.schedules.switch(name, False))
    done(f"{name} is disabled.", as_json, _shown(cron))


@cron.command("remove", epilog=examples("ojster cron remove daily-report"))
@click.argument("name")
@with_url
@with_json
def remove_cron(name: str, url: str, as_json: bool) -> None:
    """Remove a cron job; jobs and workflows that it has started stay."""
    cron = ask(url, lambda client: client.schedules.unregister(name))
    done(f"{name} is removed.", as_json, _shown(cron))


def _shown(cron: Cron) -> dict[str, Any]:
    request = "template" if cron.workflow is None else "workflow"
    members = msgspec.structs.asdict(cron)
    del members["template"], members["workflow"]
    return members | {
        "starts": cron.starts,
        request: msgspec.Raw(getattr(cron, request)),
        "created_at": format_optional(cron.created_at),
        "last_run_at": format_optional(cron.last_run_at),
        "next_run_at": format_optional(cron.next_run_at),
    }
