"""Commands for the defaults and the arguments of job types."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import ago, print_json, print_list
from ojster.jobs.job_type_wire import show_job_type
from ojster.jobs.job_types import JobTypeDefaults


@click.group("job-types", epilog=examples("ojster job-types list", "ojster job-types show email.send"))
def job_types() -> None:
    """List, show and delete the defaults of job types, which workers register when they start; show their arguments."""


@job_types.command("list", epilog=examples("ojster job-types list"))
@with_url
@with_json
def list_job_types(url: str, as_json: bool) -> None:
    """List the job types that have defaults."""
    job_types = ask(url, lambda client: client.job_types.all())
    print_list(
        as_json,
        {"job_types": [show_job_type(defaults) for defaults in job_types]},
        ("type", "queue", "attempts", "timeout", "others", "changed"),
        [_row(defaults) for defaults in job_types],
        "No job type has defaults. Workers register those of their applications when they start.",
    )


def _row(defaults: JobTypeDefaults) -> tuple[Any, ...]:
    members: dict[str, Any] = msgspec.json.decode(defaults.body)
    options = dict(members.pop("options", {}))
    queue, retry, millis = options.pop("queue", None), options.pop("retry", {}), options.pop("timeout_ms", None)
    timeout = None if millis is None else f"{millis / 1000:g} s"
    return (
        defaults.type,
        queue,
        retry.get("max_attempts"),
        timeout,
        ", ".join([*options, *members]),
        ago(defaults.updated_at),
    )


@job_types.command("show", epilog=examples("ojster job-types show email.send"))
@click.argument("type")
@with_url
def show_defaults(type: str, url: str) -> None:
    """Show the defaults of a job type as JSON."""
    print_json(show_job_type(ask(url, lambda client: client.job_types.find(type))))


@job_types.command("arguments", epilog=examples("ojster job-types arguments", "ojster job-types arguments email.send"))
@click.argument("type", required=False)
@with_url
def show_arguments(type: str | None, url: str) -> None:
    """Show the arguments of job types as JSON Schemas, as the last worker of each has announced them."""
    signatures = ask(url, lambda client: client.job_types.signatures(type))
    print_json({signature.type: signature.schema for signature in signatures})


@job_types.command("delete", epilog=examples("ojster job-types delete email.send"))
@click.argument("type")
@with_url
@with_json
def delete_defaults(type: str, url: str, as_json: bool) -> None:
    """Delete the defaults of a job type; a worker that starts with it registers them again."""
    ask(url, lambda client: client.job_types.delete(type))
    done(f"{type} has no defaults any more.", as_json, {"type": type, "deleted": True})
