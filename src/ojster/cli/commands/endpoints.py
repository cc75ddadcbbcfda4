"""Commands for push endpoints."""

from __future__ import annotations

import os
from typing import Any

import click
import msgspec

from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import print_list
from ojster.jobs.rate_limit_wire import RateBody
from ojster.push.wire import MAX_TIMEOUT_MS, PushConfigBody, PushEndpointBody, PushEndpointInfo

SECRET_VARIABLE = "OJSTER_PUSH_SECRET"  # noqa: S105  (a name)


@click.group(
    epilog=examples(
        "ojster endpoints set mail https://mail.functions.example/run --type email.send",
        "ojster endpoints list",
        "ojster endpoints resume mail",
    )
)
def endpoints() -> None:
    """Manage the push endpoints: functions to which the server sends jobs."""


@endpoints.command(
    "set",
    epilog=examples(
        "ojster endpoints set mail https://mail.functions.example/run --type email.send --concurrency 20",
        "ojster endpoints set slow https://slow.functions.example/ --queue reports --timeout 300 --rate 100/PT1M",
    ),
)
@click.argument("id")
@click.argument("address")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Queue of its jobs; repeatable.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Job type that it runs; repeatable. Default: all.")
@click.option("--concurrency", type=click.IntRange(1, 1000), help="Maximum number of jobs that it has at a time.")
@click.option("--timeout", type=click.FloatRange(0.001, MAX_TIMEOUT_MS / 1000), help="Timeout of a call, in seconds.")
@click.option("--rate", metavar="LIMIT/PERIOD", help="Maximum number of calls in a period, such as 100/PT1M.")
@with_url
@with_json
def put_endpoint(
    id: str, address: str, queues: tuple[str, ...], types: tuple[str, ...], url: str, as_json: bool, **limits: Any
) -> None:
    """Create or replace the push endpoint ID, which runs jobs at the URL ADDRESS; print the secret that signs them.

    The secret comes from OJSTER_PUSH_SECRET if set; otherwise it stays as it is, or is generated.
    """
    body = PushEndpointBody(address, types, queues or ("default",), _config(**limits))
    shown = ask(url, lambda client: client.push.put(id, body), makes=True)
    done(str(shown.config.signing_secret), as_json, msgspec.to_builtins(shown))


def _config(*, concurrency: int | None, timeout: float | None, rate: str | None) -> PushConfigBody:
    config: dict[str, Any] = {"signing_secret": os.environ.get(SECRET_VARIABLE) or None}
    if concurrency is not None:
        config["max_concurrency"] = concurrency
    if timeout is not None:
        config["timeout_ms"] = round(timeout * 1000)
    if rate is not None:
        config["rate"] = _rate(rate)
    return PushConfigBody(**config)


def _rate(text: str) -> RateBody:
    limit, _, period = text.partition("/")
    if not (limit.isascii() and limit.isdigit() and int(limit) and period):
        raise click.BadParameter(f"{text!r} is not LIMIT/PERIOD, such as 100/PT1M.", param_hint="--rate")
    return RateBody(int(limit), period)


@endpoints.command("list", epilog=examples("ojster endpoints list"))
@with_url
@with_json
def list_endpoints(url: str, as_json: bool) -> None:
    """List the push endpoints."""
    known = ask(url, lambda client: client.push.all())
    rows = [
        (
            endpoint.id,
            endpoint.state,
            endpoint.endpoint,
            ", ".join(endpoint.queues),
            ", ".join(endpoint.job_types) or "all",
            endpoint.config.max_concurrency,
            endpoint.reason or None,
        )
        for endpoint in known
    ]
    headers = ("id", "state", "endpoint", "queues", "job types", "concurrency", "reason")
    print_list(
        as_json,
        {"endpoints": [msgspec.to_builtins(endpoint) for endpoint in known]},
        headers,
        rows,
        "There are no push endpoints.",
    )


@endpoints.command("pause", epilog=examples("ojster endpoints pause mail"))
@click.argument("id")
@with_url
@with_json
def pause_endpoint(id: str, url: str, as_json: bool) -> None:
    """Send no more jobs to a function. Those that it has go on."""
    _tell(ask(url, lambda client: client.push.pause(id)), f"The push endpoint {id} is paused.", as_json)


@endpoints.command("resume", epilog=examples("ojster endpoints resume mail"))
@click.argument("id")
@with_url
@with_json
def resume_endpoint(id: str, url: str, as_json: bool) -> None:
    """Send jobs to a function again, at once, whatever trouble it had."""
    _tell(ask(url, lambda client: client.push.resume(id)), f"The push endpoint {id} gets jobs.", as_json)


@endpoints.command("rotate-secret", epilog=examples("ojster endpoints rotate-secret mail"))
@click.argument("id")
@with_url
@with_json
def rotate_secret(id: str, url: str, as_json: bool) -> None:
    """Give a push endpoint a new secret and print it; for a day, jobs are signed with both."""
    shown = ask(url, lambda client: client.push.rotate(id))
    _tell(shown, str(shown.config.signing_secret), as_json)


@endpoints.command("delete", epilog=examples("ojster endpoints delete mail"))
@click.argument("id")
@with_url
@with_json
def delete_endpoint(id: str, url: str, as_json: bool) -> None:
    """Delete a push endpoint. Jobs that its function has go back to their queues."""
    ask(url, lambda client: client.push.delete(id))
    done(f"The push endpoint {id} is deleted.", as_json, {"id": id, "deleted": True})


def _tell(shown: PushEndpointInfo, text: str, as_json: bool) -> None:
    done(text, as_json, msgspec.to_builtins(shown))
