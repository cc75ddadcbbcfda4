"""Commands that list workers, send them directives, and manage worker rules."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from ojster.cli.option_rules import excludes
from ojster.cli.options import ask, done, examples, parameters, with_json, with_url
from ojster.cli.output import Id, ago, print_list
from ojster.core.timestamps import format_optional
from ojster.fleet.answer_wire import show_rule
from ojster.fleet.worker_rule import read_rule_members


@click.group(
    epilog=examples(
        "ojster workers list", "ojster workers tell ID quiet", "ojster workers disable ID --reason 'disk full'"
    )
)
def workers() -> None:
    """List workers, direct them (quiet, running, terminate), and manage rules that override what they report."""


@workers.command("list", epilog=examples("ojster workers list"))
@with_url
@with_json
def list_workers(url: str, as_json: bool) -> None:
    """List the workers that send heartbeats."""
    workers = ask(url, lambda client: client.fleet.all())
    shown = [
        msgspec.structs.asdict(worker)
        | {"started_at": format_optional(worker.started_at), "last_seen_at": format_optional(worker.last_seen_at)}
        for worker in workers
    ]
    print_list(
        as_json,
        {"workers": shown},
        ("id", "state", "directive", "host", "# pid", "queues", "# jobs", "provides", "started", "last seen"),
        [
            (
                worker.id,
                worker.state if worker.enabled else "disabled",
                worker.directive,
                worker.hostname,
                worker.pid,
                ", ".join(worker.queues),
                f"{worker.active_jobs}/{worker.concurrency}",
                " ".join(f"{name}={','.join(values)}" for name, values in worker.provides.items()),
                ago(worker.started_at),
                ago(worker.last_seen_at),
            )
            for worker in workers
        ],
        "There are no workers.",
    )


@workers.command("unrunnable", epilog=examples("ojster workers unrunnable"))
@with_url
@with_json
def list_unrunnable(url: str, as_json: bool) -> None:
    """List waiting jobs that none of the present workers can run, with the reasons."""
    groups = ask(url, lambda client: client.fleet.unrunnable())
    print_list(
        as_json,
        {"unrunnable": groups},
        ("queue", "type", "# jobs", "oldest", "reasons"),
        [
            (
                group.queue,
                group.type,
                group.jobs if group.is_complete else f"≥ {group.jobs}",
                Id(group.job_id),
                "; ".join(group.reasons),
            )
            for group in groups
        ],
        "Every waiting job has a worker that can run it.",
    )


@workers.command(
    "tell", epilog=examples("ojster workers tell worker_0194… quiet", "ojster workers tell worker_0194… terminate")
)
@click.argument("worker_id")
@click.argument("directive", type=click.Choice(["running", "quiet", "terminate"]))
@with_url
@with_json
def tell_worker(worker_id: str, directive: str, url: str, as_json: bool) -> None:
    """Send a directive to a worker. It is told at once."""
    ask(url, lambda client: client.fleet.direct(worker_id, directive))
    done(f"{worker_id} will get the directive {directive}.", as_json, {"id": worker_id, "directive": directive})


@workers.command("disable", epilog=examples("ojster workers disable builder-3 --reason 'its disk is full'"))
@click.argument("worker_id")
@click.option("--reason", help="Reason, for operators.")
@with_url
@with_json
def disable_worker(worker_id: str, reason: str | None, url: str, as_json: bool) -> None:
    """Disable a worker, present or not: it gets no jobs, and the jobs it holds go to other workers."""
    _change(url, worker_id, {"enabled": False, "reason": reason}, as_json, f"{worker_id} is disabled.")


@workers.command("enable", epilog=examples("ojster workers enable builder-3"))
@click.argument("worker_id")
@with_url
@with_json
def enable_worker(worker_id: str, url: str, as_json: bool) -> None:
    """Enable a worker: it gets jobs again."""
    _change(url, worker_id, {"enabled": True, "reason": None}, as_json, f"{worker_id} is enabled.")


@workers.command(
    "configure",
    epilog=examples(
        "ojster workers configure builder-3 --provide memory_mb=4096 --deny 'reports.*'",
        "ojster workers configure builder-4 --allow mail.send --allow 'mail.bulk.*'",
    ),
)
@click.argument("worker_id")
@click.option("--provide", "provided", multiple=True, metavar="NAME=VALUE", help="Set a capability; repeatable.")
@click.option("--lacks", multiple=True, metavar="NAME", help="Remove a capability that it reports; repeatable.")
@click.option("--allow", multiple=True, metavar="TYPE", help="Only jobs of this type, or 'mail.*'; repeatable.")
@click.option("--deny", multiple=True, metavar="TYPE", help="No jobs of this type; repeatable.")
@click.option("--reason", help="Reason, for operators.")
@with_url
@with_json
@excludes("allow", "deny")
def configure_worker(
    worker_id: str,
    provided: tuple[str, ...],
    lacks: tuple[str, ...],
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    reason: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Override a worker's capabilities and its job types. Options that are not given stay unchanged."""
    changes: dict[str, Any] = {}
    if provided or lacks:
        changes["provides"] = parameters(provided) | dict.fromkeys(lacks)
    if allow:
        changes["allowed_types"] = allow
    if deny:
        changes["denied_types"] = deny
    if reason is not None:
        changes["reason"] = reason
    if not changes:
        raise click.UsageError("Give at least one of --provide, --lacks, --allow, --deny or --reason.")
    _change(url, worker_id, read_rule_members(changes), as_json, f"The rule of {worker_id} is saved.")


@workers.command("rules", epilog=examples("ojster workers rules"))
@with_url
@with_json
def list_rules(url: str, as_json: bool) -> None:
    """List the worker rules, also of workers that are not present."""
    rules = ask(url, lambda client: client.fleet.rules())
    print_list(
        as_json,
        {"items": [msgspec.to_builtins(show_rule(rule)) for rule in rules]},
        ("id", "", "provides", "allowed", "denied", "reason", "changed"),
        [
            (
                rule.id,
                "" if rule.enabled else "disabled",
                " ".join(
                    f"{name}={value}" if value is not None else f"no {name}" for name, value in rule.provides.items()
                ),
                "all" if rule.allowed is None else ", ".join(rule.allowed) or "none",
                ", ".join(rule.denied),
                rule.reason,
                ago(rule.changed_at),
            )
            for rule in rules
        ],
        "There are no worker rules.",
    )


@workers.command("forget", epilog=examples("ojster workers forget builder-3"))
@click.argument("worker_id")
@with_url
@with_json
def forget_rule(worker_id: str, url: str, as_json: bool) -> None:
    """Delete the rule of a worker; what the worker reports applies again."""
    ask(url, lambda client: client.fleet.forget_rule(worker_id))
    done(f"The rule of {worker_id} is deleted.", as_json, {"id": worker_id, "deleted": True})


def _change(url: str, worker_id: str, members: dict[str, Any], as_json: bool, said: str) -> None:
    rule = ask(url, lambda client: client.fleet.change_rule(worker_id, members), makes=True)
    done(said, as_json, msgspec.to_builtins(show_rule(rule)))
