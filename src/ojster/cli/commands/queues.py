"""Commands about queues."""

from __future__ import annotations

import asyncio

import click
import msgspec

from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import print_json, print_table, timestamp_json
from ojster.client.interface import Client
from ojster.core.states import JobState
from ojster.queues.queues import QueueStatistics
from ojster.queues.wire import DeletionStrategy


@click.group(epilog=examples("ojster queues list", "ojster queues pause reports"))
def queues() -> None:
    """List, show, create, pause, resume and delete queues."""


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
    if as_json:
        print_json({"queues": [_shown(queue) for queue in statistics]})
        return
    states = [state.value for state in JobState]
    rows = [
        (
            statistics_of_queue.queue.name,
            "paused" if statistics_of_queue.queue.paused_at else "",
            *(statistics_of_queue.counts.get(state, 0) for state in states),
        )
        for statistics_of_queue in statistics
    ]
    print_table(("queue", "", *(f"# {state}" for state in states)), rows, "There are no queues.")


@queues.command("unserved", epilog=examples("ojster queues unserved"))
@with_url
@with_json
def list_unserved(url: str, as_json: bool) -> None:
    """List the queues that no worker serves."""
    names = [queue.name for queue in ask(url, lambda client: client.queues.unserved())]
    if as_json:
        print_json({"queues": names})
        return
    print_table(("queue",), [(name,) for name in names], "Each queue has a worker.")


@queues.command("show", epilog=examples("ojster queues show default"))
@click.argument("name")
@with_url
@with_json
def show_queue(name: str, url: str, as_json: bool) -> None:
    """Show a queue's job counts by state, and its jobs enqueued, completed and failed in the last hour."""
    statistics = ask(url, lambda client: client.queues.statistics(name))
    if as_json:
        print_json(_shown(statistics))
        return
    rows = [(state.value, statistics.counts.get(state.value, 0)) for state in JobState]
    rows += [
        ("enqueued in the last hour", statistics.enqueued),
        ("completed in the last hour", statistics.completed),
        ("failed in the last hour", statistics.failed),
    ]
    print_table((f"queue {name}" + (" (paused)" if statistics.queue.paused_at else ""), "# jobs"), rows, "")


def _shown(statistics: QueueStatistics) -> dict[str, object]:
    shown = msgspec.structs.asdict(statistics)
    queue = shown.pop("queue")
    return {
        "name": queue.name,
        "paused": queue.paused_at is not None,
        "created_at": timestamp_json(queue.created_at),
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


@queues.command("create", epilog=examples("ojster queues create reports"))
@click.argument("name")
@with_url
@with_json
def create_queue(name: str, url: str, as_json: bool) -> None:
    """Create a queue, to set it up before it has jobs. A push creates its queue as well."""
    ask(url, lambda client: client.queues.create(name))
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
