"""Webhooks: committed events are signed and delivered with retries, and only to public addresses.

Spec: ojs-webhooks
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ojster.core.durations import SECOND
from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.signatures import sign
from ojster.core.timestamps import parse_timestamp
from ojster.events import notifications
from ojster.events.subscription import Subscription
from ojster.events.webhooks import JOB_TYPE, QUEUE
from ojster.insight import attention
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.new_job import read_job
from ojster.jobs.push import admit
from ojster.jobs.queries import Page
from ojster.server.application import Application
from ojster.server.delivery import sender as sending
from ojster.server.delivery import webhook as webhook_sender
from ojster.server.delivery import worker as webhook_worker
from ojster.server.delivery.sender import Refused, is_public
from ojster.server.delivery.webhook import EndpointResponse, WebhookSender
from ojster.server.delivery.worker import WebhookWorker
from ojster.service import Service
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, Http
from tests.serving import listening
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SUBSCRIPTIONS = "/ojs/v1/webhooks/subscriptions"


class Endpoint:
    """A subscriber that records its requests and responds with ``answers`` in order, then repeats the last one."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[Response] = [Response("thanks")]
        self.url = ""

    async def answer(self, request: Request) -> Response:
        self.seen.append((dict(request.headers), await request.body()))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def types(self) -> list[str]:
        return [headers["x-ojs-event-type"] for headers, _ in self.seen]


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    app = Starlette(routes=[Route("/{path:path}", made.answer, methods=["POST"])])
    async with listening(app) as url:
        made.url = f"{url}/hook"
        yield made


@pytest.fixture
async def application(service: Service) -> AsyncIterator[Application]:
    made = Application(service, trusting=True)
    yield made
    await made.deliverer.stop()


@pytest.fixture
async def http(application: Application) -> AsyncIterator[Http]:
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Http(client)


async def subscribe(http: Http, endpoint: Endpoint, *events: str, **more: Any) -> dict[str, Any]:
    response = await http("POST", SUBSCRIPTIONS, {"url": endpoint.url, "events": events} | more)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def deliver(bench: Bench, application: Application) -> int:
    """Deliver up to 100 available delivery jobs; return their number."""
    jobs = await bench.fetch(QUEUE, count=100, worker_id="d")
    for job in jobs:
        await application.deliverer.deliver(job)
    return len(jobs)


async def deliveries(bench: Bench) -> list[Job]:
    return (await bench.service.jobs.select(JobFilter(queue=QUEUE), Page(200))).jobs


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the expected signature: HMAC-SHA256 as in RFC 2104, without the ``hmac`` module that the server uses."""
    key = secret.encode()
    if len(key) > 64:
        key = hashlib.sha256(key).digest()
    key = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + timestamp.encode() + b"." + body).digest()
    return "sha256=" + hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).hexdigest()


async def test_events_are_told_signed_and_described(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    made = await subscribe(http, endpoint, "job.completed")
    await bench.push("t", queue="q")
    job = await bench.fetch_one("q")
    await bench.ack(job)
    assert await deliver(bench, application) == 1
    ((headers, body),) = endpoint.seen
    event = httpx.Response(200, content=body).json()
    assert (event["type"], event["subject"], event["data"]["queue"]) == ("job.completed", job.id, "q")
    assert event["id"].startswith("evt_")
    assert headers["x-ojs-subscription-id"] == made["id"]
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("OJS-Webhook/1.0")
    assert headers["x-ojs-signature"] == signature(made["secret"], headers["x-ojs-timestamp"], body)
    (delivered,) = (await http("GET", "/ojs/v1/webhooks/deliveries?state=delivered")).json()["deliveries"]
    assert delivered["id"] == headers["x-ojs-delivery-id"]
    assert delivered["response"]["response_body"] == "thanks"
    assert "webhook.delivered" in await bench.events()


async def test_deliveries_that_wait_for_a_server_are_no_jobs_that_no_worker_can_run(
    http: Http, bench: Bench, endpoint: Endpoint
) -> None:
    """The servers deliver, and send no heartbeats as workers do; a delivery that waits too long is found, though."""
    await subscribe(http, endpoint, "job.enqueued")
    job = await bench.push("t", queue="q")
    (delivery,) = await deliveries(bench)
    assert delivery.state == "available"
    assert [one.job_id for one in await bench.service.fleet.unrunnable()] == [job.id]
    findings = (await http("GET", "/ojs/v1/admin/attention")).json()["findings"]
    assert [(one["kind"], one["subject"]) for one in findings] == [("unrunnable", job.id)]
    assert [one.code for one in (await bench.service.jobs.explain(delivery.id)).reasons] == ["next"]
    bench.clock.advance(600)
    attention._last.of(bench.service.database.memory).at = float("-inf")
    findings = (await http("GET", "/ojs/v1/admin/attention")).json()["findings"]
    assert ("waiting", QUEUE) in [(one["kind"], one.get("subject")) for one in findings]


@pytest.mark.parametrize(
    ("events", "filter", "why"),
    [
        (["job.*", "workflow.*"], {"queues": ["a"]}, "'workflow.*' have no queue, so 'filter.queues'"),
        (["workflow.completed"], {"job_types": ["x"]}, "'workflow.completed' have no job type, so 'filter.job_types'"),
        (["queue.paused"], {"queues": ["a"], "job_types": ["x"]}, "'queue.paused' have no job type"),
    ],
)
async def test_a_filter_that_lets_no_event_pass_is_refused(
    http: Http, endpoint: Endpoint, events: list[str], filter: dict[str, list[str]], why: str
) -> None:
    refused = await http("POST", SUBSCRIPTIONS, {"url": endpoint.url, "events": events, "filter": filter})
    assert refused.status_code == 400
    assert why in refused.json()["error"]["message"]
    there = f"{SUBSCRIPTIONS}/{(await subscribe(http, endpoint, *events))['id']}"
    assert (await http("PATCH", there, {"filter": filter})).status_code == 400
    assert (await http("PATCH", there, {"filter": filter, "events": ["job.*"]})).status_code == 200
    assert (await http("PATCH", there, {"events": events})).status_code == 400
    assert (await http("PATCH", there, {"events": ["*", "backpressure.*", "queue.full"]})).status_code == 200


@pytest.mark.parametrize("filter", [{"queues": ["a", "shop.*"]}, {"job_types": ["order.*"]}])
async def test_a_filter_has_whole_names(http: Http, endpoint: Endpoint, filter: dict[str, list[str]]) -> None:
    refused = await http("POST", SUBSCRIPTIONS, {"url": endpoint.url, "events": ["job.*"], "filter": filter})
    assert refused.status_code == 400
    assert ".*'" in refused.json()["error"]["message"]
    there = f"{SUBSCRIPTIONS}/{(await subscribe(http, endpoint, 'job.*'))['id']}"
    assert (await http("PATCH", there, {"filter": filter})).status_code == 400


async def test_subscriptions_filter_events_and_never_match_deliveries(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    await subscribe(http, endpoint, "job.*", filter={"queues": ["a"], "job_types": ["x"]})
    for type, queue in (("x", "a"), ("y", "a"), ("x", "b")):
        await bench.push(type, queue=queue)
    await deliver(bench, application)
    assert endpoint.types() == ["job.enqueued"]
    await subscribe(http, endpoint, "*")
    await bench.push("z", queue="c")
    rounds = 0
    while await deliver(bench, application):
        rounds += 1
        assert rounds < 5, "it goes on for ever"
    assert "job.enqueued" in endpoint.types()[1:]
    assert not [type for type in endpoint.types() if type.startswith("webhook.")]


async def test_rolled_back_events_are_not_delivered(http: Http, bench: Bench, endpoint: Endpoint) -> None:
    await subscribe(http, endpoint, "*")
    jobs = [{"type": "t", "args": []}, {"type": "Bad Type", "args": []}]
    assert (await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs, "mode": "atomic"})).status_code == 422
    told = [job.args[1]["type"] for job in await bench.fetch(QUEUE, count=99)]
    assert [type for type in told if type.startswith("job.")] == []


async def test_a_delivery_that_fails_is_made_again_with_the_same_id(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    await subscribe(http, endpoint, "job.enqueued")
    endpoint.answers = [Response("no", 503), Response("slowly", 429), Response("yes")]
    await bench.push()
    for after in (0, 31, 160):
        await bench.run_due(after=after * 1.5)
        assert await deliver(bench, application) == 1
    assert len({headers["x-ojs-delivery-id"] for headers, _ in endpoint.seen}) == 1
    events = await bench.events()
    assert (events.count("webhook.failed"), events.count("webhook.delivered")) == (2, 1)


@pytest.mark.parametrize(
    ("status", "asked", "least"),
    [(429, "7200", 7200), (503, "7200", 7200), (429, "9999999", 86_400), (500, "7200", 15)],
)
async def test_a_delivery_is_retried_when_the_endpoint_asks_for_it_at_the_earliest(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint, status: int, asked: str, least: int
) -> None:
    """Spec: ojs-webhooks 7.1"""
    await subscribe(http, endpoint, "job.enqueued")
    endpoint.answers = [Response("slowly", status, {"Retry-After": asked})]
    await bench.push()
    await deliver(bench, application)
    (waiting,) = (await http("GET", "/ojs/v1/webhooks/deliveries")).json()["deliveries"]
    delay = (parse_timestamp(waiting["next_attempt_at"]) - bench.clock.now) / SECOND
    assert least <= delay <= least * 3


async def test_who_may_look_at_jobs_does_not_learn_the_address_of_a_receiver(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    """Its path and its query may be what keeps others out; only administrators see subscriptions."""
    endpoint.answers = [Response("no", 500)]
    await subscribe(http, endpoint, "job.enqueued", url=f"{endpoint.url}?token=secret")
    await bench.push("t")
    await deliver(bench, application)
    (delivery,) = await deliveries(bench)
    host = endpoint.url.removesuffix("/hook")
    shown = (await http("GET", f"/ojs/v1/jobs/{delivery.id}")).json()["job"]["error"]["message"]
    assert shown == f"{host}/… answered 500."
    failing = (await http("GET", SUBSCRIPTIONS)).json()["subscriptions"][0]["failing"]
    assert failing["error"] == shown


async def test_a_refused_delivery_is_dead_and_can_be_retried(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    await subscribe(http, endpoint, "job.enqueued")
    endpoint.answers = [Response("who are you?", 401), Response("ah")]
    await bench.push()
    await deliver(bench, application)
    (dead,) = (await http("GET", "/ojs/v1/webhooks/deliveries?state=dead")).json()["deliveries"]
    assert dead["error"]["details"]["status_code"] == 401
    assert "webhook.dead" in await bench.events()
    shown = (await http("GET", f"/ojs/v1/webhooks/deliveries/{dead['id']}")).json()
    assert shown["event"]["type"] == "job.enqueued"
    assert (await http("POST", f"/ojs/v1/webhooks/deliveries/{dead['id']}/retry")).status_code == 200
    assert await deliver(bench, application) == 1
    assert len(endpoint.seen) == 2
    assert (await http("GET", "/ojs/v1/webhooks/deliveries?state=lost")).status_code == 400


@pytest.mark.parametrize(("method", "action"), [("GET", ""), ("POST", "/retry")])
async def test_an_unknown_delivery_is_called_one(http: Http, bench: Bench, method: str, action: str) -> None:
    for id in ("del_0190a0b0-0000-7000-8000-000000000000", "nope", f"del_{(await bench.push()).id}"):
        error = (await http(method, f"/ojs/v1/webhooks/deliveries/{id}{action}")).json()["error"]
        assert (error["code"], error["message"]) == ("not_found", f"There is no delivery {id}.")
        assert error["details"] == {"resource_type": "webhook_delivery", "resource_id": id}


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_a_subscription_is_changed_member_by_member(http: Http, endpoint: Endpoint, method: str) -> None:
    made = await subscribe(http, endpoint, "job.completed")
    await http(method, f"{SUBSCRIPTIONS}/{made['id']}", {"active": False})
    (shown,) = await all_of(http)
    assert (shown["active"], shown["url"], shown["events"]) == (False, endpoint.url, ["job.completed"])


async def test_a_failing_delivery_is_attempted_eight_times(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    await subscribe(http, endpoint, "job.enqueued")
    endpoint.url = "http://127.0.0.1:1/"
    await http("PATCH", f"{SUBSCRIPTIONS}/{(await all_of(http))[0]['id']}", {"url": endpoint.url})
    await bench.push()
    attempts = 0
    while await deliver(bench, application):
        attempts += 1
        await bench.run_due(after=2 * 24 * 3600)
    assert attempts == 8


async def all_of(http: Http) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http("GET", SUBSCRIPTIONS)).json()["subscriptions"]
    return found


async def test_redirects_are_followed_but_not_for_ever(http: Http, endpoint: Endpoint) -> None:
    made = await subscribe(http, endpoint, "*")
    endpoint.answers = [Response(status_code=302, headers={"location": "/elsewhere"}), Response("here")]
    tested = (await http("POST", f"{SUBSCRIPTIONS}/{made['id']}/test")).json()
    assert (tested["success"], tested["response_body"]) == (True, "here")
    assert endpoint.types() == ["webhook.test"] * 2
    endpoint.answers = [Response(status_code=307, headers={"location": "/elsewhere"})]
    tested = (await http("POST", f"{SUBSCRIPTIONS}/{made['id']}/test")).json()
    assert tested["success"] is False
    assert "redirects" in tested["error"]


async def test_a_secret_is_told_once_and_rotated_without_a_gap(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    made = await subscribe(http, endpoint, "job.enqueued")
    path = f"{SUBSCRIPTIONS}/{made['id']}"
    assert made["secret"] not in (await http("GET", path)).text
    assert made["secret"] not in (await http("GET", SUBSCRIPTIONS)).text
    assert made["secret"] not in (await http("PATCH", path, {"metadata": {"owner": "us"}})).text
    rotated = (await http("POST", f"{path}/rotate-secret")).json()
    assert rotated["secret"] != made["secret"]
    subscription = Subscription(made["id"], "", (), "new", 0, former_secret="old", former_until=2_000_000_000_000_000)
    assert subscription.keys(1_999_999_999_999_999) == ["new", "old"]
    assert subscription.keys(2_000_000_000_000_000) == ["new"]
    assert sign(["new", "old"], "1", b"x").split(",") == [signature("new", "1", b"x"), signature("old", "1", b"x")]


async def test_a_subscription_is_changed_silenced_and_deleted(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    made = await subscribe(http, endpoint, "job.enqueued")
    path = f"{SUBSCRIPTIONS}/{made['id']}"
    await bench.push()
    await http("PATCH", path, {"active": False})
    await bench.push()
    await http("PATCH", path, {"active": True, "events": ["job.started"]})
    await bench.push()
    assert await deliver(bench, application) == 1
    await bench.fetch_one()
    assert (await http("DELETE", path)).status_code == 200
    assert await deliver(bench, application) == 1
    assert endpoint.types() == ["job.enqueued"], "what waited for a subscription that is gone was dropped"
    for method in ("GET", "PATCH", "DELETE"):
        assert (await http(method, path, {} if method == "PATCH" else None)).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"url": "https://example.com"},
        {"url": "https://example.com", "events": []},
        {"url": "https://example.com", "events": ["*.completed"]},
        {"url": "https://example.com", "events": ["job*"]},
        {"url": "https://example.com", "events": [""]},
        {"url": "ftp://example.com", "events": ["*"]},
        {"url": "https://", "events": ["*"]},
        {"url": "https://user:secret@example.com", "events": ["*"]},
        {"url": "https://example.com:99999", "events": ["*"]},
        {"events": ["*"]},
    ],
)
async def test_a_subscription_that_makes_no_sense_is_refused(http: Http, body: dict[str, Any]) -> None:
    assert (await http("POST", SUBSCRIPTIONS, body)).status_code == 400


@pytest.mark.parametrize(
    "url",
    [
        "http://93.184.216.34/",
        "https://127.0.0.1/",
        "https://localhost/",
        "https://[::1]/",
        "https://10.1.2.3/",
        "https://192.168.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[fd00::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://0.0.0.0/",
        "https://2130706433/",
    ],
)
async def test_addresses_that_are_not_public_are_refused(url: str) -> None:
    sender = WebhookSender()
    with pytest.raises(InvalidRequest) as refused:
        await sender.check(url)
    assert ("--trust-webhooks" in refused.value.message) == url.startswith("http://")  # what allows it is told
    with pytest.raises(Refused):
        await sender.send(Subscription("s", url, ("*",), "secret", 0), {"type": "t"}, "d")
    await sender.close()


async def test_a_host_that_moves_into_the_network_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = iter(["93.184.216.34", "127.0.0.1"])

    def lookup(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(addresses), 443))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    sender = WebhookSender()
    await sender.check("https://example.com/")
    with pytest.raises(Refused, match="not a public host"):
        await sender.send(Subscription("s", "https://example.com/", ("*",), "secret", 0), {"type": "t"}, "d")
    await sender.close()


async def test_the_next_address_is_tried_if_one_cannot_be_reached(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(endpoint.url.rsplit(":", 1)[1].split("/")[0])

    async def lookup(host: str, port: int) -> list[Any]:
        assert host == "some.where"
        return [(0, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.9", "127.0.0.1")]

    sender = WebhookSender(trusting=True)
    monkeypatch.setattr(sending, "_look_up", lookup)
    there = Subscription("s", f"http://some.where:{port}/hook", ("*",), "secret", 0)
    assert (await sender.send(there, {"type": "t"}, "d")).succeeded
    ((headers, _),) = endpoint.seen
    assert headers["host"] == f"some.where:{port}"
    await sender.close()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("192.0.0.8", False),
        ("192.0.0.192", False),
        ("192.88.99.1", False),
        ("::1", False),
        ("::7f00:1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b:1::a00:1", False),
        ("2002:7f00:1::", False),
        ("2001:0:4136:e378:8000:63bf:80ff:fffe", False),
        ("fe80::1", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("3fff::1", False),
        ("5f00::1", False),
    ],
)
def test_addresses_that_stand_for_others_are_not_public(address: str, expected: bool) -> None:
    assert is_public(address) is expected


@pytest.mark.parametrize("end", ["\nERROR forged", "\x1b[31m", "x" * 70_000, "?a=\x7f"])
async def test_a_url_that_no_client_calls_is_refused(end: str) -> None:
    sender = WebhookSender(trusting=True)
    with pytest.raises(InvalidRequest, match="not a valid URL"):
        await sender.check("https://somewhere.invalid/" + end)
    with pytest.raises(Refused, match="not a valid URL"):
        await sender.send(Subscription("s", "http://127.0.0.1/" + end, ("*",), "secret", 0), {"type": "t"}, "d")


async def test_the_log_names_the_host_of_an_endpoint_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lookup(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror("nobody knows it")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with caplog.at_level("INFO"):
        await WebhookSender().check("https://somewhere.invalid/hooks/SECRET?key=SECRET")
    assert "somewhere.invalid" in caplog.text
    assert "SECRET" not in caplog.text


async def test_hosts_at_one_address_share_no_connection(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate that protects a connection names one host."""
    connections: dict[str, set[int]] = {}

    async def lookup(host: str, port: int) -> list[Any]:
        return [(0, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async def answer(request: Request) -> Response:
        assert request.client is not None
        connections.setdefault(request.headers["host"].split(":")[0], set()).add(request.client.port)
        return Response("thanks")

    monkeypatch.setattr(sending, "_look_up", lookup)
    monkeypatch.setattr(endpoint, "answer", answer)
    monkeypatch.setattr(sending, "MAX_HOSTS", 2)
    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    async with listening(app) as url:
        sender = WebhookSender(trusting=True)
        for host in ("one.example", "two.example", "one.example", "two.example", "three.example"):
            there = url.replace("127.0.0.1", host)
            await sender.send(Subscription("s", f"{there}/", ("*",), "secret", 0), {"type": "t"}, "d")
        assert len(sender._clients) == 2
        await sender.close()
    assert sorted(connections) == ["one.example", "three.example", "two.example"]
    assert len(set.union(*connections.values())) == sum(map(len, connections.values())) == 3


class Drip:
    """A raw server whose answer never ends."""

    def __init__(self, head: bytes, piece: bytes, pause: float) -> None:
        self.head, self.piece, self.pause = head, piece, pause
        self.sent = 0
        self.request = b""
        self.ended = asyncio.Event()
        self.ended.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended.clear()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # the caller has gone
            self.request = await reader.readuntil(b"\r\n\r\n")
            writer.write(self.head)
            while not writer.is_closing() and self.sent < 50_000_000:
                writer.write(self.piece)
                self.sent += len(self.piece)
                await writer.drain()
                await asyncio.sleep(self.pause)
        writer.transport.abort()
        self.ended.set()


async def send_to(drip: Drip) -> Any:
    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = WebhookSender(trusting=True)
    there = Subscription("s", f"http://127.0.0.1:{port}/", ("*",), "secret", 0)
    try:
        return await sender.send(there, {"type": "t"}, "d")
    finally:
        await sender.close()
        server.close()
        await drip.ended.wait()
        await asyncio.sleep(0.01)  # for the transport to close


async def test_an_answer_is_read_to_64_kib_and_never_decompressed() -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 99999999\r\n\r\n" + bomb
    drip = Drip(head, b"y" * 65_536, 0)
    answered = await send_to(drip)
    assert answered.succeeded
    assert len(answered.body) == webhook_sender.MAX_RESPONSE_CHARACTERS
    assert "000000" not in answered.body
    assert drip.sent < 20_000_000  # what fits into the buffers of the system
    assert b"accept-encoding: identity" in drip.request.lower()


async def test_a_whole_call_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that sends a byte now and then keeps every timeout of a single read."""
    monkeypatch.setattr(webhook_sender, "TIMEOUT", 0.5)
    drip = Drip(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", b"y", 0.02)
    with pytest.raises(TimeoutError):
        await send_to(drip)


async def test_a_slow_receiver_does_not_make_others_wait(
    http: Http, bench: Bench, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = asyncio.Event(), asyncio.Event()
    under_way = most = 0

    async def send(subscription: Subscription, event: dict[str, Any], id: str) -> EndpointResponse:
        nonlocal under_way, most
        if subscription.url.endswith("/quick"):
            quick.set()
        else:
            under_way += 1
            most = max(most, under_way)
            await slow.wait()
            under_way -= 1
        return EndpointResponse(200, 0.0, "")

    await subscribe(http, endpoint, "job.enqueued")
    for _ in range(30):
        await http.push()
    response = await http("POST", SUBSCRIPTIONS, {"url": endpoint.url + "/quick", "events": ["job.enqueued"]})
    assert response.status_code == 201
    await http.push()
    sender = WebhookSender(trusting=True)
    monkeypatch.setattr(sender, "send", send)
    monkeypatch.setattr(webhook_worker, "MAX_CONCURRENT_DELIVERIES", webhook_worker.SLOTS + 1)
    deliverer = WebhookWorker(bench.service, sender)
    deliverer.start()
    async with asyncio.timeout(PATIENCE):
        await quick.wait()
        assert most == webhook_worker.SLOTS
        slow.set()
        while {job.state for job in await deliveries(bench)} != {"completed"}:
            await bench.run_due(1)
            await asyncio.sleep(0.01)
        await deliverer.stop()
    assert len(await deliveries(bench)) == 32


async def test_a_hanging_lookup_blocks_nothing(http: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, asked = threading.Event(), threading.Event()

    def hang(*_: Any, **__: Any) -> list[Any]:
        asked.set()
        hanging.wait(PATIENCE)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(webhook_worker, "GRACE", 0.01)
    try:
        body = {"url": "http://some.where/", "events": ["job.enqueued"]}
        assert (await http("POST", SUBSCRIPTIONS, body)).status_code == 201
        await http.push()
        deliverer = WebhookWorker(bench.service, WebhookSender(trusting=True))
        deliverer.start()
        async with asyncio.timeout(PATIENCE):
            while not asked.is_set():
                await asyncio.sleep(0.005)
            await deliverer.stop()
        (delivery,) = (await bench.service.jobs.select(JobFilter(queue=QUEUE), Page())).jobs
        assert (delivery.state, delivery.attempt) == ("available", 0)
    finally:
        hanging.set()


async def test_a_server_delivers_by_itself(shared_url: str, endpoint: Endpoint) -> None:
    from ojster.storage.open import open_database

    service = Service(open_database(shared_url))

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async with listening(Application(service, trusting=True)) as url, httpx.AsyncClient(base_url=url) as client:
        await client.post(SUBSCRIPTIONS, json={"url": endpoint.url, "events": ["job.enqueued", "job.started"]})
        for _ in range(30):
            await client.post("/ojs/v1/jobs", json={"type": "t", "args": []})
        await until(lambda: len(endpoint.seen) == 30)
        await client.post("/ojs/v1/workers/fetch", json={"queues": ["default"], "count": 5})
        await until(lambda: len(endpoint.seen) == 35)
        service.drain()
    assert len({headers["x-ojs-delivery-id"] for headers, _ in endpoint.seen}) == 35


@pytest.mark.parametrize(
    ("queue", "type", "args"),
    [
        (QUEUE, JOB_TYPE, []),
        (QUEUE, JOB_TYPE, ["one"]),
        (QUEUE, JOB_TYPE, [{"no": "id"}, 1, 2]),
        (QUEUE, "something.else", ["x", {}]),
        (notifications.QUEUE, notifications.JOB_TYPE, []),
        (notifications.QUEUE, notifications.JOB_TYPE, ["ops", {"no": "message"}]),
        (notifications.QUEUE, notifications.JOB_TYPE, ["ops", 7]),
    ],
)
async def test_what_is_no_delivery_becomes_a_dead_letter_and_stops_no_other(
    bench: Bench, http: Http, endpoint: Endpoint, application: Application, queue: str, type: str, args: list[Any]
) -> None:
    """Nobody can push to these queues from outside; an older version, or a hand in the database, may have."""
    raw = {"type": type, "args": args, "options": {"queue": queue}}

    def put(tx: Transaction, requests: Sequence[None]) -> list[str]:
        found = admit(
            tx, [[read_job(read_members(msgspec.json.encode(raw)), tx.now, largest=10_000)] for _ in requests]
        )
        return [one[0].job.id for one in found if isinstance(one, list)]

    id = await bench.service.database.run(put, None)
    await subscribe(http, endpoint, "job.completed")
    bench.service.database.records_events = True
    application.deliverer.start()
    await bench.push()
    await bench.ack(await bench.fetch_one())
    with anyio.fail_after(20):
        while (await bench.find(id)).state in ("available", "active") or not endpoint.seen:
            await anyio.sleep(0.01)
    found = await bench.find(id)
    assert (found.state, found.dead) == ("discarded", 1)
    assert found.error is not None
    assert found.error["type"] == "MalformedDelivery"
    assert endpoint.types() == ["job.completed"]
