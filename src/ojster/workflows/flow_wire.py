"""The JSON of requests and answers about flows. Times are microseconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.core.calls import Arguments, Single
from ojster.core.ids import new_id
from ojster.core.timestamps import Moment, format_optional, parse_timestamp
from ojster.core.wire import Count, FromWorker, Identifier
from ojster.jobs.wire import Start
from ojster.workflows.flow import (
    MAX_RECORDS_AT_ONCE,
    MAX_WAIT_MS,
    FlowPosition,
    FlowRecord,
    FlowRecords,
    FlowUpdate,
    Key,
    NewRecord,
    Seen,
    Turn,
)
from ojster.workflows.read.flow_info import FlowInfo, MessageInfo, MessagePage


class TurnBody(FromWorker, Struct, omit_defaults=True):
    """What a flow has done since its worker last said so.

    ``records``: what it asks for, and outcomes of local steps. ``seen``: the order in which it has seen ends, where
    that is not clear otherwise. ``cancelled``: keys of what it no longer waits for. ``version`` and ``ended``: the
    version of the workflow, and the largest ``number`` of a record, that it knows. With ``suspends``, it waits and
    leaves the worker until something ends, at the latest at ``wakes_at``, unless something has ended since.
    ``was_cancelled``: it has ended because it was cancelled. ``restarts``: its function begins anew, with the
    arguments that are the ``result`` of a record of the kind ``begin``. ``position``: what it awaits, and where in its
    code, for people who look at it.
    """

    records: Annotated[list[NewRecord], Meta(max_length=MAX_RECORDS_AT_ONCE)] = []
    seen: Annotated[list[Seen], Meta(max_length=MAX_RECORDS_AT_ONCE)] = []
    cancelled: Annotated[list[Key], Meta(max_length=MAX_RECORDS_AT_ONCE)] = []
    suspends: bool = False
    wakes_at: Moment | None = None
    version: Count = 0
    ended: Count = 0
    was_cancelled: bool = False
    restarts: bool = False
    worker_id: Identifier | None = None
    attempt: Count | None = None
    started_at: Start | None = None
    position: FlowPosition | None = None

    @classmethod
    def of(cls, turn: Turn) -> TurnBody:
        members: dict[str, Any] = {name: getattr(turn, name) for name in _SAME}
        members |= {name: list(getattr(turn, name)) for name in _LISTS}
        return cls(**members, started_at=format_optional(turn.started_at))

    def turn(self, job_id: str) -> Turn:
        """Return the turn of the flow that a job runs."""
        members: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        members |= {name: tuple(getattr(self, name)) for name in _LISTS}
        started_at = None if self.started_at is None else parse_timestamp(self.started_at)
        return Turn(job_id, **members, started_at=started_at)


_SAME: Final = (
    *("suspends", "wakes_at", "version", "ended", "was_cancelled", "restarts", "position"),
    *("worker_id", "attempt"),
)
_LISTS: Final = ("records", "seen", "cancelled")


class FlowAnswer(Struct):
    """The records of a flow: all of them, or those that wait no longer."""

    workflow_id: str
    version: Count
    now: Count
    records: list[FlowRecord]
    suspended: bool
    flow: Count
    waited_at: Count | None = None

    @classmethod
    def of(cls, records: FlowRecords) -> FlowAnswer:
        return cls(*(getattr(records, name) for name in cls.__struct_fields__))

    def content(self) -> FlowRecords:
        """Return the records in the answer."""
        return FlowRecords(*(getattr(self, name) for name in self.__struct_fields__))


class MessageBody(Arguments):
    """A message to a flow: a name by which it is received, and any JSON value, ``null`` by default.

    ``step`` is the path of a step that is the flow, if the workflow itself is none. A message with an
    ``idempotency_key`` that the flow has got already is not kept again.
    """

    name: Identifier
    data: Raw | UnsetType = UNSET
    step: str | None = None
    idempotency_key: Identifier | None = None


class SentAnswer(Struct):
    """A message was kept."""

    sent: bool
    workflow_id: str


class BroadcastBody(Arguments, kw_only=True):
    """A message to all flows that wait for its name and key: any JSON value, ``null`` by default.

    One with an ``idempotency_key`` that was sent with the same name and key in the last 7 days is not sent again.
    """

    name: Identifier
    key: Identifier | int
    data: Raw | UnsetType = UNSET
    idempotency_key: Identifier | None = None

    @classmethod
    def of(cls, name: str, key: str, data: bytes, idempotency_key: str | None) -> BroadcastBody:
        """Return the body for a broadcast. Its key makes it safe to send it again."""
        return cls(name=name, key=key, data=Raw(data), idempotency_key=idempotency_key or new_id())

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the message."""
        return {
            "name": self.name,
            "key": str(self.key),
            "data": b"null" if self.data is UNSET else bytes(self.data),
            "idempotency_key": self.idempotency_key,
        }


class BroadcastAnswer(Struct):
    """A broadcast was sent to ``flows`` that waited for it."""

    sent: bool
    flows: Count

    @classmethod
    def of(cls, value: int) -> BroadcastAnswer:
        return cls(True, value)

    def value(self) -> int:
        return self.flows


class UpdateBody(Arguments, kw_only=True):
    """An update of a flow: its name, and the arguments of its handler.

    ``step`` is the path of a step that is the flow, if the workflow itself is none. An update with an
    ``idempotency_key`` that the flow has got already is not made again. ``wait_ms`` is the longest wait for the answer.
    """

    name: Identifier
    args: list[Any] = msgspec.field(default_factory=list)
    step: str | None = None
    idempotency_key: Identifier | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 0

    @classmethod
    def of(cls, **arguments: Any) -> UpdateBody:
        """Return the body for the arguments of a call. Its key makes it safe to send it again."""
        return cls(**arguments | {"idempotency_key": arguments.get("idempotency_key") or new_id()})


class UpdateAnswer(Struct, omit_defaults=True):
    """An update: ``waiting``, ``completed`` with the ``result``, or ``failed`` with the ``error``."""

    id: Count
    state: Literal["waiting", "completed", "failed"]
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @classmethod
    def of(cls, value: FlowUpdate) -> UpdateAnswer:
        return cls(value.id, value.state, value.result, value.error)

    def value(self) -> FlowUpdate:
        return FlowUpdate(self.id, self.state, self.result, self.error)


class FlowInfoAnswer(Single[FlowInfo]):
    """How a flow is."""

    flow: FlowInfo


class MessagesAnswer(Struct):
    """Messages and updates of a flow. ``next_cursor`` begins the next page; ``null``: this is the last one."""

    messages: list[MessageInfo]
    next_cursor: str | None

    @classmethod
    def of(cls, page: MessagePage) -> MessagesAnswer:
        return cls(page.messages, None if page.next_before is None else str(page.next_before))

    def value(self) -> MessagePage:
        return MessagePage(self.messages, None if self.next_cursor is None else int(self.next_cursor))


class PublishedAnswer(Struct):
    """What a flow has published last; ``null`` if it has published nothing."""

    published: Raw

    @classmethod
    def of(cls, value: Any) -> PublishedAnswer:
        return cls(Raw(encode(value)))

    def value(self) -> Any:
        return msgspec.json.decode(self.published)


encode: Final = msgspec.json.Encoder().encode
TURN: Final = msgspec.json.Decoder(TurnBody)
MESSAGE: Final = msgspec.json.Decoder(MessageBody)
