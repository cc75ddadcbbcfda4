"""Endpoints for event streams over HTTP, as server-sent events.

Spec: ojs-realtime 2
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.events import SOURCE
from ojster.core.job import Job
from ojster.core.states import FINISHED
from ojster.core.timestamps import format_timestamp
from ojster.jobs.names import check_queue_name
from ojster.server.answer import Answer, encode
from ojster.server.event_changes import EventChanges
from ojster.server.event_streams import (
    ALL,
    FollowedChannel,
    StreamEvent,
    canonical_channel,
    check_types_of_channel,
    gap,
    id_to_number,
    number_to_id,
)
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route

HEARTBEAT: Final = 10.0
"""Minimum time without an event before a heartbeat is sent, in seconds."""

PATIENCE: Final = 4.0
"""Maximum wait for events before the heartbeat is checked, in seconds.

``HEARTBEAT`` plus ``PATIENCE`` stays below the 15 seconds that the specification allows.

Spec: ojs-realtime 2.4
"""

SSE: Final = b"text/event-stream"
"""Content type of server-sent events."""

SSE_HEADERS: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))

RECONNECT_MS: Final = 3_000
"""Reconnection delay suggested to clients, in milliseconds."""

GRACE_MS: Final = 5_000
"""Grace period announced to clients before connections close at shutdown, in milliseconds."""


async def follow_job(request: HttpRequest) -> Answer:
    """Stream the events of a job until it is finished, as server-sent events, optionally by ``event_types``."""
    after = await _begin(request)
    job = await request.service.jobs.find(request.path["id"])
    return _stream(request, f"job:{job.id}", after, job)


async def follow_queue(request: HttpRequest) -> Answer:
    """Stream the events of a queue as server-sent events, optionally by ``event_types``."""
    name = check_queue_name(request.path["name"])
    await request.service.queues.statistics(name)
    return _stream(request, f"queue:{name}", await _begin(request))


async def follow_all(request: HttpRequest) -> Answer:
    """Stream all events as server-sent events, optionally by ``event_types``.

    With ``channel=job:ID`` or ``channel=queue:NAME``, which official SDKs send, only those of a job or a queue. The
    same events come over a WebSocket at ``/ojs/v1/ws``, in the subprotocol ``ojs.v1``, if the server has the extra
    ``websocket``: send ``{"action": "subscribe", "channel": "all"}``.
    """
    kind, _, name = canonical_channel(request.query.get("channel", "")).partition(":")
    match kind:
        case "job":
            request.path = {"id": name}
            return await follow_job(request)
        case "queue":
            request.path = {"name": name}
            return await follow_queue(request)
        case "" | "all":
            request.service.scope.check_queue(None)
            return _stream(request, ALL, await _begin(request))
    message = f"There is no channel {request.query['channel'][:80]!r}. Use 'job:ID' or 'queue:NAME'."
    raise InvalidRequest(message, field="channel")


async def follow_changes(request: HttpRequest) -> Answer:
    """Stream what has changed, as server-sent events: at most one each second, however much happens.

    For pages that read again what they show. An event ``changes`` has the numbers of events by kind (``job``,
    ``workflow``, ``queue``, ``worker``, ``cron`` and others), and the ids of the first jobs and workflows.
    """
    request.services.feed.check(request.caller_address())
    after, is_unknown = await _begin(request)
    return Answer(
        headers=SSE_HEADERS, content_type=SSE, stream=_changes(request, after, is_lost=is_unknown), may_stop=True
    )


async def _changes(request: HttpRequest, after: int, *, is_lost: bool) -> AsyncGenerator[bytes, None]:
    scope = request.service.scope
    sees_all = scope.access is None or not scope.access.queues
    loop = asyncio.get_running_loop()
    with request.services.feed.admit(request.caller_address()):
        yield b"retry: %d\n\n" % RECONNECT_MS
        changes = EventChanges(
            scope.tenant, lambda queue: sees_all if queue is None else scope.covers(queue), is_lost=is_lost
        )
        yield _line(changes.take(after))  # so that the client knows where to go on, although nothing has happened yet
        quiet_since = loop.time()
        async for piece in request.services.feed.follow(after, PATIENCE):
            changes.add(piece)
            if changes:
                yield _line(changes.take())
                await asyncio.sleep(CHANGES_EVERY)
                quiet_since = loop.time()
            elif loop.time() >= quiet_since + PATIENCE:
                yield b":heartbeat\n\n"
                quiet_since = loop.time()


async def _begin(request: HttpRequest) -> tuple[int, bool]:
    """Return the number of the event to start after, and whether the client's last event id is unknown."""
    last_id = request.header(b"last-event-id") or request.query.get("last_event_id")
    present = await request.service.events.last()
    if not last_id:
        return present, False
    number = id_to_number(last_id)
    return (present, True) if number is None or number > present else (number, False)


async def follow_progress(request: HttpRequest) -> Answer:
    """Stream the progress of a job, beginning with the last, until the job is finished, as server-sent events.

    Spec: ojs-progress 7.2
    """
    request.services.feed.check(request.caller_address())
    present = await request.service.events.last()
    job = await request.service.jobs.find(request.path["id"])
    return Answer(headers=SSE_HEADERS, content_type=SSE, stream=_progress(request, job, present), may_stop=True)


async def _progress(request: HttpRequest, job: Job, after: int) -> AsyncGenerator[bytes, None]:
    channel = FollowedChannel(f"job:{job.id}", tenant=request.service.scope.tenant)
    find = request.service.jobs.find
    with request.services.feed.admit(request.caller_address()):
        yield b"retry: %d\n\n" % RECONNECT_MS
        if job.state not in FINISHED:
            if job.progress is not None:
                yield _progress_line("progress", job)
            async for piece in request.services.feed.follow(after, PATIENCE):
                told = [event for number, event in piece.events if channel.tell(number, event) is not None]
                for type, at, *_, more, _ in told:
                    if type == "job.progress":
                        shown = {name: more[name] for name in ("progress", "message", "data") if name in more}
                        yield _line(StreamEvent("progress", shown | {"updated_at": format_timestamp(at)}))
                if any(map(channel.ends_with, told)) or not piece.is_whole:
                    job = await find(job.id)
                    if job.state in FINISHED:
                        break
                if not piece.events:
                    yield b":heartbeat\n\n"
            else:
                return  # the server stops; the client connects again
        yield _progress_line(_ENDS[job.state], job)


def _progress_line(name: str, job: Job) -> bytes:
    shown = msgspec.json.decode(job.progress) if job.progress else {"progress": None}
    if name != "progress":
        shown |= {"state": job.state, "updated_at": format_timestamp(job.finished_at or 0)}
    return _line(StreamEvent(name, shown))


_ENDS: Final = {"completed": "completed", "discarded": "failed", "cancelled": "cancelled"}
"""Names of the last event of a stream of progress, by the state of the job."""


def _stream(request: HttpRequest, channel: str, begin: tuple[int, bool], job: Job | None = None) -> Answer:
    request.services.feed.check(request.caller_address())
    types = frozenset(filter(None, request.query.get("event_types", "").split(",")))
    check_types_of_channel(types, channel)
    followed = FollowedChannel(channel, types, request.service.scope.tenant)
    return Answer(headers=SSE_HEADERS, content_type=SSE, stream=_pieces(request, followed, begin, job), may_stop=True)


async def _pieces(
    request: HttpRequest, channel: FollowedChannel, begin: tuple[int, bool], job: Job | None
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    after, is_unknown = begin
    with request.services.feed.admit(request.caller_address()):
        yield b"retry: %d\n\n" % RECONNECT_MS
        if is_unknown:
            yield _line(gap(channel.name, request.service.database.clock()))
        yield _place(after)  # so that a client that loses the connection before its first event misses none
        if job is not None and job.state in FINISHED:
            async for entry in _rest(request, channel, after, job):
                yield _line(entry)
            return
        quiet_since = loop.time()
        async for piece in request.services.feed.follow(after, PATIENCE):
            if not piece.is_whole:
                yield _line(gap(channel.name, piece.events[0][1][1] if piece.events else None))
            lines = [_line(told) for number, event in piece.events if (told := channel.tell(number, event)) is not None]
            if lines:
                yield b"".join(lines)
                quiet_since = loop.time()
            if any(channel.ends_with(event) for _, event in piece.events):
                return
            after = piece.events[-1][0] if piece.events else after
            if not lines and loop.time() >= quiet_since + HEARTBEAT:
                yield b":heartbeat\n" + _place(after)  # events of others may push its last event out of the log
                quiet_since = loop.time()
        yield _line(StreamEvent("server.shutdown", {"reason": "the server stops", "grace_period_ms": GRACE_MS}))


async def _rest(
    request: HttpRequest, channel: FollowedChannel, after: int, job: Job
) -> AsyncGenerator[StreamEvent, None]:
    """Yield a finished job's events after an event; if its last event is not among them, also its final state."""
    ended = False
    while not ended:
        stretch = await request.service.events.read_on(after)
        if not stretch.is_whole:
            yield gap(channel.name, stretch.events[0][1][1] if stretch.events else None)
        for number, event in stretch.events:
            after = number
            ended = ended or channel.ends_with(event)
            if (told := channel.tell(number, event)) is not None:
                yield told
        if not stretch.more:
            break
    if not ended:
        at = format_timestamp(job.finished_at or 0)
        data = {"job_id": job.id, "queue": job.queue, "type": job.type, "from": job.state, "to": job.state}
        yield StreamEvent("job.state_changed", data | {"timestamp": at, "source": SOURCE})


def _line(told: StreamEvent) -> bytes:
    id = b"id: %b\n" % told.id.encode() if told.id else b""
    return b"%bevent: %b\ndata: %b\n\n" % (id, told.name.encode(), encode(told.data))


def _place(after: int) -> bytes:
    """Return a block without an event, which only tells the client where to go on."""
    return b"id: %b\n\n" % number_to_id(after).encode()


CHANGES_EVERY: Final = 1.0
"""Interval between two events of a stream of changes, in seconds."""

_TAG: Final = "Events"
_QUERY: Final = ("event_types", "last_event_id")

ROUTES: Final = (
    Route("GET", f"{BASE}/jobs/{{id}}/events", follow_job, _TAG, query=_QUERY, streams=True),
    Route("GET", f"{BASE}/jobs/{{id}}/progress/stream", follow_progress, _TAG, streams=True),
    Route("GET", f"{BASE}/queues/{{name}}/events", follow_queue, _TAG, query=_QUERY, streams=True),
    Route("GET", f"{BASE}/events/changes", follow_changes, _TAG, query=("last_event_id",), streams=True),
    Route("GET", f"{BASE}/events/stream", follow_all, _TAG, query=(*_QUERY, "channel"), streams=True),
)
