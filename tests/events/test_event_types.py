"""Types of events: all that happen are known, and those that do not exist are refused wherever they are named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ojster
from ojster.core.errors import InvalidRequest
from ojster.core.events import EventFilter
from ojster.events.event_types import _SPECIFIED, EVENT_TYPES, check_event_types
from ojster.events.wire import SubscriptionBody, SubscriptionPatchBody
from ojster.server.event_streams import check_types_of_channel
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

SOURCE = Path(str(ojster.__file__)).parent
GROUPS = {type.partition(".")[0] for type in EVENT_TYPES}

OTHER_NAMES = {
    "job.args": "a reference in a reaction",
    "job.attempt_completed": "an entry of a job's history",
    "job.attempt_failed": "an entry of a job's history",
    "job.attempt_started": "an entry of a job's history",
    "job.created": "an entry of a job's history",
    "rate_limit.concurrency": "a member of a request",
    "rate_limit.key": "a member of a request",
    "rate_limit.on_limit": "a member of a request",
}


def named_in_the_source() -> Iterator[str]:
    for folder in ("core", "storage", "jobs", "fleet", "queues", "tenancy", "agents", "audit", "files", "collections"):
        yield from _named_in(folder)
    for folder in ("workflows", "schedules", "insight", "events", "push", "server", "worker"):
        yield from _named_in(folder)


def _named_in(folder: str) -> Iterator[str]:
    for path in (SOURCE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and path.name != "event_types.py":
                yield node.value


def test_all_types_that_the_source_names_are_known() -> None:
    named = {name for name in named_in_the_source() if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name)}
    assert {name for name in named if name.partition(".")[0] in GROUPS} - EVENT_TYPES == OTHER_NAMES.keys()


def test_the_documentation_names_all_types_that_only_the_specification_has() -> None:
    page = (Path(__file__).parents[2] / "docs" / "open-job-spec.md").read_text()
    (row,) = re.findall(r"\| events of the specification that are not sent \| (.*) \|", page)
    assert set(re.findall(r"`([a-z_]+\.[a-z_.]+)`", row)) - EVENT_TYPES == _SPECIFIED


async def test_events_that_happen_are_known(bench: Bench) -> None:
    await bench.push()
    await bench.ack(await bench.fetch_one())
    page = await bench.service.events.select(EventFilter(limit=1_000))
    assert {event["type"] for event in page.events} <= EVENT_TYPES


@pytest.mark.parametrize(
    "type", ["*", "job.*", "bulk.*", "webhook.subscription.*", "job.stalled", "system.events_dropped"]
)
def test_a_subscription_may_name_types_of_the_specification_and_prefixes(type: str) -> None:
    check_event_types([type], "events", may_end_in_star=True)


@pytest.mark.parametrize(
    ("type", "advice"),
    [
        ("job.compelted", "did you mean 'job.completed'?"),
        ("jobs.*", "did you mean 'job.*'?"),
        ("job*", "did you mean 'job.*'?"),
        ("invoice.paid", "Types begin with backpressure, batch, "),
        ("", "Types begin with "),
    ],
)
def test_a_type_that_does_not_exist_is_refused(type: str, advice: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_event_types(["job.failed", type], "events", may_end_in_star=True)
    assert advice in refused.value.message


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/events?types=job.compelted", "types"),
        ("/events?type=job.compelted", "types"),
        ("/events?recent=true&types=job.compelted", "types"),
        ("/events/stream?event_types=job.compelted", "event_types"),
        ("/queues/default/events?event_types=job.compelted", "event_types"),
    ],
)
async def test_no_request_names_one(http: Http, path: str, field: str) -> None:
    await http.push()
    refused = await http("GET", f"/ojs/v1{path}")
    error = refused.json()["error"]
    assert (refused.status_code, error["details"]["field"]) == (400, field), refused.text
    assert "did you mean 'job.completed'?" in error["message"]


@pytest.mark.parametrize(
    ("path", "field", "says"),
    [
        ("/queues/default/events?event_types=job.*,workflow.*", "event_types", "the stream of a queue never has one"),
        ("/events/stream?channel=queue:default&event_types=worker.started", "event_types", "have no queue"),
        ("/events?queues=default&types=workflow.completed", "queues", "'workflow.completed' have no queue"),
        ("/events?job_types=email.send&types=queue.paused", "job_types", "'queue.paused' have no job type"),
        ("/events?page=1&queues=default&types=cron.triggered", "queues", "'cron.triggered' have no queue"),
        ("/events?queues=No Queue", "queue", "The queue name 'No Queue' is invalid"),
        ("/events?job_types=email.*", "type", "The job type 'email.*' is invalid"),
    ],
)
async def test_a_request_that_no_event_can_match_is_refused(http: Http, path: str, field: str, says: str) -> None:
    await http.push()
    refused = await http("GET", f"/ojs/v1{path}")
    error = refused.json()["error"]
    assert (refused.status_code, error["details"]["field"]) == (400, field), refused.text
    assert says in error["message"]


@pytest.mark.parametrize("type", ["*", "job.*", "queue.paused", "job.stalled", "system.gap", "server.shutdown"])
def test_the_stream_of_a_queue_may_be_asked_for_what_it_can_have(type: str) -> None:
    check_types_of_channel([type], "queue:default")


async def test_no_subscription_names_one(bench: Bench) -> None:
    webhooks = bench.service.webhooks
    with pytest.raises(InvalidRequest, match=r"did you mean 'job.completed'\?"):
        await webhooks.subscribe(SubscriptionBody("https://192.0.2.1/", ["job.compelted"]))
    made = await webhooks.subscribe(SubscriptionBody("https://192.0.2.1/", ["job.*"]))
    with pytest.raises(InvalidRequest, match=r"did you mean 'job.completed'\?"):
        await webhooks.change(made.id, SubscriptionPatchBody(events=["job.compelted"]))
