"""Notifications about jobs, by mail and webhook, sent to a real mail server and a real endpoint."""

from __future__ import annotations

import email
import email.policy
from collections.abc import AsyncIterator, Iterator
from email.message import EmailMessage
from typing import Any

import httpx
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from ojster.core.access import Grant, Role
from ojster.core.errors import InvalidRequest
from ojster.events.channel import Channel, check_channel
from ojster.events.notifications import QUEUE, find_channels
from ojster.server.application import Application
from ojster.server.delivery.mail import Smtp, read_smtp
from tests.conftest import Bench, Http
from tests.events.test_webhooks import Endpoint, endpoint, signature
from tests.postgres import free_port

__all__ = ["endpoint"]

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"
MAIL = {"method": "email", "from": "jobs@example.com", "to": ["ada@example.com"]}


class MailServer:
    """A mail server that records the messages it accepts."""

    def __init__(self) -> None:
        self.taken: list[tuple[list[str], EmailMessage]] = []
        self.answer = "250 OK"
        self.port = 0

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.answer.startswith("2"):
            content = envelope.content or b""
            raw = content if isinstance(content, bytes) else content.encode()
            message = email.message_from_bytes(raw, policy=email.policy.default)
            assert isinstance(message, EmailMessage)
            self.taken.append((list(envelope.rcpt_tos), message))
        return self.answer


@pytest.fixture
def office() -> Iterator[MailServer]:
    made = MailServer()
    made.port = free_port()
    controller = Controller(made, hostname="127.0.0.1", port=made.port)
    controller.start()
    yield made
    controller.stop()


@pytest.fixture
async def application(bench: Bench, office: MailServer) -> AsyncIterator[Application]:
    made = Application(bench.service, trusting=True, smtp=Smtp("127.0.0.1", office.port, "none"))
    yield made
    await made.deliverer.stop()


@pytest.fixture
async def http(application: Application) -> AsyncIterator[Http]:
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Http(client)


async def put(http: Http, name: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await http("PUT", f"{BASE}/channels/{name}", body)
    assert response.status_code in (200, 201), response.text
    channel: dict[str, Any] = response.json()["channel"]
    return channel


async def push(http: Http, event: str, *, status: int = 201, **action: Any) -> dict[str, Any]:
    reactions = {event: [{"action": "notify", **action}]}
    body = {"type": "t", "args": ["secret"], "event_reactions": reactions, "options": {"retry": {"max_attempts": 1}}}
    response = await http("POST", f"{BASE}/jobs", body)
    assert response.status_code == status, response.text
    shown: dict[str, Any] = response.json()
    job: dict[str, Any] = shown.get("job", shown)
    return job


async def send(bench: Bench, application: Application) -> list[Any]:
    jobs = await bench.fetch(QUEUE, count=10, worker_id="d")
    for job in jobs:
        await application.deliverer.deliver(job)
    return [await bench.find(job) for job in jobs]


async def test_a_failed_job_is_reported_by_mail(
    http: Http, bench: Bench, application: Application, office: MailServer
) -> None:
    await put(http, "ops", MAIL)
    job = await push(http, "on_failure", channel="ops", text="Look at {job.error.message}!")
    await bench.fail(await bench.fetch_one())
    assert await bench.service.fleet.unrunnable() == [], "a server sends it"
    (sent,) = await send(bench, application)
    assert sent.state == "completed"
    ((recipients, message),) = office.taken
    assert recipients == ["ada@example.com"]
    assert (message["From"], message["Subject"]) == ("jobs@example.com", "The job t has failed")
    text = message.get_content()
    assert "Look at it failed!" in text
    assert f"id: {job['id']}" in text
    assert "secret" not in text, "arguments are nobody's business"
    assert "notification.sent" in await bench.events()


async def test_s64_action_settings_override_channel_settings(
    http: Http, bench: Bench, application: Application, office: MailServer
) -> None:
    await put(http, "ops", MAIL | {"cc": ["bob@example.com"], "subject": "{job.id} {job.none} {x}"})
    first = await push(http, "on_creation", channel="ops")
    await push(http, "on_creation", channel="ops", to=["c@example.com"], cc=["d@example.com"], subject="Hello {event}")
    await send(bench, application)
    by_subject = {message["Subject"]: recipients for recipients, message in office.taken}
    assert by_subject == {
        f"{first['id']} {{job.none}} {{x}}": ["ada@example.com", "bob@example.com"],
        "Hello was created": ["c@example.com", "d@example.com"],
    }


async def test_a_program_hears_by_a_signed_call(
    http: Http, bench: Bench, application: Application, endpoint: Endpoint
) -> None:
    channel = await put(http, "chat", {"method": "webhook", "url": endpoint.url})
    job = await push(http, "on_success", channel="chat", subject="done")
    await bench.ack(await bench.fetch_one())
    await send(bench, application)
    ((headers, body),) = endpoint.seen
    assert headers["x-ojs-signature"] == signature(channel["secret"], headers["x-ojs-timestamp"], body)
    assert job["id"].encode() in body
    assert b'"event":"on_success"' in body


async def test_a_message_that_is_not_taken_is_sent_again_and_at_last_a_dead_letter(
    http: Http, bench: Bench, application: Application, office: MailServer
) -> None:
    await put(http, "ops", MAIL)
    await push(http, "on_creation", channel="ops")
    office.answer = "451 Later"
    (waiting,) = await send(bench, application)
    assert waiting.state == "retryable"
    office.answer = "250 OK"
    await bench.run_due(3_600)
    (sent,) = await send(bench, application)
    assert (sent.state, len(office.taken)) == ("completed", 1)
    await push(http, "on_creation", channel="ops")
    office.answer = "550 Never"
    (dead,) = await send(bench, application)
    assert (dead.state, dead.dead) == ("discarded", 1)
    assert "notification.dead" in await bench.events()


async def test_a_server_without_mail_leaves_messages_for_later(http: Http, bench: Bench) -> None:
    await put(http, "ops", MAIL)
    await push(http, "on_creation", channel="ops")
    without = Application(bench.service)
    (waiting,) = await send(bench, without)
    await without.deliverer.stop()
    assert waiting.state == "retryable"
    assert "--smtp" in waiting.error["message"]


async def test_messages_for_a_deleted_channel_are_dropped(
    http: Http, bench: Bench, application: Application, office: MailServer
) -> None:
    await put(http, "ops", MAIL)
    await push(http, "on_creation", channel="ops")
    assert (await http("DELETE", f"{BASE}/channels/ops")).status_code == 200
    (dropped,) = await send(bench, application)
    assert (dropped.state, office.taken) == ("completed", [])


async def test_s65_a_channel_that_is_not_there_refuses_the_job(http: Http) -> None:
    refusal = await push(http, "on_success", status=400, channel="nowhere")
    assert "There is no channel 'nowhere'" in refusal["error"]["message"]
    flow = {"type": "chain", "steps": [{"type": "a", "args": []}]}
    flow["steps"][0]["event_reactions"] = {"on_success": [{"action": "notify", "channel": "nowhere"}]}  # type: ignore[index]
    assert (await http("POST", f"{BASE}/workflows", flow)).status_code == 400


async def test_s64_a_channel_that_is_deleted_later_is_noted_on_the_job(http: Http, bench: Bench) -> None:
    await put(http, "ops", MAIL)
    job = await push(http, "on_success", channel="ops")
    await http("DELETE", f"{BASE}/channels/ops")
    assert (await bench.ack(await bench.fetch_one())).state == "completed"
    assert "job.reaction_failed" in [entry.type for entry in await bench.service.jobs.history(job["id"])]


async def test_channels_are_each_tenants_own(http: Http, bench: Bench) -> None:
    await put(http, "ops", MAIL)
    beta = {"X-OJS-Tenant": "beta"}
    assert (await http("GET", f"{BASE}/channels", headers=beta)).json()["channels"] == []
    body = {"type": "t", "args": [], "event_reactions": {"on_success": [{"action": "notify", "channel": "ops"}]}}
    assert (await http("POST", f"{BASE}/jobs", body, headers=beta)).status_code == 400
    assert (await http("DELETE", f"{BASE}/channels/ops", headers=beta)).status_code == 404


async def test_a_contributor_may_not_choose_recipients(http: Http, bench: Bench) -> None:
    await put(http, "ops", MAIL)
    guarded = Application(bench.service, guarded=True)
    transport = httpx.ASGITransport(app=guarded)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for role, to, status in (
            (Role.CONTRIBUTOR, [], 201),
            (Role.CONTRIBUTOR, ["x@example.com"], 403),
            (Role.OWNER, ["x@example.com"], 201),
        ):
            _, token = await bench.service.tokens.create("a", [Grant(role)])
            reactions = {"on_success": [{"action": "notify", "channel": "ops", "to": to}]}
            body = {"type": "t", "args": [], "event_reactions": reactions}
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            assert (await client.post(f"{BASE}/jobs", json=body, headers=headers)).status_code == status
    await guarded.deliverer.stop()


async def test_a_secret_is_told_once(http: Http, endpoint: Endpoint) -> None:
    made = await put(http, "chat", {"method": "webhook", "url": endpoint.url})
    assert made["secret"].startswith("whsec_")
    assert "secret" not in (await http("GET", f"{BASE}/channels")).json()["channels"][0]


async def test_a_channel_without_a_secret_gets_one_in_the_process_too(bench: Bench) -> None:
    for url in ("https://example.com/a", "https://example.com/b"):
        await bench.service.events.put_channel(Channel("chat", "webhook", url=url))
        known = await bench.run(find_channels, "chat")
        assert isinstance(known, Channel)
        assert (known.url, (known.secret or "")[:6]) == (url, "whsec_")
    await bench.service.events.put_channel(Channel("chat", "webhook", url=url, secret="mine"))
    known = await bench.run(find_channels, "chat")
    assert isinstance(known, Channel)
    assert known.secret == "mine"


@pytest.mark.parametrize(
    "body",
    [
        {"method": "email", "to": ["a@example.com"]},
        {"method": "email", "from": "a@example.com", "to": []},
        {"method": "email", "from": "a@example.com\nBcc: b@example.com", "to": ["a@example.com"]},
        {"method": "email", "from": "a@example.com", "to": ["a@example.com, b@example.com"]},
        {"method": "email", "from": "a@example.com", "to": ["a"], "url": "https://example.com"},
        {"method": "email", "from": "a@example.com", "to": ["a@example.com"], "subject": "a\r\nBcc: x@example.com"},
        {"method": "webhook"},
        {"method": "webhook", "url": "ftp://example.com"},
        {"method": "webhook", "url": "https://203.0.113.1/x", "to": ["a@example.com"]},
        {"method": "pigeon"},
    ],
)
async def test_a_channel_that_cannot_be_used_is_refused(http: Http, body: dict[str, Any]) -> None:
    assert (await http("PUT", f"{BASE}/channels/ops", body)).status_code == 400


@pytest.mark.parametrize("name", ["", "1", "a b", "a/b", "a" * 65])
def test_s63_what_is_no_name_of_a_channel_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_channel(Channel(name, "email", "a@example.com", ("a@example.com",)))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtps://u:p%40@mail.example.com", Smtp("mail.example.com", 465, "tls", "u", "p@")),
        ("smtp://mail.example.com", Smtp("mail.example.com", 587, "starttls")),
        ("smtp://mail.example.com:2525?security=none", Smtp("mail.example.com", 2525, "none")),
        ("smtp://localhost", Smtp("localhost", 25, "none")),
    ],
)
def test_a_mail_server_is_named_by_a_url(url: str, expected: Smtp) -> None:
    assert read_smtp(url) == expected


@pytest.mark.parametrize("url", ["", "mail.example.com", "http://mail", "smtp://", "smtp://a:b:c", "smtp://a?x=1"])
def test_what_names_no_mail_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        read_smtp(url)
