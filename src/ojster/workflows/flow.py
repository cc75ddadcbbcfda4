"""Flows: functions with durable steps. What a worker that runs one and the server say to each other.

A flow is a container of the graph. Its first step is the job that runs the function; the others are those that the
function has asked for. Everything that it asks for is a record under a key, which follows from the place in the
program. The function runs again from its start whenever the job does, and gets the ends of its records. Times are
microseconds since the epoch.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.core.access import Access
from ojster.core.timestamps import Moment
from ojster.core.wire import Count, Identifier

MAX_KEY_LENGTH: Final = 500
"""Maximum length of the key of a record, in characters."""

MAX_RECORDS_AT_ONCE: Final = 1_000
"""Maximum number of records that a worker sends at once."""

MAX_MESSAGES: Final = 10_000
"""Maximum number of messages that wait for a flow."""

MAX_MESSAGES_AT_ONCE: Final = 1_000
"""Maximum number of messages that a flow receives at once."""

MAX_MESSAGE_BYTES: Final = 262_144
"""Maximum size of a message, in bytes of JSON."""

MAX_WAIT_MS: Final = 60_000
"""Longest wait of a call for the answer to an update, in milliseconds."""

MOST_DIGITS: Final = 18
"""Digits of the largest number of a message, or of a chunk of a stream."""

MAX_WAITS: Final = 50
"""Maximum number of awaits that a suspended flow shows, and of updates that it answers."""

RESERVED: Final = "!"
"""The beginning of keys that no function can give."""

CANCELLATION: Final = f"{RESERVED}cancel"
"""The key of the record that a flow is to be cancelled."""

BEGIN: Final = f"{RESERVED}begin"
"""The key of the record that a flow has begun."""

PUBLISHED: Final = f"{RESERVED}published"
"""The key of the record with what a flow has published last."""

RESTARTED: Final = f"{RESERVED}restarted"
"""What has received the messages that a flow received before it began anew."""

POSITION: Final = f"{RESERVED}position"
"""The key of the record of where a flow waits."""

GIVEN_UP: Final = b'{"state":"given_up","error":null}'
"""The error of a record that the flow itself no longer waits for: it never gets the end."""

Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH)]

RecordKind = Literal[
    "begin",
    "step",
    "run",
    "receive",
    "receive_many",
    "listen",
    "listen_many",
    "cancel",
    "patch",
    "published",
    "answer",
    "chunk",
    "stream",
]
"""What a record is: the beginning of the flow, the outcome of a local step, an awaited step of the graph, an awaited
message or broadcast, or all that have come, that the flow was cancelled, that it takes the new way at a changed place
of its function, what it has published last, its answer to an update, what it appends to a stream, which is kept there,
or how often it has appended to one."""

LISTENING: Final = ("listen", "listen_many")
"""Kinds of records that receive broadcasts."""

RECEIVING: Final = ("receive", "receive_many", *LISTENING)
"""Kinds of records that receive messages, or broadcasts."""

TOLD: Final = ("published", "answer", "chunk", "stream")
"""Kinds of records that a flow only tells, and does not wait for."""

ASKED_FOR: Final = ("step", "run", "patch", *RECEIVING)
"""The kinds of records that the function asks for each time it runs."""


class FlowRecord(Struct, frozen=True, omit_defaults=True):
    """What a flow has asked for, and how it has ended.

    Parameters
    ----------
    key:
        Its place in the program, unique in the flow.
    name:
        Name of the step, the job type, or the name of the message.
    asked_at:
        When the flow asked for it, in the time of the flow.
    input:
        Digest of what it was asked for with, so that a change of the program is noticed; ``None``: not compared.
    ended_at:
        When it ended; ``None``: not yet.
    place:
        Its place among the ends that the flow has seen, where more than one could have been the next.
    seen_at:
        When the flow saw its end, in its time; ``None``: at ``ended_at``.
    number:
        Of its end among those that others have brought to the flow, from 1; ``None``: the flow has ended it, or nobody.
    result, error:
        Any JSON value; and an object with ``state`` and ``error``, or ``type`` and ``message``, if it failed.
    """

    key: Key
    kind: RecordKind
    name: str
    asked_at: int
    input: str | None = None
    ended_at: int | None = None
    place: int | None = None
    seen_at: int | None = None
    number: int | None = None
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class FlowReading(Struct, frozen=True):
    """A request for the records of the flow that a job runs.

    Parameters
    ----------
    after:
        Only those that others have ended since, by the number of the last one that is known; ``None``: all.
    """

    job_id: str
    after: int | None = None


class NewRecord(Struct, frozen=True, omit_defaults=True):
    """Something that a flow asks for, or the outcome of a local step; see ``FlowRecord``.

    Parameters
    ----------
    step:
        Of a ``run``: the step to add to the graph.
    correlation_key, look_back:
        Of a ``listen``: the key of the broadcasts; and how long before the record those are received, too, in
        microseconds, at most 7 days.
    result_file:
        Of a ``step``: id of a file with the result, instead of ``result``.
    """

    key: Key
    kind: Literal[
        "begin",
        "step",
        "run",
        "receive",
        "receive_many",
        "listen",
        "listen_many",
        "patch",
        "published",
        "answer",
        "chunk",
    ]
    name: str
    asked_at: Moment
    input: str | None = None
    ended_at: Moment | None = None
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    step: Raw | UnsetType = UNSET
    correlation_key: Identifier | None = None
    look_back: Count = 0
    result_file: Identifier | None = None


class Seen(Struct, frozen=True):
    """An end that the flow has seen, with its place among the others, and the time of the flow."""

    key: Key
    place: int
    at: Moment


class FlowWait(Struct, frozen=True, omit_defaults=True):
    """Something that a suspended flow awaits.

    Parameters
    ----------
    kind:
        ``run``, ``receive``, ``receive_many``, ``listen``, ``listen_many``, ``sleep``, or ``update``: the flow answers
        updates of this name.
    name:
        The job type, or the name of the message or the update.
    since, until:
        When the flow has asked for it, and when its sleep or its timeout ends; ``None``: it waits without limit.
    key:
        The key of its record.
    file, line, function, code:
        The line of the flow's code in which it waits.
    form:
        JSON Schema of the message, or of the array of the update's arguments, if it is known.
    """

    kind: Literal["run", "receive", "receive_many", "listen", "listen_many", "sleep", "update"]
    name: str
    since: Moment
    key: Key
    until: Moment | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    form: Raw | UnsetType = UNSET


class FlowPosition(Struct, frozen=True):
    """Where a flow waits when it leaves its worker: what it awaits, and a digest of the source of its function."""

    waits: Annotated[tuple[FlowWait, ...], Meta(max_length=2 * MAX_WAITS)] = ()
    version: Annotated[str, Meta(max_length=100)] = ""


class Turn(Struct, frozen=True):
    """What a flow has done since its worker last said so.

    Parameters
    ----------
    records:
        What it asks for, and outcomes of local steps.
    seen:
        The ends that it has seen, if their order is not clear otherwise.
    cancelled:
        Keys of steps and messages that it no longer waits for. Steps are cancelled.
    suspends:
        Whether the flow waits, and leaves the worker, unless something has ended that it does not know.
    wakes_at:
        When a suspended flow runs again at the latest; ``None``: when something ends.
    version, ended:
        The version of the workflow, and the number of the last end, that the worker knows.
    was_cancelled:
        Whether the flow has ended because it was cancelled.
    access:
        What the worker may do, which the service sets; ``None``: everything.
    restarts:
        Whether the function begins anew. The arguments are the result of a record of the kind ``begin``.
    position:
        With ``suspends``: where it waits, for people who look at it.
    flow:
        The number of the flow, from callers in the process of the service. It changes how records are written, and
        not what they do.
    """

    job_id: str
    worker_id: str | None = None
    attempt: int | None = None
    started_at: int | None = None
    records: tuple[NewRecord, ...] = ()
    seen: tuple[Seen, ...] = ()
    cancelled: tuple[str, ...] = ()
    suspends: bool = False
    wakes_at: int | None = None
    version: int = 0
    ended: int = 0
    was_cancelled: bool = False
    access: Access | None = None
    restarts: bool = False
    position: FlowPosition | None = None
    flow: int | None = None


class FlowRecords(Struct, frozen=True):
    """The records of a flow.

    Parameters
    ----------
    workflow_id, version:
        Its workflow, and the version of that.
    now:
        The time of the server.
    records:
        All of them when the flow begins to run; otherwise those that others have ended since.
    suspended:
        Whether the flow has left its worker.
    flow:
        Number of the flow in its workflow, the same each time it runs; 0 after a turn.
    waited_at:
        The time at which it left a worker last, to wait; ``None`` after a turn, and if it has not left one.
    """

    workflow_id: str
    version: int
    now: int
    records: list[FlowRecord]
    suspended: bool = False
    flow: int = 0
    waited_at: int | None = None


class FlowMessage(Struct, frozen=True):
    """A message to a flow.

    Parameters
    ----------
    workflow_id:
        The workflow.
    name:
        What the flow receives it by.
    data:
        Any JSON value.
    step:
        Path of the step that is the flow; ``None``: the workflow is the flow.
    idempotency_key:
        A message with the same key is not kept twice.
    by:
        Name of the sender, if it is known.
    tenant:
        The tenant of the sender; ``None``: any.
    """

    workflow_id: str
    name: Identifier
    data: bytes
    step: str | None = None
    idempotency_key: Identifier | None = None
    by: str | None = None
    tenant: str | None = None


def message_of(update: str) -> str:
    """Return the name of the messages that are updates of a name: no flow receives it otherwise."""
    return f"{RESERVED}{update}"


def key_of_update(message: str, number: int = 1) -> str:
    """Return the key of the record that waits for an update of a message's name, the first or a later one."""
    return f"{RESERVED}update/{message.removeprefix(RESERVED)}" + ("" if number == 1 else f"#{number}")


class UpdateAddress(Struct, frozen=True):
    """An update of a flow, by the number of its message.

    Parameters
    ----------
    tenant:
        The tenant that asks; ``None``: any.
    """

    workflow_id: str
    number: int
    tenant: str | None = None


class FlowAddress(Struct, frozen=True):
    """A flow: the workflow, or a step of it.

    Parameters
    ----------
    tenant:
        The tenant that asks; ``None``: any.
    """

    workflow_id: str
    step: str | None = None
    tenant: str | None = None


class FlowUpdate(Struct, frozen=True, omit_defaults=True):
    """An update: a message that a flow answers.

    Parameters
    ----------
    id:
        Number of the message.
    state:
        ``waiting``, ``completed`` or ``failed``.
    result, error:
        The answer, any JSON value; or an object with ``type`` and ``message``, if the update has failed.
    """

    id: int
    state: Literal["waiting", "completed", "failed"]
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
