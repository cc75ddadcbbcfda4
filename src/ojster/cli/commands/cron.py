"""Commands for cron jobs."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from ojster.cli.commands.jobs import _argument
from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import ago, job_json, print_json, print_table, timestamp_json
from ojster.core.timestamps import format_timestamp, system_clock
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import OVERLAP_POLICIES, OverlapPolicy


@click.group(
    epilog=examples("ojster cron list", "ojster cron add nightly '0 3 * * *' cleanup --timezone Europe/Berlin")
)
def cron() -> None:
    """List, show, add, run, enable, disable and remove cron jobs."""


@cron.command("list", epilog=examples("ojster cron list"))
@with_url
@with_json
def list_crons(url: str, as_json: bool) -> None:
    """List the cron jobs."""
    crons = ask(url, lambda client: client.schedules.all())
    if as_json:
        print_json({"crons": [_shown(cron) for cron in crons]})
        return
    print_table(
        ("name", "schedule", "zone", "type", "overlap", "next run", "last run", "# runs"),
        [
            (
                cron.name,
                cron.expression,
                cron.timezone,
                msgspec.json.decode(cron.template)["type"],
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
    at: int | None = system_clock()
    while cron.enabled and len(moments) < occurrences and (at := cron.schedule.next_after(at or 0)) is not None:
        moments.append(format_timestamp(at))
    if as_json:
        print_json(_shown(cron) | {"next": moments})
        return
    rows = [(key, value) for key, value in _shown(cron).items() if not isinstance(value, msgspec.Raw)]
    print_table(("", name), [*rows, *(("then" if index else "next", at) for index, at in enumerate(moments))], "")


@cron.command(
    "add",
    epilog=examples(
        "ojster cron add daily-report '0 9 * * MON-FRI' report.build 42 --timezone Europe/Berlin",
        "ojster cron add sweep '@every 90s' cache.sweep",
    ),
)
@click.argument("name")
@click.argument("expression")
@click.argument("type")
@click.argument("args", nargs=-1)
@click.option("--timezone", default="UTC", show_default=True, help="IANA time zone of EXPRESSION.")
@click.option("--overlap", type=click.Choice(OVERLAP_POLICIES), default="skip", show_default=True)
@click.option("--queue", "-q", default="default", show_default=True)
@with_url
@with_json
def add_cron(
    name: str,
    expression: str,
    type: str,
    args: tuple[str, ...],
    timezone: str,
    overlap: OverlapPolicy,
    queue: str,
    url: str,
    as_json: bool,
) -> None:
    """Register a cron job that enqueues jobs of TYPE, or update the cron job NAME."""
    template = {"type": type, "args": [_argument(text) for text in args], "options": {"queue": queue}}
    cron = Cron(
        name=name,
        expression=expression,
        timezone=timezone,
        overlap_policy=overlap,
        template=msgspec.json.encode(template),
    )
    _ = cron.schedule
    registered = ask(url, lambda client: client.schedules.register(cron), makes=True)
    verb = "registered" if registered.is_new else "updated" if registered.is_changed else "unchanged"
    shown = registered.cron
    done(f"{name} is {verb} and runs next {ago(shown.next_run_at)}.", as_json, _shown(shown))


@cron.command("run", epilog=examples("ojster cron run daily-report"))
@click.argument("name")
@with_url
@with_json
def run_cron(name: str, url: str, as_json: bool) -> None:
    """Enqueue the job of a cron job now; its next run stays as it is."""
    job = ask(url, lambda client: client.schedules.trigger(name))
    done(job.id, as_json, job_json(job))


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
    """Remove a cron job; jobs that it has enqueued stay."""
    cron = ask(url, lambda client: client.schedules.unregister(name))
    done(f"{name} is removed.", as_json, _shown(cron))


def _shown(cron: Cron) -> dict[str, Any]:
    return msgspec.structs.asdict(cron) | {
        "template": msgspec.Raw(cron.template),
        "created_at": timestamp_json(cron.created_at),
        "last_run_at": timestamp_json(cron.last_run_at),
        "next_run_at": timestamp_json(cron.next_run_at),
    }
