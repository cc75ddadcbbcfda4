"""Endpoints for flows: what their workers read and record, and messages.

The protocol is described in docs/flows.md.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from ojster.core.access import DEQUEUE, ENQUEUE
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route
from ojster.workflows.flow import FlowMessage
from ojster.workflows.flow_calls import FlowCalls
from ojster.workflows.flow_wire import MESSAGE, TURN, FlowAnswer, MessageBody, SentAnswer, TurnBody


async def show_records(request: HttpRequest) -> Answer:
    """Show all records of the flow that a job runs."""
    return Answer(encode(FlowAnswer.of(await request.service.flows.records(request.path["id"]))))


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


ROUTES: Final = (
    Route("GET", f"{BASE}/jobs/{{id}}/flow", show_records, "Flows", answer=FlowAnswer),
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
    *endpoints_of(FlowCalls, lambda service: service.flows),
)
