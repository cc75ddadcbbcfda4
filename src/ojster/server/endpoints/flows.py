"""Endpoints for flows: what their workers read and record, messages, and streams as they come.

The protocol is described in docs/flows.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from msgspec import UNSET

from ojster.core.access import DEQUEUE, ENQUEUE
from ojster.core.errors import InvalidRequest
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.endpoints.streams import HEARTBEAT, RECONNECT_MS, SSE, SSE_HEADERS
from ojster.server.pages import whole
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route
from ojster.workflows.flow import MOST_DIGITS, FlowMessage
from ojster.workflows.flow_calls import FlowCalls
from ojster.workflows.flow_wire import MESSAGE, TURN, FlowAnswer, MessageBody, SentAnswer, TurnBody
from ojster.workflows.stream import StreamAddress, StreamPage


async def show_records(request: HttpRequest) -> Answer:
    """Show the records of the flow that a job runs: all, or those that others have ended after the number ``after``."""
    after = whole(request.query, "after", 0, 0) if "after" in request.query else None
    return Answer(encode(FlowAnswer.of(await request.service.flows.records(request.path["id"], after))))


async def take_turn(request: HttpRequest) -> Answer:
    """Record what a flow has done since its worker last said so, and suspend it if it waits."""
    body = await request.read(TURN)
    return Answer(encode(FlowAnswer.of(await request.service.flows.turn(body.turn(request.path["id"])))))


async def send_message(request: HttpRequest) -> Answer:
    """Send a message to a flow, also before it waits for the message, or starts."""
    body = await request.read(MESSAGE)
    data = b"null" if body.data is UNSET else bytes(body.data)
    item = FlowMessage(request.path["id"], body.name, data, body.step, body.idempotency_key)
    return Answer(encode(SentAnswer(True, await request.service.flows.send(item))), 201)


async def follow_stream(request: HttpRequest) -> Answer:
    """Stream the chunks of a stream of a workflow as server-sent events, until nothing follows.

    It begins after the number in ``Last-Event-ID``, or in ``last_event_id``; by default with the first chunk. Each
    event ``chunk`` has a number as its id, and a value as its data. The last event is ``end``: close the connection
    then.
    """
    request.services.feed.check(request.caller_address())
    last_id = request.header(b"last-event-id") or request.query.get("last_event_id") or "0"
    if not last_id.isdecimal() or len(last_id) > MOST_DIGITS:
        raise InvalidRequest(f"The last event id {last_id[:40]!r} is not the number of a chunk.", field="last_event_id")
    start = StreamAddress(request.path["id"], request.path["name"], int(last_id))
    first = await request.service.flows.read_stream(start)
    return Answer(headers=SSE_HEADERS, content_type=SSE, stream=_chunks(request, start, first), may_stop=True)


async def _chunks(request: HttpRequest, start: StreamAddress, page: StreamPage) -> AsyncGenerator[bytes, None]:
    after = start.after
    with request.services.feed.admit(request.caller_address()):
        yield b"retry: %d\n\n" % RECONNECT_MS
        while True:
            lines = [b"id: %d\nevent: chunk\ndata: %b\n\n" % (chunk.number, chunk.value) for chunk in page.chunks]
            after = page.chunks[-1].number if page.chunks else after
            if page.has_ended:
                yield b"".join([*lines, b"event: end\ndata: {}\n\n"])
                return
            yield b"".join(lines) or b":heartbeat\n\n"
            if request.service.database.draining:
                return  # the client connects again
            address = msgspec.structs.replace(start, after=after)
            page = await request.service.flows.read_stream(address, int(HEARTBEAT * 1000))


ROUTES: Final = (
    Route("GET", f"{BASE}/jobs/{{id}}/flow", show_records, "Flows", answer=FlowAnswer, query=("after",)),
    Route("POST", f"{BASE}/jobs/{{id}}/flow", take_turn, "Flows", TurnBody, FlowAnswer, large=True, needs=DEQUEUE),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/messages",
        send_message,
        "Flows",
        MessageBody,
        SentAnswer,
        status=201,
        needs=ENQUEUE,
    ),
    Route(
        "GET",
        f"{BASE}/workflows/{{id}}/streams/{{name}}/events",
        follow_stream,
        "Flows",
        query=("last_event_id",),
        streams=True,
    ),
    *endpoints_of(FlowCalls, lambda service: service.flows),
)
