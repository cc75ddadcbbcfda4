"""Jobs of CloudEvents, which the official library makes and sends in each form.

Spec: ojs-cloudevents-interop 6, 8, 9, 10
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, cast

import httpx
import msgspec
import pytest
from cloudevents.core.bindings.http import HTTPMessage, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from ojster.core.access import Grant, Role
from ojster.core.errors import InvalidRequest
from ojster.jobs.idempotency import forget_replies
from ojster.jobs.middleware import EnqueueFunction, JobRequest
from ojster.server import cloud_events
from ojster.server.application import Application
from ojster.server.request import HttpRequest, Services
from ojster.server.triggers import Triggers, read_triggers
from ojster.service import Service
from ojster.storage.transaction import Transaction
from tests.amount import cases
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

JOBS = "/ojs/v1/jobs"
BATCH = {"content-type": "application/cloudevents-batch+json"}
CHARGE = {"id": "ch_3abc123", "amount": 2000, "currency": "usd"}
PUSHED = {"ref": "refs/heads/main", "after": "4bf9", "repository": {"full_name": "shop/web", "tags": ["a", "b c"]}}
TRIGGERS: dict[str, Any] = {
    "filters": [
        {"match": {"type": "com.stripe.charge.succeeded"}, "job_type": "billing.charge", "queue": "billing"},
        {
            "match": {"type": "com.github.push", "source": "https://github.example/shop/*"},
            "job_type": "ci.run",
            "transform": {
                "mode": "template",
                "mapping": {
                    "repo": "$.data.repository.full_name",
                    "tag": "$.data['repository'].tags[1]",
                    "who": "$.source",
                },
            },
        },
        {
            "match": {"type": "com.github.*", "subject": "refs/*/v?"},
            "job_type": "ci.tagged",
            "transform": {"mode": "jsonpath", "expression": "$.data.repository.tags"},
        },
        {
            "match": {"type": "com.github.issue"},
            "job_type": "issue.note",
            "transform": {"mode": "jsonpath", "expression": "$.data.repository"},
        },
        {"match": {"type": "*"}, "job_type": "other", "transform": "pass-through"},
    ]
}


@pytest.fixture
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    triggers = read_triggers(msgspec.json.encode(TRIGGERS | {"filters": TRIGGERS["filters"][:-1]}))
    app = Application(service, max_body_bytes=200_000, triggers=triggers)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        yield client


def event(type: str = "org.openjobspec.trigger.email.send", data: Any = None, **attributes: Any) -> CloudEvent:
    known = {"type": type, "source": "https://shop.example/v1", "id": "ce_1", "datacontenttype": "application/json"}
    return CloudEvent(known | attributes, data)


def encoded(sent: CloudEvent, form: str) -> HTTPMessage:
    return (to_binary_event if form == "binary" else to_structured_event)(sent)


async def send(http: httpx.AsyncClient, sent: CloudEvent, form: str = "structured", **headers: str) -> httpx.Response:
    message = encoded(sent, form)
    return await http.post(JOBS, headers=message.headers | headers, content=message.body)


@pytest.fixture(params=["structured", "binary"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_an_event_becomes_a_job_with_its_data_and_says_where_it_came_from(
    http: httpx.AsyncClient, bench: Bench, form: str
) -> None:
    sent = event("com.stripe.charge.succeeded", CHARGE, subject='ä "50%" ch_3', id="ce_ü")
    answer = await send(http, sent, form)
    assert answer.status_code == 201, answer.text
    job = answer.json()["job"]
    assert answer.headers["location"] == f"{JOBS}/{job['id']}"
    assert (job["type"], job["queue"], job["args"]) == ("billing.charge", "billing", [CHARGE])
    assert datetime.fromisoformat(job["meta"].pop("trigger_time")) == sent.get_time()
    assert job["meta"] == {
        "trigger_event_id": "ce_ü",
        "trigger_source": "https://shop.example/v1",
        "trigger_subject": 'ä "50%" ch_3',
    }
    assert (await bench.fetch_one("billing")).id == job["id"]


@pytest.mark.parametrize(
    ("type", "more", "expected"),
    [
        ("org.openjobspec.trigger.email.send", {}, ("email.send", [PUSHED])),
        (
            "com.github.push",
            {"source": "https://github.example/shop/web"},
            ("ci.run", [{"repo": "shop/web", "tag": "b c", "who": "https://github.example/shop/web"}]),
        ),
        ("com.github.release", {"subject": "refs/tags/v1"}, ("ci.tagged", ["a", "b c"])),
        ("com.github.issue", {"subject": "refs/tags/v10"}, ("issue.note", [PUSHED["repository"]])),
    ],
)
async def test_the_first_trigger_that_covers_an_event_names_the_job_and_makes_its_arguments(
    http: httpx.AsyncClient, form: str, type: str, more: dict[str, str], expected: tuple[str, list[Any]]
) -> None:
    answer = await send(http, event(type, PUSHED, **more), form)
    assert answer.status_code == 201, answer.text
    assert (answer.json()["job"]["type"], answer.json()["job"]["args"]) == expected


@pytest.mark.parametrize(
    ("body", "args"),
    [
        ({}, []),
        ({"data": None}, []),
        ({"data": {"big": 10**30}}, [{"big": 10**30}]),
        ({"data": [1, "two"]}, [1, "two"]),
        ({"data": "text", "datacontenttype": "text/plain"}, ["text"]),
        ({"data": 0}, [0]),
        ({"data_base64": base64.b64encode(b'{"a": 1}').decode()}, [{"a": 1}]),
        ({"data": [1], "data_base64": None}, [1]),
        ({"data": None, "data_base64": base64.b64encode(b"[2]").decode()}, [2]),
        ({"data_base64": None}, []),
        ({"data": 1, "subject": None, "traceparent": "00-x", "n": 7}, [1]),
    ],
)
async def test_data_becomes_the_arguments(http: httpx.AsyncClient, body: dict[str, Any], args: list[Any]) -> None:
    known = {"specversion": "1.0", "type": "org.openjobspec.trigger.a", "source": "s", "id": "1"}
    headers = {"content-type": "application/cloudevents+json; charset=utf-8"}
    answer = await http.post(JOBS, headers=headers, content=msgspec.json.encode(known | body))
    assert answer.status_code == 201, answer.text
    assert answer.json()["job"]["args"] == args


ATTRIBUTES = {"ce-specversion": "1.0", "ce-type": "org.openjobspec.trigger.a", "ce-source": "s", "ce-id": "1"}


@pytest.mark.parametrize("kind", [None, "application/json", "application/vnd.shop+json; charset=utf-8"])
async def test_the_body_of_a_binary_event_is_json_or_missing(http: httpx.AsyncClient, kind: str | None) -> None:
    headers = ATTRIBUTES | ({} if kind is None else {"content-type": kind})
    answer = await http.post(JOBS, headers=headers, content=b"" if kind is None else b" [1, 2] ")
    assert (answer.status_code, answer.json()["job"]["args"]) == (201, [] if kind is None else [1, 2])


async def test_a_quoted_header_is_read_without_its_quotes(http: httpx.AsyncClient) -> None:
    answer = await http.post(JOBS, headers=ATTRIBUTES | {"ce-subject": '"a \\"b\\" %C3%A4"'})
    assert answer.json()["job"]["meta"]["trigger_subject"] == 'a "b" ä'


async def test_a_request_of_open_job_spec_stays_one_beside_headers_of_cloud_events(http: httpx.AsyncClient) -> None:
    headers = ATTRIBUTES | {"content-type": "application/openjobspec+json"}
    answer = await http.post(JOBS, headers=headers, json={"type": "own", "args": []})
    assert (answer.json()["job"]["type"], answer.json()["job"]["meta"]) == ("own", {})


async def test_an_event_that_comes_again_in_any_form_makes_no_second_job(http: httpx.AsyncClient, bench: Bench) -> None:
    first = await send(http, event(data={"n": 1}))
    for form in ("structured", "binary"):
        again = await send(http, event(data={"n": 1}, subject="other"), form)
        assert (again.status_code, again.json()) == (201, first.json())
    batch = await http.post(f"{JOBS}/batch", headers=BATCH, content=b"[%b]" % to_structured_event(event()).body)
    assert batch.json()["results"] == [{"index": 0, "status": 201, "job_id": first.json()["job"]["id"]}]
    others = [await send(http, event(id="ce_2")), await send(http, event(source="other"))]
    assert len({answer.json()["job"]["id"] for answer in [first, *others]}) == 3
    assert len(await bench.fetch(count=10)) == 3


async def test_an_event_that_comes_twice_at_once_makes_one_job(http: httpx.AsyncClient, bench: Bench) -> None:
    answers = await asyncio.gather(*(send(http, event(data=1)) for _ in range(5)))
    assert len({answer.json()["job"]["id"] for answer in answers}) == 1
    assert len(await bench.fetch(count=10)) == 1


async def test_who_repeats_an_event_for_another_queue_does_not_see_its_job(http: httpx.AsyncClient) -> None:
    await send(http, event("com.stripe.charge.succeeded", CHARGE))
    answer = await send(http, event())
    assert (answer.status_code, "ch_3abc123" in answer.text) == (409, False)


async def test_an_event_counts_as_new_after_a_day(http: httpx.AsyncClient, bench: Bench) -> None:
    first = await send(http, event())
    bench.clock.advance(24 * 3600 + 1)
    assert (await send(http, event())).json()["job"]["id"] != first.json()["job"]["id"]


@pytest.mark.parametrize("window", [60, 7 * 24 * 3600])
async def test_the_window_in_which_an_event_is_known_is_of_ones_choice(bench: Bench, window: int) -> None:
    """Spec: ojs-cloudevents-interop 8.4"""

    def forget(tx: Transaction, items: Sequence[None]) -> list[None]:
        forget_replies(tx)
        return [None for _ in items]

    app = Application(bench.service, triggers=read_triggers(b'{"dedup_window": "PT%dS"}' % window))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        first = await send(client, event())
        bench.clock.advance(window - 1)
        await bench.run(forget, None)
        assert (await send(client, event())).json() == first.json()
        bench.clock.advance(2)
        assert (await send(client, event())).json()["job"]["id"] != first.json()["job"]["id"]


async def test_each_event_of_a_batch_is_handled_alone(http: httpx.AsyncClient, bench: Bench) -> None:
    good = [to_structured_event(event(id=str(n), data=n)).body for n in range(3)]
    entries = [good[0], b'{"specversion": "0.3"}', good[1], b"7", good[2]]
    answer = await http.post(f"{JOBS}/batch", headers=BATCH, content=b"[%b]" % b",".join(entries))
    shown = answer.json()
    assert (answer.status_code, shown["summary"]) == (207, {"total": 5, "succeeded": 3, "failed": 2})
    assert [result["status"] for result in shown["results"]] == [201, 400, 201, 400, 201]
    assert [job["args"] for job in shown["jobs"]] == [[0], [1], [2]]
    assert sorted(job.args[0] for job in await bench.fetch(count=10)) == [0, 1, 2]
    nothing = await http.post(f"{JOBS}/batch", headers=BATCH, content=b"[7]")
    assert (nothing.status_code, nothing.json()["count"]) == (422, 0)
    everything = await http.post(f"{JOBS}/batch", headers=BATCH, content=b"[%b]" % good[0])
    assert everything.status_code == 200


async def test_middleware_may_drop_events(http: httpx.AsyncClient, service: Service) -> None:
    async def drop(job: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
        return None

    service.middleware.append(drop)
    assert (await send(http, event())).json() == {"dropped": True}
    batch = await http.post(f"{JOBS}/batch", headers=BATCH, content=b"[%b]" % to_structured_event(event()).body)
    assert batch.json()["results"] == [{"index": 0, "status": 200}]


KNOWN = {"specversion": "1.0", "type": "org.openjobspec.trigger.a", "source": "s", "id": "1"}
KIND = "application/cloudevents+json"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": None}, "specversion"),
        ({"type": ""}, "type"),
        ({"id": 7}, "id"),
        ({"source": ""}, "source"),
        ({"subject": ""}, "subject"),
        ({"time": "yesterday"}, "RFC 3339"),
        ({"datacontenttype": 7}, "datacontenttype"),
        ({"type": "com.unknown"}, "No trigger"),
        ({"type": "org.openjobspec.trigger."}, "type"),
        ({"type": "org.openjobspec.trigger.Not A Type"}, "type"),
        ({"type": "com.github.push", "source": "https://github.example/shop/web", "data": {}}, "repository"),
        ({"data": 1, "data_base64": ""}, "not both"),
        ({"data_base64": "%"}, "Base64"),
        ({"data_base64": base64.b64encode(b"<xml/>").decode()}, "cannot be read"),
        ({"data_base64": 7}, "Base64"),
    ],
)
async def test_an_event_that_is_malformed_or_that_no_trigger_takes_is_refused(
    http: httpx.AsyncClient, bench: Bench, change: dict[str, Any], says: str
) -> None:
    answer = await http.post(JOBS, headers={"content-type": KIND}, content=msgspec.json.encode(KNOWN | change))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert says in answer.json()["error"]["message"]
    batch = await http.post(f"{JOBS}/batch", headers=BATCH, content=msgspec.json.encode([KNOWN | change]))
    assert (batch.status_code, batch.json()["results"][0]["error"]["code"]) == (422, "invalid_request")
    assert await bench.fetch(count=10) == []


@pytest.mark.parametrize("name", ["specversion", "type", "source", "id"])
async def test_an_event_without_a_required_attribute_is_refused(http: httpx.AsyncClient, name: str) -> None:
    body = {known: value for known, value in KNOWN.items() if known != name}
    for answer in (
        await http.post(JOBS, headers={"content-type": KIND}, content=msgspec.json.encode(body)),
        await http.post(JOBS, headers={f"ce-{known}": value for known, value in body.items()}),
    ):
        assert (answer.status_code, f"`{name}`" in answer.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        (JOBS, {"content-type": "application/cloudevents+xml"}, b"<event/>", 400),
        (JOBS, {"content-type": "application/cloudevents"}, b"{}", 400),
        (JOBS, BATCH, b"[]", 400),
        (f"{JOBS}/batch", {"content-type": KIND}, b"{}", 400),
        (f"{JOBS}/batch", BATCH, b"[]", 400),
        (f"{JOBS}/batch", BATCH, b"{}", 400),
        (f"{JOBS}/batch", BATCH, b"[1,", 400),
        (f"{JOBS}/batch", BATCH | {"idempotency-key": "k"}, b"[1]", 400),
        (JOBS, {"content-type": KIND}, b"[]", 400),
        (JOBS, {"content-type": KIND}, b"", 400),
        (JOBS, {"content-type": KIND}, b'{"id": "1", "id": "2"}', 400),
        (JOBS, ATTRIBUTES | {"idempotency-key": "k"}, b"", 400),
        (JOBS, ATTRIBUTES | {"content-type": "application/xml"}, b"<data/>", 400),
        (JOBS, ATTRIBUTES | {"content-type": "application/json"}, b"<data/>", 400),
        (JOBS, ATTRIBUTES | {"content-type": "application/json"}, b'1, "more": 2', 400),
        (JOBS, ATTRIBUTES | {"ce-data": "1"}, b"", 400),
        (JOBS, ATTRIBUTES | {"ce-data_base64": "MQ=="}, b"", 400),
        (JOBS, ATTRIBUTES | {"ce-subject": "%ff"}, b"", 400),
        (JOBS, ATTRIBUTES | {"content-type": "application/json"}, b'"%b"' % (b"x" * 300_000), 413),
        (JOBS, {"content-type": KIND}, b'{"data": "%b"}' % (b"x" * 300_000), 413),
        (f"{JOBS}/batch", BATCH, b'["%b"]' % (b"x" * 300_000), 413),
        (f"{JOBS}/batch", BATCH, b"[" + b"1," * 2_000 + b"1]", 413),
    ],
)
async def test_another_form_or_a_large_body_is_refused(
    http: httpx.AsyncClient, path: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    answer = await http.post(path, headers=headers, content=body)
    assert answer.status_code == status, answer.text
    assert "error" in answer.json()


async def test_an_attribute_that_comes_twice_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post(JOBS, headers=[*ATTRIBUTES.items(), ("ce-id", "2")])
    assert (answer.status_code, "twice" in answer.json()["error"]["message"]) == (400, True)


async def test_a_full_queue_refuses_an_event_which_counts_as_new_afterwards(
    http: httpx.AsyncClient, bench: Bench
) -> None:
    await http.put("/ojs/v1/admin/queues/default/config", json={"backpressure": {"max_depth": 1}})
    await send(http, event())
    assert (await send(http, event(id="ce_2"))).status_code == 429
    await bench.fetch_one()
    assert (await send(http, event(id="ce_2"))).status_code == 201


async def test_an_event_becomes_a_job_of_the_tenant_that_sends_it(http: httpx.AsyncClient) -> None:
    jobs = {}
    for tenant in ("acme", "beta"):
        for form in ("structured", "binary"):
            job = (await send(http, event(data=1), form, **{"x-ojs-tenant": tenant})).json()["job"]
            assert job["meta"]["tenant_id"] == tenant
            jobs[tenant] = job["id"]
    assert jobs["acme"] != jobs["beta"], "each has its own events"
    hidden = await http.get(f"{JOBS}/{jobs['acme']}", headers={"x-ojs-tenant": "beta"})
    assert hidden.status_code == 404


async def test_a_token_needs_the_right_to_enqueue_and_the_queue_of_the_trigger(service: Service) -> None:
    triggers = read_triggers(msgspec.json.encode(TRIGGERS))
    app = Application(service, guarded=True, triggers=triggers)
    tokens = {
        name: (await service.tokens.create(name, [Grant(role)], queues=queues))[1]
        for name, role, queues in (
            ("reader", Role.VIEWER, ()),
            ("mailer", Role.PRODUCER, ("mail",)),
            ("biller", Role.PRODUCER, ("billing",)),
        )
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        sent = event("com.stripe.charge.succeeded", CHARGE)
        assert (await send(client, sent)).status_code == 401
        for name, status in (("reader", 403), ("mailer", 403), ("biller", 201)):
            for form in ("structured", "binary"):
                answer = await send(client, sent, form, authorization=f"Bearer {tokens[name]}")
                assert answer.status_code == status, answer.text
        assert answer.json()["job"]["created_by"] == "biller"


SENT = {"type": "org.openjobspec.job.completed", "source": "ojs://shop", "id": "evt_1", "specversion": "1.0"}


@pytest.mark.parametrize(
    ("triggers", "status"),
    [
        (Triggers(), 400),
        (Triggers(type_prefix=""), 400),
        (read_triggers(msgspec.json.encode(TRIGGERS)), 400),
        (Triggers(type_prefix="org.openjobspec."), 201),
        (read_triggers(b'{"filters": [{"match": {"type": "org.openjobspec.job.*"}, "job_type": "note"}]}'), 201),
    ],
)
async def test_what_servers_send_makes_jobs_only_where_a_trigger_names_it(
    service: Service, triggers: Triggers, status: int
) -> None:
    """Spec: ojs-cloudevents-interop 4.4"""
    app = Application(service, triggers=triggers)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        answer = await client.post(JOBS, headers={"content-type": KIND}, content=msgspec.json.encode(SENT))
        assert answer.status_code == status


@pytest.mark.parametrize(
    "raw",
    [
        "[]",
        "{",
        '{"filter": []}',
        '{"filters": [{"job_type": "a"}]}',
        '{"filters": [{"match": {}, "job_type": "a"}]}',
        '{"filters": [{"match": {"type": ""}, "job_type": "a"}]}',
        '{"filters": [{"match": {"type": "a", "id": "b"}, "job_type": "a"}]}',
        '{"filters": [{"match": {"type": "a"}}]}',
        '{"filters": [{"match": {"type": "a"}, "job_type": "Not A Type"}]}',
        '{"filters": [{"match": {"type": "a"}, "job_type": "a", "queue": "Not A Queue"}]}',
        '{"filters": [{"match": {"type": "a"}, "job_type": "a", "transform": "none"}]}',
        '{"dedup_window": "PT0S"}',
        '{"dedup_window": "P31D"}',
        '{"dedup_window": "a day"}',
        '{"filters": [{"match": {"type": "a"}, "job_type": "a", "transform": {"mode": "other"}}]}',
        '{"filters": [{"match": {"type": "a"}, "job_type": "a", "transform": {"mode": "template"}}]}',
        *(
            f'{{"filters": [{{"match": {{"type": "a"}}, "job_type": "a", "transform": {transform}}}]}}'
            for transform in (
                '{"mode": "jsonpath", "expression": "x"}',
                '{"mode": "jsonpath", "expression": "$..x"}',
                '{"mode": "template", "mapping": {"a": "$[*]"}}',
            )
        ),
    ],
)
def test_triggers_that_are_malformed_are_refused_when_the_server_starts(raw: str) -> None:
    with pytest.raises(InvalidRequest, match="triggers"):
        read_triggers(raw.encode())


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@given(id=TEXT, source=TEXT, subject=TEXT, data=st.dictionaries(TEXT, TEXT | st.integers() | st.booleans(), max_size=3))
@settings(max_examples=cases(400, 50), deadline=None)
def test_both_forms_are_read_alike(id: str, source: str, subject: str, data: dict[str, Any]) -> None:
    sent = event("org.openjobspec.trigger.a", data, id=id, source=source, subject=subject)
    for form in ("structured", "binary"):
        message = encoded(sent, form)
        members = Triggers().request_of(asyncio.run(cloud_events.read_event(request_of(message))))
        meta = msgspec.json.decode(members["meta"])
        assert (meta["trigger_event_id"], meta["trigger_source"], meta["trigger_subject"]) == (id, source, subject)
        assert msgspec.json.decode(members["args"]) == [data]


def request_of(message: HTTPMessage) -> HttpRequest:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": message.body}

    service: Any = None
    headers = [(name.encode(), value.encode()) for name, value in message.headers.items()]
    return HttpRequest(service, 100_000, headers, b"", {}, receive, cast("Services", None))
