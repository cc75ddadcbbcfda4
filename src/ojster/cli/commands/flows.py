"""Commands about flows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from ojster.api.flows import FlowType
from ojster.api.loading import load_app
from ojster.cli.application import with_codecs
from ojster.cli.commands.workflows import ID
from ojster.cli.declared import PLACE
from ojster.cli.options import ask, done, examples, parameter, with_json, with_url
from ojster.cli.output import print_json
from ojster.cli.workflow_selection import sweep_workflows, sweeps_workflows, takes_workflow
from ojster.client.interface import Client
from ojster.core.timestamps import format_timestamp
from ojster.handlers.codec import Codecs
from ojster.handlers.flow_check import FlowFinding, check_flow
from ojster.handlers.flow_export import export_parts
from ojster.workflows.broadcast import Broadcast
from ojster.workflows.bulk import ALLOWED_STATES, WorkflowAction
from ojster.workflows.flow import MAX_WAIT_MS, FlowMessage
from ojster.workflows.stream import StreamAddress


@click.group(
    epilog=examples(
        f"ojster flows send {ID} approval --data '{{\"ok\": true}}'",
        "ojster flows broadcast payment 42 --data '{\"amount\": 7}'",
        f"ojster flows update {ID} put tea",
        f"ojster flows published {ID}",
        f"ojster flows stream {ID} tokens",
        "ojster flows pin order.fulfil 2.0 --from 1.0",
        f"ojster flows export {ID} > run.json",
        "ojster flows check shop.app:app",
    )
)
def flows() -> None:
    """Send messages to flows, ask them for answers, follow their streams, pin, export and check them."""


@flows.command(
    epilog=examples(
        f"ojster flows send {ID} approval --data '{{\"ok\": true}}'",
        f"ojster flows send {ID} paid --data 42 --idempotency-key payment-7",
        f"ojster flows send {ID} card --data '\"4111 1111\"' --app shop.app:app   # encrypted, as the application does",
    )
)
@with_codecs
@takes_workflow()
@click.argument("name")
@with_url
@click.option("--data", help="What to send: JSON, otherwise a string; null by default.")
@click.option("--step", help="Path of the step that is the flow, if the workflow itself is none.")
@click.option("--idempotency-key", help="A message with the same key is kept once.")
@with_json
def send(workflow_id: str, name: str, url: str, data: str | None, codecs: Codecs, as_json: bool, **more: Any) -> None:
    """Send a message to a flow, also before it waits for the message."""
    value = codecs.encode_value(_value(data))
    ask(url, lambda client: client.flows.send(FlowMessage(workflow_id, name, value, **more)))
    done(f"{workflow_id} gets the message {name!r}.", as_json, {"sent": True, "workflow_id": workflow_id})


@flows.command(
    epilog=examples(
        "ojster flows broadcast payment 42 --data '{\"amount\": 7}'",
        "ojster flows broadcast payment order-42 --idempotency-key payment-7",
    )
)
@with_codecs
@click.argument("name")
@click.argument("key")
@with_url
@click.option("--data", help="What to send: JSON, otherwise a string; null by default.")
@click.option("--idempotency-key", help="A message with the same name, key and idempotency key is sent once in 7 days.")
@with_json
def broadcast(
    name: str, key: str, url: str, data: str | None, idempotency_key: str | None, codecs: Codecs, as_json: bool
) -> None:
    """Send a message to all flows that wait for its NAME and KEY."""
    value = codecs.encode_value(_value(data))
    flows = ask(url, lambda client: client.flows.broadcast(Broadcast(name, key, value, idempotency_key)))
    done(f"{flows} flows waited for {name!r} with the key {key!r}.", as_json, {"sent": True, "flows": flows})


@flows.command(
    epilog=examples(
        "ojster flows pin order.fulfil 2.0 --from 1.0 --dry-run",
        f"ojster flows pin order.fulfil 2.0 --id {ID}",
    )
)
@click.argument("flow")
@click.argument("version")
@click.option("--from", "from_version", metavar="VERSION", help="Only runs that are pinned to this version.")
@sweeps_workflows
@with_url
@with_json
def pin(flow: str, version: str, url: str, from_version: str | None, as_json: bool, **filters: Any) -> int:
    """Let the runs of FLOW that have not ended, or the selected ones, go on with VERSION of its code."""
    if not any(value for name, value in filters.items() if name not in ("yes", "dry_run")):
        filters["states"] = ALLOWED_STATES[WorkflowAction.PIN]
    return sweep_workflows(
        WorkflowAction.PIN, url, as_json, filters, flow=flow, version=version, from_version=from_version
    )


@flows.command(epilog=examples(f"ojster flows update {ID} put tea", f"ojster flows update {ID} resize 3 --wait 60"))
@with_codecs
@takes_workflow()
@click.argument("name")
@click.argument("args", nargs=-1)
@with_url
@click.option("--step", help="Path of the step that is the flow, if the workflow itself is none.")
@click.option("--idempotency-key", help="An update with the same key is made once.")
@click.option(
    "--wait", type=click.IntRange(0, 60), default=30, show_default=True, help="Wait for the answer, in seconds."
)
@with_json
def update(
    workflow_id: str,
    name: str,
    args: tuple[str, ...],
    url: str,
    wait: int,
    codecs: Codecs,
    as_json: bool,
    **more: Any,
) -> None:
    """Ask a running flow for something, and show its answer. ARGS are JSON, otherwise strings."""
    values = codecs.encode_list([parameter(f"x={arg}")[1] for arg in args])
    answer = ask(url, lambda client: client.flows.update(workflow_id, name, values, wait_ms=1000 * wait, **more))
    if answer.result is not msgspec.UNSET:
        answer = msgspec.structs.replace(answer, result=_decoded(codecs, answer.result))
    if as_json:
        print_json(answer)
    elif answer.state == "waiting":
        raise click.ClickException(f"The flow has not answered in {wait} s. It handles the update {answer.id} later.")
    elif answer.state == "failed":
        error = msgspec.json.decode(answer.error or b"{}")
        raise click.ClickException(f"{name} failed: {error.get('type')}: {error.get('message')}")
    else:
        print_json(None if answer.result is msgspec.UNSET else answer.result)


@flows.command(epilog=examples(f"ojster flows published {ID}"))
@with_codecs
@takes_workflow()
@with_url
@click.option("--step", help="Path of the step that is the flow, if the workflow itself is none.")
def published(workflow_id: str, url: str, step: str | None, codecs: Codecs) -> None:
    """Show what a flow has published last, as JSON; null if it has published nothing."""
    print_json(codecs.decode_value(ask(url, lambda client: client.flows.published(workflow_id, step))))


@flows.command(epilog=examples(f"ojster flows stream {ID} tokens", f"ojster flows stream {ID} tokens --after 100"))
@with_codecs
@takes_workflow()
@click.argument("name")
@with_url
@click.option("--after", type=PLACE, default=0, help="Number of the chunk after which to begin.")
@click.option("--numbers", is_flag=True, help="Show an object with the number and the time of each chunk.")
def stream(workflow_id: str, name: str, url: str, after: int, numbers: bool, codecs: Codecs) -> None:
    """Print the chunks of a stream of a flow as they come, one JSON value a line, until the stream or the flow ends."""

    async def follow(client: Client) -> None:
        has_ended, position = False, after
        while not has_ended:
            page = await client.flows.read_stream(StreamAddress(workflow_id, name, position), MAX_WAIT_MS)
            for chunk in page.chunks:
                position = chunk.number
                value = _decoded(codecs, chunk.value)
                shown = {"number": position, "at": format_timestamp(chunk.at), "value": value}
                click.echo(msgspec.json.encode(shown if numbers else value))
            has_ended = page.has_ended

    ask(url, follow)


@flows.command(
    epilog=examples(f"ojster flows export {ID} > run.json", f"ojster flows export {ID} --step outer.1 > inner.json")
)
@takes_workflow()
@with_url
@click.option("--step", help="Path of the step that is the flow, if the workflow itself is none.")
def export(workflow_id: str, url: str, step: str | None) -> None:
    """Print a flow with its arguments and records as JSON, for `ojster.testing.replay`.

    Large results are in it, too. The flow may still run.
    """

    async def write(client: Client) -> None:
        async for part in export_parts(client, workflow_id, step):
            click.echo(part, nl=False)

    ask(url, write)


def _value(data: str | None) -> bytes:
    return b"null" if data is None else msgspec.json.encode(parameter(f"x={data}")[1])


def _decoded(codecs: Codecs, value: msgspec.Raw) -> msgspec.Raw:
    """Return a value as it was before it was encoded; as it is stored without codecs."""
    if not codecs:
        return value
    return msgspec.Raw(msgspec.json.encode(codecs.decode_value(msgspec.json.decode(value))))


@flows.command(epilog=examples("ojster flows check shop.app:app", "ojster flows check shop.app --include 'shop.*'"))
@click.argument("app")
@click.option("--include", multiple=True, metavar="MODULE", help="Module with further flows; 'PACKAGE.*': its tasks.")
def check(app: str, include: tuple[str, ...]) -> int:
    """Find calls in the flows of APP (MODULE:NAME) that come out otherwise when the flow runs again.

    These are clocks, random numbers, files, connections, processes and threads, in the function of a flow and in
    functions of its module that it calls, outside of steps. A line that ends with '# flow: ignore' is left out. Exit
    with 1 if there are some.
    """
    handlers = load_app(app, include).handlers.values()
    flows = [handler for handler in handlers if isinstance(handler, FlowType)]
    places: dict[tuple[str, int, int], FlowFinding] = {}
    for flow in flows:
        for finding in check_flow(flow.function):
            places.setdefault((finding.file, finding.line, finding.column), finding)
    for finding in sorted(places.values()):
        path = Path(finding.file)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        click.echo(msgspec.structs.replace(finding, file=str(shown)))
    if not places:
        sound = "1 flow is" if len(flows) == 1 else f"{len(flows)} flows are"
        click.echo(f"{sound} in order." if flows else f"{app} has no flows.", err=True)
    return 1 if places else 0
