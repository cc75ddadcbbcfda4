"""Commands about queues."""

from __future__ import annotations

import asyncio
import functools
import re
from typing import Any, Final

import click
import msgspec

from ojster.cli.declared import Command, option_of, together
from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import ago, console, print_json, print_list, print_table
from ojster.client.interface import Client
from ojster.core.errors import Forbidden
from ojster.core.states import JobState
from ojster.core.timestamps import format_optional, parse_optional
from ojster.core.wire import Json
from ojster.queues.answer_wire import QueueChangesAnswer
from ojster.queues.queues import QueueStatistics
from ojster.queues.wire import DeletionStrategy, QueueConfigBody


@click.group(epilog=examples("ojster queues list", "ojster queues pause reports"))
def queues() -> None:
    """List, show, create, set, pause, resume and delete queues."""


@queues.command("list", epilog=examples("ojster queues list", "ojster queues list --json"))
@with_url
@click.option("--internal", is_flag=True, help="List queues of the server's own work, too, such as deliveries.")
@with_json
def list_queues(url: str, internal: bool, as_json: bool) -> None:
    """List all queues with their job counts by state."""

    async def look(client: Client) -> list[QueueStatistics]:
        queues = await client.queues.all(internal=internal)
        return list(await asyncio.gather(*[client.queues.statistics(queue.name) for queue in queues]))

    statistics = ask(url, look)
    states = [state.value for state in JobState]
    rows = [
        (
            statistics_of_queue.queue.name,
            "paused" if statistics_of_queue.queue.paused_at else "",
            *(statistics_of_queue.counts.get(state, 0) for state in states),
        )
        for statistics_of_queue in statistics
    ]
    print_list(
        as_json,
        {"queues": [_shown(queue) for queue in statistics]},
        ("queue", "", *(f"# {state}" for state in states)),
        rows,
        "There are no queues.",
    )


@queues.command("waits", epilog=examples("ojster queues waits", "ojster queues waits --json"))
@with_url
@with_json
def list_waits(url: str, as_json: bool) -> None:
    """List the queues by trouble: first the one whose oldest job has waited longest, then by waiting time.

    Percentiles of waiting times are estimates for the last hour.
    """
    overviews = ask(url, lambda client: client.queues.overviews(sort="trouble"))
    rows = [
        (
            queue.name,
            "paused" if queue.paused else "",
            ago(parse_optional(queue.oldest_available_at)),
            _of(queue.depth, queue.max_depth),
            _of(queue.counts.active or 0, queue.limits.concurrency),
            *(f"{seconds / 1_000:.1f} s" for seconds in msgspec.structs.astuple(queue.latency_ms)),
        )
        for queue in overviews
    ]
    columns = ("queue", "", "oldest waits since", "# waiting", "# running", "# wait p50", "# p95", "# p99")
    print_list(as_json, {"queues": overviews}, columns, rows, "There are no queues.")


def _of(number: int, most: int | None) -> str:
    """Return a number, and its maximum if there is one."""
    return str(number) if most is None else f"{number} of {most}"


_RATE: Final = re.compile(r"([0-9]+)/(P[0-9A-Z.]+|second|minute|hour|day)")


class RateText(click.ParamType[dict[str, Any]]):
    """A number of starts in a period, such as ``100/PT1M`` or ``5/second``."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return the rate as the API takes it."""
        parts = _RATE.fullmatch(value)
        if parts is None:
            self.fail(f"{value!r} is no rate. Write a number and a period, as in 100/PT1M or 5/second.", param, ctx)
        return {"limit": int(parts[1]), "period": parts[2]}


_RATES: Final = {"type": RateText(), "metavar": "NUMBER/PERIOD"}

_LIMITS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "concurrency": ("--concurrency", {}),
    "rate_limit": ("--rate", _RATES),
    "throttle": ("--throttle", _RATES),
    "max_size": ("--max-depth", {}),
    "overflow_policy": ("--when-full", {}),
}
"""Members of the API that have options: how they are called there, and what is written there in another way."""


def with_limits(command: Command) -> Command:
    """Add options for the limits and the bound of a queue; the command gets them as ``limits``."""

    @functools.wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        limits = QueueConfigBody(**{name: options.pop(name) for name in _LIMITS})
        return command(*args, limits=limits, **options)

    return together(*(option_of(QueueConfigBody, name, flag, **more) for name, (flag, more) in _LIMITS.items()))(
        wrapped
    )


@queues.command(
    "set",
    epilog=examples(
        "ojster queues set mail --concurrency 5 --dry-run",
        "ojster queues set mail --rate 100/PT1M --max-depth 10000 --when-full drop_oldest",
        "ojster queues set mail --concurrency none",
    ),
)
@click.argument("name")
@with_limits
@click.option("--dry-run", is_flag=True, help="Show what would change, and what it means now; change nothing.")
@with_url
@with_json
def set_queue(name: str, limits: QueueConfigBody, dry_run: bool, url: str, as_json: bool) -> None:
    """Change limits of a queue; what is not named stays. Prints each change with what it means for the jobs now."""
    if limits == QueueConfigBody():
        raise click.UsageError("Name what to change, such as --concurrency 4, or --rate none for no limit.")

    async def change(client: Client) -> QueueChangesAnswer:
        foreseen = await client.queues.preview(name, limits)
        if not as_json:
            _print_changes(name, foreseen)
        if not dry_run:
            await client.queues.configure(name, limits)
        return foreseen

    shown = ask(url, change)
    if as_json:
        print_json({"queue": name, "changes": shown.changes, "dry_run": dry_run})
    elif shown.changes:
        console.print("Nothing was changed." if dry_run else f"The queue {name} was changed.", highlight=False)


def _print_changes(name: str, foreseen: QueueChangesAnswer) -> None:
    rows = [
        (change.setting, _value(change.before), _value(change.after), change.effect or "")
        for change in foreseen.changes
    ]
    print_table(("setting", "before", "after", "what it means now"), rows, f"The queue {name} is so already.")


def _value(value: Json) -> str:
    return "none" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()


@queues.command("unserved", epilog=examples("ojster queues unserved"))
@with_url
@with_json
def list_unserved(url: str, as_json: bool) -> None:
    """List the queues that no worker serves."""
    names = [queue.name for queue in ask(url, lambda client: client.queues.unserved())]
    print_list(as_json, {"queues": names}, ("queue",), [(name,) for name in names], "Each queue has a worker.")


@queues.command("show", epilog=examples("ojster queues show default"))
@click.argument("name")
@with_url
@with_json
def show_queue(name: str, url: str, as_json: bool) -> None:
    """Show a queue's job counts by state, its last hour, and its settings if the caller may see them."""

    async def look(client: Client) -> tuple[QueueStatistics, dict[str, Json]]:
        statistics = await client.queues.statistics(name)
        try:
            configured = (await client.queues.configuration(name)).configuration
        except Forbidden:  # a queue is everybody's, and this caller is of one tenant
            return statistics, {}
        settings: dict[str, Json] = msgspec.to_builtins(configured)
        return statistics, settings

    statistics, settings = ask(url, look)
    rows = [(state.value, statistics.counts.get(state.value, 0)) for state in JobState]
    rows += [
        ("enqueued in the last hour, with retries", statistics.enqueued),
        ("completed in the last hour", statistics.completed),
        ("attempts that failed in the last hour", statistics.failed),
    ]
    print_list(
        as_json,
        _shown(statistics) | {"configuration": settings},
        (f"queue {name}" + (" (paused)" if statistics.queue.paused_at else ""), "# jobs"),
        rows,
        "",
    )
    if settings and not as_json:
        console.print()
        print_table(("setting", "value"), [(setting, _value(value)) for setting, value in settings.items()], "")


def _shown(statistics: QueueStatistics) -> dict[str, object]:
    shown = msgspec.structs.asdict(statistics)
    queue = shown.pop("queue")
    return {
        "name": queue.name,
        "paused": queue.paused_at is not None,
        "created_at": format_optional(queue.created_at),
        "counts": {state.value: statistics.counts.get(state.value, 0) for state in JobState},
        "last_hour": {"enqueued": statistics.enqueued, "completed": statistics.completed, "failed": statistics.failed},
    }


@queues.command("pause", epilog=examples("ojster queues pause reports"))
@click.argument("name")
@with_url
@with_json
def pause_queue(name: str, url: str, as_json: bool) -> None:
    """Pause a queue: workers get none of its jobs."""
    ask(url, lambda client: client.queues.pause(name))
    done(f"The queue {name} is paused.", as_json, {"name": name, "paused": True})


@queues.command("create", epilog=examples("ojster queues create reports", "ojster queues create mail --rate 100/PT1M"))
@click.argument("name")
@with_limits
@with_url
@with_json
def create_queue(name: str, limits: QueueConfigBody, url: str, as_json: bool) -> None:
    """Create a queue, to set it up before it has jobs. A push creates its queue as well."""
    ask(url, lambda client: client.queues.create(name, limits), makes=True)
    done(f"The queue {name} is created.", as_json, {"name": name})


@queues.command("delete", epilog=examples("ojster queues delete old", "ojster queues delete old --move-to default"))
@click.argument("name")
@click.option("--discard", is_flag=True, help="Discard the jobs that wait in it.")
@click.option("--move-to", metavar="QUEUE", help="Move the jobs that wait in it to another queue.")
@with_url
@with_json
def delete_queue(name: str, discard: bool, move_to: str | None, url: str, as_json: bool) -> None:
    """Delete a queue and its configuration. Without an option, it must be empty; active jobs must have ended."""
    if discard and move_to is not None:
        raise click.UsageError("--discard and --move-to exclude each other.")
    strategy: DeletionStrategy = "discard" if discard else "reject" if move_to is None else "move"
    changed = ask(url, lambda client: client.queues.delete(name, strategy, move_to))
    what = "" if strategy == "reject" else f"; {changed} jobs {'discarded' if discard else f'moved to {move_to}'}"
    done(f"The queue {name} is deleted{what}.", as_json, {"name": name, "jobs_affected": changed})


@queues.command("resume", epilog=examples("ojster queues resume reports"))
@click.argument("name")
@with_url
@with_json
def resume_queue(name: str, url: str, as_json: bool) -> None:
    """Resume a paused queue."""
    ask(url, lambda client: client.queues.resume(name))
    done(f"The queue {name} is resumed.", as_json, {"name": name, "paused": False})
