"""Events that webhooks get as CloudEvents, as the official library reads them.

Spec: ojs-cloudevents-interop 5, 7
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event
from hypothesis import given, settings
from hypothesis import strategies as st

import ojster
from ojster.core.events import describe_event
from ojster.events.subscription import CloudEventsForm
from ojster.server.application import Application
from ojster.server.delivery.cloud_event import encode_event
from tests.amount import cases
from tests.conftest import Bench, Http
from tests.events.test_webhooks import Endpoint, application, deliver, endpoint, http, signature, subscribe
from tests.faithful.test_event_data import happen

__all__ = ["application", "endpoint", "http"]

pytestmark = pytest.mark.anyio

SOURCE = "ojs://shop/prod"
FORMS = {"structured": CloudEventsForm(SOURCE), "binary": CloudEventsForm(SOURCE, "binary")}
EMITTED = re.compile(
    r'"((?:backpressure|batch|bulk|collection|cron|dead_letter|definition|job|notification|queue|rate_limit|scheduling'
    r'|schema|tenant|token|webhook|worker|workflow)(?:\.[a-z_]+)+)"'
)
TYPES = sorted({type for file in Path(ojster.__path__[0]).rglob("*.py") for type in EMITTED.findall(file.read_text())})


def read(headers: dict[str, str], body: bytes) -> BaseCloudEvent:
    """Return what the official library reads: it looks for names of headers in lower case."""
    return from_http_event(HTTPMessage({name.lower(): value for name, value in headers.items()}, body))


def check(read: BaseCloudEvent, event: dict[str, Any], prefix: str = "org.openjobspec.") -> None:
    time = datetime.fromisoformat(event["time"])
    said = {"specversion": "1.0", "id": event["id"], "type": prefix + event["type"], "source": SOURCE, "time": time}
    subject = {"subject": event["subject"]} if event["subject"] else {}
    assert dict(read.get_attributes()) == said | subject | {"datacontenttype": "application/json"}
    assert read.get_data() == event["data"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.builds(
    lambda kind, at, subject, queue, data: describe_event(
        (kind, at, subject, queue, None, data, ""), "evt_1", "ojs://ojster"
    ),
    st.sampled_from(TYPES),
    st.integers(0, 4 * 10**15),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.none() | st.text("abc", min_size=1),
    st.dictionaries(st.text("abcd", min_size=1, max_size=5), VALUES, max_size=4),
)


def test_there_are_types_of_every_kind() -> None:
    assert {"job.completed", "workflow.failed", "webhook.subscription.created", "cron.triggered"} <= set(TYPES)
    assert len(TYPES) > 60


@pytest.mark.parametrize("mode", FORMS)
@given(event=EVENTS)
@settings(max_examples=cases(800, 100), deadline=None)
def test_every_event_is_a_valid_cloud_event_that_says_the_same(mode: str, event: dict[str, Any]) -> None:
    headers, body = encode_event(event, FORMS[mode])
    first = read(headers, body)
    check(first, event)
    for encode in (to_binary_event, to_structured_event):
        again = encode(first)
        check(from_http_event(again), event)


@pytest.mark.parametrize("type", TYPES)
def test_each_type_of_events_gets_the_prefix_in_both_forms(type: str) -> None:
    event = describe_event((type, 0, 'ä b%"', "q", None, {}, ""), "evt_1", "ojs://ojster")
    for form in FORMS.values():
        check(read(*encode_event(event, form)), event)


@pytest.mark.parametrize("mode", FORMS)
async def test_a_webhook_gets_each_event_as_a_signed_cloud_event(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint, mode: str
) -> None:
    form = {"source_uri": SOURCE, "content_mode": mode}
    made = await subscribe(http, endpoint, "*", cloudevents=form)
    assert made["cloudevents"] == form | {"type_prefix": "org.openjobspec."}
    await happen(bench, http)
    while await deliver(bench, application):
        pass
    for headers, body in endpoint.seen:
        event = read(headers, body)
        delivery = (await http("GET", f"/ojs/v1/webhooks/deliveries/{headers['x-ojs-delivery-id']}")).json()
        check(event, delivery["event"])
        assert headers["x-ojs-event-type"] == delivery["event_type"] == delivery["event"]["type"]
        assert headers["x-ojs-signature"] == signature(made["secret"], headers["x-ojs-timestamp"], body)
    assert {"job.completed", "workflow.failed", "cron.triggered"} <= set(endpoint.types())


async def test_a_subscription_says_the_source_and_may_have_another_prefix(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    form = {"source_uri": "/jobs?at=here", "type_prefix": "org.example."}
    await subscribe(http, endpoint, "job.enqueued", cloudevents=form)
    job = await bench.push()
    await deliver(bench, application)
    event = read(*endpoint.seen[0])
    assert (event.get_source(), event.get_type(), event.get_subject()) == (
        "/jobs?at=here",
        "org.example.job.enqueued",
        job.id,
    )


async def test_a_test_of_a_webhook_has_the_form_of_its_events(http: Http, endpoint: Endpoint) -> None:
    made = await subscribe(http, endpoint, "*", cloudevents={"source_uri": SOURCE})
    await http("POST", f"/ojs/v1/webhooks/subscriptions/{made['id']}/test")
    event = read(*endpoint.seen[0])
    assert (event.get_type(), event.get_subject()) == ("org.openjobspec.webhook.test", made["id"])


async def test_a_subscription_changes_its_form_and_goes_back(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    made = await subscribe(http, endpoint, "job.enqueued")
    path = f"/ojs/v1/webhooks/subscriptions/{made['id']}"
    assert "cloudevents" not in made
    for form in ({"source_uri": SOURCE, "content_mode": "binary"}, None):
        assert (await http("PATCH", path, {"cloudevents": form})).status_code == 200
        await http("PATCH", path, {"metadata": {"kept": "yes"}})
        assert bool((await http("GET", path)).json().get("cloudevents")) == bool(form)
        await bench.push()
        await deliver(bench, application)
    assert ["ce-id" in headers for headers, _ in endpoint.seen] == [True, False]


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"content_mode": "binary"},
        {"source_uri": ""},
        {"source_uri": "has a space"},
        {"source_uri": "ojs://x\r\nevil: 1"},
        {"source_uri": f"{SOURCE}\n"},
        {"source_uri": "%zz"},
        {"source_uri": SOURCE, "content_mode": "batch"},
        {"source_uri": SOURCE, "type_prefix": "a b"},
        {"source_uri": SOURCE, "prefix": "x."},
        SOURCE,
    ],
)
async def test_a_form_that_gives_no_cloud_events_is_refused(http: Http, form: Any) -> None:
    body = {"url": "http://127.0.0.1:1/", "events": ["*"], "cloudevents": form}
    refused = await http("POST", "/ojs/v1/webhooks/subscriptions", body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
