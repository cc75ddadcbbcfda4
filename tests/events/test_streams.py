"""Event streams over server-sent events and WebSocket.

Spec: ojs-realtime
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from ojster.core.errors import BackendUnavailable
from ojster.core.json_objects import read_members
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement, Progress, Release
from ojster.server import event_streams as streams
from ojster.server.endpoints import streams as stream_routes
from ojster.server.event_streams import FollowedChannel
from ojster.service import Service
from ojster.storage.open import open_database
from tests.conftest import Bench, Clock, request
from tests.serving import serving
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"


@pytest.fixture
async def url(shared_url: str) -> str:
    """Stream tests run on the databases that several processes can share."""
    return shared_url


@pytest.fixture
async def server(service: Service) -> AsyncIterator[str]:
    async with serving(service) as (_, port):
        yield f"http://127.0.0.1:{port}"


class Stream:
    """A client of a stream that records the events it receives."""

    def __init__(self, url: str, path: str, last_id: str | None = None, **headers: str) -> None:
        self.url, self.path = url, path
        self.last_id = last_id
        self.headers = headers
        self.raw = ""
        self.found: list[dict[str, Any]] = []
        """All events received on all connections."""

    async def read(self, count: int = 10_000, timeout: float = 10) -> list[dict[str, Any]]:
        """Read up to ``count`` events, or until the stream ends; then close the connection."""
        headers = self.headers | ({"Last-Event-ID": self.last_id} if self.last_id else {})
        found: list[dict[str, Any]] = []
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=timeout) as client,
            client.stream("GET", BASE + self.path, headers=headers) as response,
        ):
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"] == "text/event-stream"
            event: dict[str, Any] = {}
            async for line in response.aiter_lines():
                self.raw += line + "\n"
                name, _, value = line.partition(": ")
                if not line:
                    self.last_id = event.get("id", self.last_id)
                    if "event" in event:
                        found.append(event)
                        self.found.append(event)
                    event = {}
                    if len(found) == count:
                        break
                elif name in ("id", "event"):
                    event[name] = value
                elif name == "data":
                    event |= json.loads(value)
        return found


async def begin(stream: Stream, count: int = 10_000) -> asyncio.Task[list[dict[str, Any]]]:
    """Read in the background; return when the stream is open."""
    reading = asyncio.create_task(stream.read(count))
    while "retry" not in stream.raw and not reading.done():
        await asyncio.sleep(0.01)
    return reading


def steps(events: list[dict[str, Any]]) -> list[tuple[str | None, str]]:
    return [(event["from"], event["to"]) for event in events if event["event"].startswith("job.") and "to" in event]


# Server-sent events


async def test_a_job_is_followed_to_its_end(server: str, bench: Bench) -> None:
    job = await bench.push(queue="q")
    stream = Stream(server, f"/jobs/{job.id}/events")
    reading = await begin(stream)
    await bench.fetch_one("q")
    await bench.service.jobs.report(Progress(job.id, 0.75, "three quarters"))
    await bench.ack(await bench.find(job))
    events = await asyncio.wait_for(reading, PATIENCE)
    assert [event["event"] for event in events] == ["job.state_changed", "job.progress", "job.state_changed"]
    assert steps(events) == [("available", "active"), ("active", "completed")]
    assert (events[1]["progress"], events[1]["message"]) == (75, "three quarters")
    assert {(event["job_id"], event["queue"], event["type"]) for event in events} == {(job.id, "q", "test.job")}
    assert all(event["timestamp"].startswith("2027-") for event in events)
    assert stream.raw.startswith("retry: 3000\n")


async def test_a_stream_of_a_finished_job_sends_its_final_state(server: str, bench: Bench) -> None:
    job = await bench.push()
    await bench.ack(await bench.fetch_one())
    (event,) = await Stream(server, f"/jobs/{job.id}/events").read()
    assert (event["event"], event["to"]) == ("job.state_changed", "completed")
    (first,) = await Stream(server, f"/jobs/{job.id}/events", "evt_0").read(1)
    rest = await Stream(server, f"/jobs/{job.id}/events", first["id"]).read()
    assert steps([first, *rest]) == [(None, "available"), ("available", "active"), ("active", "completed")]
    (again,) = await Stream(server, f"/jobs/{job.id}/events", rest[-1]["id"]).read()
    assert "id" not in again


@pytest.mark.parametrize(("end", "last"), [("complete", "completed"), ("fail", "failed"), ("cancel", "cancelled")])
async def test_the_progress_of_a_job_can_be_followed_until_it_ends(
    server: str, bench: Bench, end: str, last: str
) -> None:
    await bench.push(retry={"max_attempts": 1})
    job = await bench.fetch_one()
    report = Progress(job.id, 0.25, "a quarter", data=b'{"rows":5}')
    await bench.service.jobs.report(report)
    stream = Stream(server, f"/jobs/{job.id}/progress/stream")
    reading = await begin(stream)
    while "a quarter" not in stream.raw:
        await asyncio.sleep(0.01)
    bench.clock.advance(1)
    await bench.service.jobs.report(msgspec.structs.replace(report, fraction=0.75, message=None))
    if end == "complete":
        await bench.ack(job)
    elif end == "fail":
        await bench.fail(job)
    else:
        await bench.service.jobs.cancel(job.id)
    first, second, final = await asyncio.wait_for(reading, PATIENCE)
    assert (first["event"], first["progress"], first["data"]) == ("progress", 0.25, {"rows": 5})
    assert (second["event"], second["progress"], second["data"]) == ("progress", 0.75, {"rows": 5})
    assert first["updated_at"] < second["updated_at"]
    assert (final["event"], final["state"]) == (last, (await bench.find(job)).state)
    assert final["progress"] == (1.0 if end == "complete" else 0.75)
    (again,) = await Stream(server, f"/jobs/{job.id}/progress/stream").read()
    assert again == final


@pytest.mark.parametrize("path", ["/jobs/0190a0b0-0000-7000-8000-000000000000/events", "/queues/nowhere/events"])
async def test_streams_of_unknown_jobs_and_queues_are_not_found(server: str, path: str) -> None:
    async with httpx.AsyncClient() as client:
        response = await client.get(f"{server}{BASE}{path}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


async def test_streams_that_open_together_get_each_event_once_from_one_reader(bench: Bench) -> None:
    feed = streams.Feed(bench.service)
    last = await bench.service.events.last()

    async def follow() -> list[str]:
        types: list[str] = []
        async for batch in feed.follow(last, 5):
            types += [event[0] for _, event in batch.events]
            if "queue.paused" in types:
                return types
        return types

    following = [asyncio.create_task(follow()) for _ in range(20)]
    await asyncio.sleep(0)
    await bench.push()
    await bench.service.queues.pause("default")
    for types in await asyncio.wait_for(asyncio.gather(*following), PATIENCE):
        assert types == ["job.enqueued", "queue.paused"]
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "ojster-feed"], "no reader is left behind"


async def test_followers_go_on_after_the_log_could_not_be_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, events = streams.Feed(bench.service), bench.service.events
    last, read_on, failures = await events.last(), events.read_on, iter([OSError("the disk is gone")])

    async def fail_once(after: int) -> Any:
        for failure in failures:
            raise failure
        return await read_on(after)

    monkeypatch.setattr(events, "read_on", fail_once)
    monkeypatch.setattr(streams, "POLL_INTERVAL_SECONDS", 0.01)
    await bench.push()
    async for batch in feed.follow(last, 10):
        assert [event[0] for _, event in batch.events] == ["job.enqueued"]
        break


async def test_a_queue_is_followed_and_nothing_else(server: str, bench: Bench) -> None:
    await bench.push(queue="q")
    reading = await begin(Stream(server, "/queues/q/events"), 3)
    for queue in ("other", "q", "other", "q"):
        await bench.push(queue=queue)
    await bench.service.queues.pause("q")
    events = await asyncio.wait_for(reading, PATIENCE)
    assert [event["event"] for event in events] == ["job.state_changed", "job.state_changed", "queue.paused"]
    assert {event["queue"] for event in events} == {"q"}


async def test_types_of_events_can_be_chosen(server: str, bench: Bench) -> None:
    job = await bench.push()
    reading = await begin(Stream(server, f"/jobs/{job.id}/events?event_types=job.progress"))
    await bench.fetch_one()
    await bench.service.jobs.report(Progress(job.id, 0.5))
    await bench.ack(await bench.find(job))
    assert [event["event"] for event in await asyncio.wait_for(reading, PATIENCE)] == ["job.progress"]


async def place_of(stream: Stream, reading: asyncio.Task[Any], other_than: str | None = None) -> str:
    """Return the id after which a browser would go on, as soon as it is another than a former one."""
    while stream.last_id == other_than and not reading.done():
        await asyncio.sleep(0.01)
    assert stream.last_id is not None
    return stream.last_id


async def test_a_client_that_loses_the_connection_before_its_first_event_misses_none(server: str, bench: Bench) -> None:
    await bench.push(queue="q")
    stream = Stream(server, "/queues/q/events")
    reading = await begin(stream)
    await asyncio.wait_for(place_of(stream, reading), PATIENCE)
    reading.cancel()
    missed = await bench.push(queue="q")
    (event,) = await stream.read(1)
    assert event["job_id"] == missed.id


async def test_a_heartbeat_tells_the_place_behind_events_that_the_stream_leaves_out(
    server: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_routes, "HEARTBEAT", 0.05)
    monkeypatch.setattr(stream_routes, "PATIENCE", 0.02)
    await bench.push(queue="q")
    stream = Stream(server, "/queues/q/events")
    reading = await begin(stream)
    first = await asyncio.wait_for(place_of(stream, reading), PATIENCE)
    await bench.push(queue="other")
    place = await asyncio.wait_for(place_of(stream, reading, first), PATIENCE)
    assert place == streams.number_to_id((await bench.service.events.read_on(0)).events[-1][0])
    reading.cancel()
    assert not stream.found


@pytest.mark.parametrize("types", ["job.completed", "job.*,queue.paused"])
async def test_transitions_can_be_chosen_by_the_type_of_their_event(server: str, bench: Bench, types: str) -> None:
    job = await bench.push()
    reading = await begin(Stream(server, f"/jobs/{job.id}/events?event_types={types}"))
    await bench.ack(await bench.fetch_one())
    told = [event["event_type"] for event in await asyncio.wait_for(reading, PATIENCE)]
    assert told == (["job.completed"] if types == "job.completed" else ["job.started", "job.completed"])


async def test_a_tenant_follows_only_what_is_its_own(server: str, bench: Bench) -> None:
    await bench.push(meta={"tenant_id": "acme"})
    theirs = await bench.push(meta={"tenant_id": "beta"})
    for path in ("/events/stream", "/queues/default/events"):
        reading = await begin(Stream(server, path, **{"X-OJS-Tenant": "acme"}), 1)
        await bench.push(meta={"tenant_id": "beta"})
        await bench.push()
        mine = await bench.push(meta={"tenant_id": "acme"})
        (event,) = await asyncio.wait_for(reading, PATIENCE)
        assert (event["job_id"], event["tenant_id"]) == (mine.id, "acme")
    async with httpx.AsyncClient() as client:
        for path in (f"/jobs/{theirs.id}/events", "/queues/nowhere/events"):
            response = await client.get(f"{server}{BASE}{path}", headers={"X-OJS-Tenant": "acme"})
            assert response.status_code == 404


async def test_s105_a_stream_that_was_cut_goes_on_without_gap_or_repeat(
    shared_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers share a database; a client disconnects repeatedly and reconnects to either of them."""
    monkeypatch.setattr(streams, "MAX_EVENTS_IN_MEMORY", 20)  # a client that is long disconnected must read the log
    engines = [Service(open_database(shared_url, clock=clock)) for _ in range(2)]
    dice = random.Random(7)
    everything: list[tuple[int, Any]] = []
    done = asyncio.Event()

    async def work(service: Service, number: int) -> None:
        for _ in range(20):
            await service.jobs.enqueue([request(f"t{number}") for _ in range(dice.randint(1, 5))])
            jobs = await service.jobs.fetch(Claim(("default",), dice.randint(1, 6)))
            await service.jobs.acknowledge([Acknowledgement(job.id) for job in jobs])

    async with serving(engines[0]) as (_, one), serving(engines[1]) as (_, other):
        stream = Stream("", "/events/stream", "evt_0")

        async def listen() -> None:
            while not done.is_set() or stream.last_id != f"evt_{everything[-1][0]}":
                stream.url = f"http://127.0.0.1:{dice.choice([one, other])}"
                try:
                    async with asyncio.timeout(0.3):
                        await stream.read(dice.choice([1, 7, 40, 200]))
                except TimeoutError:
                    continue

        listening = asyncio.create_task(listen())
        await asyncio.gather(*(work(service, number) for number, service in enumerate(engines * 2)))
        await engines[0].events.last()
        stretch = await engines[0].events.read_on(0)
        everything += stretch.events
        while stretch.more:
            stretch = await engines[0].events.read_on(everything[-1][0])
            everything += stretch.events
        done.set()
        await asyncio.wait_for(listening, PATIENCE)
    for service in engines:
        await service.close()
    assert [event["id"] for event in stream.found] == [f"evt_{number}" for number, _ in everything]
    assert len(everything) > 300


async def test_a_late_client_receives_a_gap_event(server: str, bench: Bench) -> None:
    await bench.push()
    for last_id in ("evt_999999999999999", "nonsense"):
        (event,) = await Stream(server, "/events/stream", last_id).read(1)
        assert (event["event"], event["channel"]) == ("system.gap", "all")
    stretch = await bench.service.events.read_on(0)
    for _ in range(3):
        await bench.push()
    await bench.service.events.last()
    await bench.run(forget_oldest, 2)
    events = await Stream(server, "/queues/default/events", f"evt_{stretch.events[0][0]}").read(2)
    assert [event["event"] for event in events] == ["system.gap", "job.state_changed"]
    socket = await socket_to(server)
    await say(socket, action="subscribe", channel="queue:default")
    assert (await say(socket, action="resume", last_event_id=f"evt_{stretch.events[0][0]}"))["type"] == "resumed"
    assert [(await hear(socket))["event"] for _ in range(2)] == ["system.gap", "job.state_changed"]
    await socket.close()


async def test_a_client_that_comes_late_to_a_finished_job_receives_a_gap_event(server: str, bench: Bench) -> None:
    job = await bench.push()
    first = (await bench.service.events.read_on(0)).events[0][0]
    await bench.push()
    await bench.ack(await bench.fetch_one())
    await bench.service.events.last()
    await bench.run(forget_oldest, 1)
    events = await Stream(server, f"/jobs/{job.id}/events", f"evt_{first}").read()
    assert [event.get("event_type", event["event"]) for event in events] == [
        "system.gap",
        "job.started",
        "job.completed",
    ]


def forget_oldest(tx: Any, numbers: Any) -> list[None]:
    tx.execute(
        "DELETE FROM event_batches WHERE seq <= (SELECT min(seq) + :number FROM event_batches)", {"number": numbers[0]}
    )
    return [None]


async def test_a_quiet_stream_shows_that_it_is_alive(
    server: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_routes, "HEARTBEAT", 0.05)
    monkeypatch.setattr(stream_routes, "PATIENCE", 0.02)
    job = await bench.push()
    stream = Stream(server, f"/jobs/{job.id}/events")
    reading = await begin(stream)
    while stream.raw.count(":heartbeat") < 2:
        await asyncio.sleep(0.01)
    await bench.service.jobs.cancel(job.id)
    assert steps(await asyncio.wait_for(reading, PATIENCE)) == [("available", "cancelled")]


async def test_streams_receive_a_shutdown_event(service: Service) -> None:
    async with serving(service) as (_, port):
        reading = await begin(Stream(f"http://127.0.0.1:{port}", "/events/stream"))
    (event,) = await asyncio.wait_for(reading, PATIENCE)
    assert (event["event"], event["grace_period_ms"]) == ("server.shutdown", 5000)


async def test_an_address_cannot_follow_without_end(server: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_FOLLOWERS_PER_ADDRESS", 2)
    first = [await begin(Stream(server, "/events/stream"), 1) for _ in range(2)]
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{server}{BASE}/events/stream")).status_code == 429
        await bench.push()
        await asyncio.wait_for(asyncio.gather(*first), PATIENCE)
        async with asyncio.timeout(PATIENCE):  # the server notices a moment later that they have gone
            while True:
                async with client.stream("GET", f"{server}{BASE}/events/stream") as response:
                    if response.status_code == 200:
                        break


async def test_transition_events_name_both_states(bench: Bench) -> None:
    """Each transition starts in the state in which the previous one ended; the last one ends in the job's state."""
    unlucky = await bench.push(retry={"max_attempts": 3, "initial_interval": "PT1S", "jitter": False})
    scheduled = await bench.push(delay_until="+PT10S")
    pending = await bench.push(pending=True)
    expiring = await bench.push(queue="nobody", expires_at="+PT30S")
    limited = [
        await bench.push(queue="l", rate_limit={"key": "k", "concurrency": 1, "on_limit": on_limit})
        for on_limit in ("reschedule", "reschedule", "drop")
    ]
    await bench.service.workflows.activate(pending.id)
    for job in await bench.fetch(count=5):
        await (bench.fail(job) if job.id == unlucky.id else bench.ack(job))
    await bench.run_due(15)
    for job in await bench.fetch(count=5):
        release = Release(job.id, job.worker_id, job.attempt, 1_000_000 if job.id == scheduled.id else 0)
        await bench.service.jobs.release([release])
    await bench.run_due(2)
    held = await bench.fetch(count=5, lease=1_000_000)
    await bench.run_due(5)
    await bench.fetch("l", count=5)
    workflow = await bench.service.workflows.create(
        read_members(b'{"type": "chain", "steps": [{"type": "a", "args": []}]}')
    )
    await bench.service.workflows.hold(workflow.id)
    await bench.service.workflows.release(workflow.id)
    await bench.service.workflows.cancel(workflow.id)
    await bench.run_due(60)
    for job in (unlucky, scheduled):
        if (await bench.find(job)).state in ("available", "retryable", "scheduled"):
            await bench.service.jobs.cancel(job.id)
    assert held
    states: dict[str, str | None] = {}
    for _, event in (await bench.service.events.read_on(0)).events:
        if "to" in event[5]:
            assert states.get(event[2]) == event[5]["from"], event
            states[event[2]] = event[5]["to"]
    jobs = (await bench.service.jobs.select()).jobs
    assert {job.id: job.state for job in jobs} == states
    assert len(jobs) >= 4 + len(limited)
    assert (await bench.find(expiring)).state == "discarded"


# WebSocket


async def socket_to(server: str, **options: Any) -> ClientConnection:
    return await connect(f"ws{server.removeprefix('http')}{BASE}/ws", **options)


async def say(socket: ClientConnection, **order: Any) -> dict[str, Any]:
    await socket.send(json.dumps(order))
    return await hear(socket)


async def hear(socket: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
    return message


async def test_channels_are_followed_over_one_connection(server: str, bench: Bench) -> None:
    job = await bench.push(queue="q")
    socket = await socket_to(server, subprotocols=[Subprotocol("ojs.v1")])
    assert socket.subprotocol == "ojs.v1"
    channel = f"job:{job.id}"
    place = {"last_event_id": streams.number_to_id(await bench.service.events.last())}
    answer = await say(socket, action="subscribe", channel=channel)
    assert answer == {"type": "subscribed", "channel": channel} | place
    types = ["queue.paused"]
    answer = await say(socket, action="subscribe", channel="queue:q", event_types=types)
    assert answer == {"type": "subscribed", "channel": "queue:q", "event_types": types} | place
    await bench.fetch_one("q")
    await bench.service.queues.pause("q")
    first, second = await hear(socket), await hear(socket)
    assert (first["channel"], first["event"], first["data"]["to"]) == (channel, "job.state_changed", "active")
    assert first["id"].startswith("evt_")
    assert (second["channel"], second["event"]) == ("queue:q", "queue.paused")
    assert (await say(socket, action="unsubscribe", channel=channel))["type"] == "unsubscribed"
    await bench.ack(await bench.find(job))
    await bench.service.queues.resume("q")
    await bench.service.queues.pause("q")
    assert (await hear(socket))["event"] == "queue.paused"
    await socket.close()


async def test_a_connection_that_was_cut_before_its_first_event_resumes(server: str, bench: Bench) -> None:
    socket = await socket_to(server)
    place = (await say(socket, action="subscribe", channel="all"))["last_event_id"]
    await socket.close()
    missed = await bench.push()
    socket = await socket_to(server)
    await say(socket, action="subscribe", channel="all")
    assert (await say(socket, action="resume", last_event_id=place))["type"] == "resumed"
    assert (await hear(socket))["data"]["job_id"] == missed.id
    await socket.close()


async def test_a_connection_that_was_cut_resumes(server: str, bench: Bench) -> None:
    socket = await socket_to(server)
    await say(socket, action="subscribe", channel="all")
    await bench.push()
    last = (await hear(socket))["id"]
    await socket.close()
    missed = [(await bench.push()).id for _ in range(3)]
    socket = await socket_to(server)
    await say(socket, action="subscribe", channel="all")
    assert (await say(socket, action="resume", last_event_id=last))["type"] == "resumed"
    assert [(await hear(socket))["data"]["job_id"] for _ in missed] == missed
    assert (await say(socket, action="resume", last_event_id="evt_999999999999999"))["code"] == "unknown_event_id"
    await bench.push()
    assert (await hear(socket))["type"] == "event"
    await socket.close()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_request"),
        ('{"action": "dance"}', "invalid_request"),
        ('{"action": "subscribe"}', "invalid_request"),
        ('{"action": "subscribe", "channel": "job:0190a0b0-0000-7000-8000-000000000000"}', "not_found"),
        ('{"action": "subscribe", "channel": "queue:nowhere"}', "not_found"),
        ('{"action": "subscribe", "channel": "queue:No Queue"}', "invalid_request"),
        ('{"action": "subscribe", "channel": "planet:mars"}', "not_found"),
        ('{"action": "subscribe", "channel": "all", "event_type": ["job.failed"]}', "invalid_request"),
        ('{"action": "resume"}', "unknown_event_id"),
    ],
)
async def test_a_message_that_cannot_be_obeyed_is_answered(server: str, message: str, code: str) -> None:
    socket = await socket_to(server)
    await socket.send(message)
    answer = await hear(socket)
    assert (answer["type"], answer["code"]) == ("error", code)
    await socket.close()


async def test_pages_of_strangers_and_strange_tenants_cannot_connect(server: str) -> None:
    for options in ({"origin": Origin("https://evil.example")}, {"additional_headers": {"X-OJS-Tenant": "a b"}}):
        with pytest.raises((InvalidStatus, ConnectionClosed)):
            await (await socket_to(server, **options)).recv()
    await (await socket_to(server, origin=Origin(server))).close()


async def test_a_tenants_connection_tells_only_of_its_own(server: str, bench: Bench) -> None:
    theirs = await bench.push(meta={"tenant_id": "beta"})
    socket = await socket_to(server, additional_headers={"X-OJS-Tenant": "acme"})
    assert (await say(socket, action="subscribe", channel=f"job:{theirs.id}"))["code"] == "not_found"
    await say(socket, action="subscribe", channel="all")
    await bench.service.jobs.cancel(theirs.id)
    mine = await bench.push(meta={"tenant_id": "acme"})
    assert (await hear(socket))["data"]["job_id"] == mine.id
    await socket.close()


async def test_a_connection_is_closed_when_the_server_stops(service: Service) -> None:
    async with serving(service) as (_, port):
        socket, idle = [await socket_to(f"http://127.0.0.1:{port}") for _ in range(2)]
        await say(socket, action="subscribe", channel="all")
        service.drain()
        late = await socket_to(f"http://127.0.0.1:{port}")
        for each in (socket, idle, late):
            assert (await hear(each))["event"] == "server.shutdown"
            with pytest.raises(ConnectionClosed):
                await hear(each)
            assert each.close_code == 1001


async def test_a_connection_is_closed_if_its_events_cannot_be_read(
    server: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = await socket_to(server)
    await say(socket, action="subscribe", channel="all")
    read_on = bench.service.events.read_on
    await bench.push()
    await hear(socket)

    async def fail_behind(after: int) -> Any:
        if after == 0:
            raise BackendUnavailable("the disk is gone")
        return await read_on(after)

    monkeypatch.setattr(bench.service.events, "read_on", fail_behind)
    await say(socket, action="resume", last_event_id="evt_0")
    with pytest.raises(ConnectionClosed):
        await hear(socket)
    assert socket.close_code == 1013


def test_a_channel_has_what_it_names() -> None:
    event = ("job.started", 1, "id", "q", "t", {"from": "available", "to": "active"}, "acme")
    for name, tenant, has in (
        ("job:id", None, True),
        ("job:other", None, False),
        ("queue:q", "acme", True),
        ("queue:q", "beta", False),
        ("queue:p", None, False),
        ("all", None, True),
        ("all", "", False),
    ):
        assert (FollowedChannel(name, tenant=tenant).tell(1, event) is not None) == has
