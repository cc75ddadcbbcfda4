"""How are workers looked at and directed from the command line?"""

from __future__ import annotations

import click
import msgspec

from ojster.cli.common import ask, done, examples, with_json, with_url
from ojster.cli.output import ago, moment_json, print_json, print_table


@click.group(epilog=examples("ojster workers list", "ojster workers tell ID quiet"))
def workers() -> None:
    """List workers, and tell them to be quiet, to resume or to stop."""


@workers.command("list", epilog=examples("ojster workers list"))
@with_url
@with_json
def list_workers(url: str, as_json: bool) -> None:
    """List the workers that send heartbeats."""
    found = ask(url, lambda client: client.workers())
    if as_json:
        shown = [
            msgspec.structs.asdict(worker)
            | {"started_at": moment_json(worker.started_at), "last_seen_at": moment_json(worker.last_seen_at)}
            for worker in found
        ]
        print_json({"workers": shown})
        return
    print_table(
        ("id", "state", "told", "host", "# pid", "queues", "# jobs", "provides", "started", "last seen"),
        [
            (
                worker.id,
                worker.state,
                worker.directive,
                worker.hostname,
                worker.pid,
                ", ".join(worker.queues),
                f"{worker.active_jobs}/{worker.concurrency}",
                " ".join(f"{name}={','.join(values)}" for name, values in worker.provides.items()),
                ago(worker.started_at),
                ago(worker.last_seen_at),
            )
            for worker in found
        ],
        "There are no workers.",
    )


@workers.command("unrunnable", epilog=examples("ojster workers unrunnable"))
@with_url
@with_json
def list_unrunnable(url: str, as_json: bool) -> None:
    """List the jobs that wait and that no worker can run which is there, with the reasons."""
    found = ask(url, lambda client: client.unrunnable())
    if as_json:
        print_json({"unrunnable": found})
        return
    print_table(
        ("queue", "# jobs", "oldest", "why"),
        [(one.queue, one.jobs, one.job_id, "; ".join(one.reasons)) for one in found],
        "Every job that needs something has a worker that provides it.",
    )


@workers.command(
    "tell", epilog=examples("ojster workers tell worker_0194… quiet", "ojster workers tell worker_0194… terminate")
)
@click.argument("worker_id")
@click.argument("directive", type=click.Choice(["running", "quiet", "terminate"]))
@with_url
@with_json
def tell_worker(worker_id: str, directive: str, url: str, as_json: bool) -> None:
    """Tell a worker, with its next heartbeat, what to be."""
    ask(url, lambda client: client.direct(worker_id, directive))
    done(f"{worker_id} will be told to be {directive}.", as_json, {"id": worker_id, "directive": directive})
