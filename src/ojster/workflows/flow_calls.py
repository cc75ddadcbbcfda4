"""Calls about flows, as a service, a server and its client have them; those of workers are written by hand."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from ojster.core.access import DEQUEUE, ENQUEUE
from ojster.core.calls import Call, Calls
from ojster.core.wire import Identifier
from ojster.workflows.broadcast import Broadcast
from ojster.workflows.flow import MAX_WAIT_MS, FlowMessage, FlowRecords, FlowUpdate, Turn
from ojster.workflows.flow_wire import (
    BroadcastAnswer,
    BroadcastBody,
    FlowInfoAnswer,
    MessagesAnswer,
    PublishedAnswer,
    UpdateAnswer,
    UpdateBody,
)
from ojster.workflows.read.flow_info import FlowInfo, MessageFilter, MessagePage
from ojster.workflows.stream import StreamAddress, StreamAppend, StreamPage
from ojster.workflows.stream_wire import AppendBody, AppendedAnswer, StreamAnswer

_TAG: Final = "Flows"
_UPDATES: Final = "/workflows/{id}/updates"

WaitMs = Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)]


class FlowCalls(Calls):
    """Calls about flows."""

    async def records(self, job_id: str, after: int | None = None) -> FlowRecords:
        """Return all records of the flow that a job runs, or those whose ends have a number after this one."""
        raise NotImplementedError

    async def turn(self, item: Turn) -> FlowRecords:
        """Record what a flow has done, and suspend it if it waits; return what has ended for it."""
        raise NotImplementedError

    async def admit(self, item: Turn) -> Turn:
        """Return the turn as it may be recorded in a transaction of the caller; only with a database."""
        raise NotImplementedError

    async def send(self, message: FlowMessage) -> str:
        """Send a message to a flow; return the id of the workflow."""
        raise NotImplementedError

    @Call("POST", "/broadcasts", "broadcast", _TAG, BroadcastAnswer, body=BroadcastBody, status=201, needs=ENQUEUE)
    async def broadcast(self, item: Broadcast) -> int:
        """Send a message to all flows that wait for its name and key; the answer says how many waited.

        It is kept for 7 days: flows that begin to wait later receive it if they look back that far.
        """

    @Call("GET", "/workflows/{id}/flow", "show_flow", _TAG, FlowInfoAnswer)
    async def show(self, workflow_id: str, step: str | None = None) -> FlowInfo:
        """Show a flow: where it waits, with the lines of its code, what it has published, and what it can be asked."""

    @Call("GET", "/workflows/{id}/messages", "list_messages", _TAG, MessagesAnswer)
    async def messages(self, chosen: MessageFilter) -> MessagePage:
        """List the messages and updates of a flow, the latest first: those that wait, and those that it has received.

        Data of more than 4 KiB are left out.
        """

    @Call("GET", "/workflows/{id}/published", "show_published", _TAG, PublishedAnswer)
    async def published(self, workflow_id: str, step: str | None = None) -> Any:
        """Show what a flow has published last; ``null`` if it has published nothing."""

    @Call("POST", _UPDATES, "update_flow", _TAG, UpdateAnswer, body=UpdateBody, needs=ENQUEUE, wait=MAX_WAIT_MS / 1000)
    async def update(
        self,
        workflow_id: str,
        name: Identifier,
        args: list[Any],
        step: str | None = None,
        idempotency_key: Identifier | None = None,
        *,
        wait_ms: WaitMs = 0,
    ) -> FlowUpdate:
        """Ask a flow for something, and wait for its answer: an update, which the flow handles while it runs."""

    @Call("GET", f"{_UPDATES}/{{number}}", "show_update", _TAG, UpdateAnswer, wait=MAX_WAIT_MS / 1000)
    async def find_update(self, workflow_id: str, number: str, wait_ms: WaitMs = 0) -> FlowUpdate:
        """Show an update of a flow, with the answer of the flow if it has come in ``wait_ms``."""

    @Call(
        "POST",
        "/jobs/{id}/streams/{name}",
        "append_to_stream",
        _TAG,
        AppendedAnswer,
        body=AppendBody,
        status=201,
        needs=DEQUEUE,
    )
    async def append(self, item: StreamAppend) -> int:
        """Append values to a stream of the workflow of a job that runs; the answer has the number of the last one."""

    @Call("GET", "/workflows/{id}/streams/{name}", "read_stream", _TAG, StreamAnswer, wait=MAX_WAIT_MS / 1000)
    async def read_stream(self, address: StreamAddress, wait_ms: WaitMs = 0) -> StreamPage:
        """Show the chunks of a stream that follow the number ``after``, at most 250; wait up to ``wait_ms`` for one.

        ``has_ended`` is true when nothing follows: the stream is closed, or its workflow has finished.
        """
