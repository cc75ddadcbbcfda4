"""Flows as people see them: where they wait, what they have published, and their messages."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.wire import Timestamp

DEFAULT_MESSAGES: Final = 50
"""Number of messages in a page, unless the caller asks for another."""

MOST_MESSAGES: Final = 200
"""Maximum number of messages in a page."""

MOST_SHOWN_BYTES: Final = 4_096
"""Size up to which the data and the answer of a message are shown in a list, in bytes."""


class WaitInfo(Struct, frozen=True, omit_defaults=True):
    """Something that a flow awaits while no worker runs it.

    Parameters
    ----------
    kind:
        ``run`` (a job, or other steps), ``receive`` or ``receive_many`` (messages), ``listen`` or ``listen_many``
        (messages with a key), or ``sleep``.
    name:
        The job type, or the name of the message.
    since, until:
        When the flow has asked for it, and when its sleep or its timeout ends, RFC 3339.
    key:
        The key of its record.
    at:
        The line of the flow's code: ``orders.py:42 in fulfil``.
    code:
        The text of this line.
    form:
        JSON Schema of the message, if the flow has said of which type it is.
    """

    kind: Literal["run", "receive", "receive_many", "listen", "listen_many", "sleep"]
    name: str
    since: Timestamp
    key: str
    until: Timestamp | None = None
    at: str | None = None
    code: str | None = None
    form: Raw | UnsetType = UNSET


class UpdateInfo(Struct, frozen=True, omit_defaults=True):
    """An update that a flow answers, and a JSON Schema of an object with its arguments by name, if it is known."""

    name: str
    form: Raw | UnsetType = UNSET


class FlowInfo(Struct, frozen=True, omit_defaults=True):
    """A flow: the workflow, or a step of it.

    Parameters
    ----------
    name, job_id:
        Name of the flow, and the id of the job that runs its function; ``None``: it has not started.
    state:
        ``waiting`` (for what ``waits`` shows), or the state of its job: ``available`` if it waits for a worker,
        ``active`` while one runs it.
    began_at:
        When its function began to run, RFC 3339.
    code_version, latest_code_version:
        Digests of the source of its function: as it was when the flow began, and when it waited last. Two that differ
        mean that the code has changed.
    waits:
        What it waits for; empty while a worker runs it.
    updates:
        The updates that it answers, as far as they are known.
    published, published_at:
        What it has published last, any JSON value, and when.
    messages_waiting, updates_waiting:
        Numbers of messages that it has not received, and of updates that it has not answered.
    cancelling:
        Whether it was cancelled and cleans up.
    """

    name: str
    state: str
    job_id: str | None = None
    began_at: Timestamp | None = None
    code_version: str | None = None
    latest_code_version: str | None = None
    waits: list[WaitInfo] = []
    updates: list[UpdateInfo] = []
    published: Raw | UnsetType = UNSET
    published_at: Timestamp | None = None
    messages_waiting: int = 0
    updates_waiting: int = 0
    cancelling: bool = False


class MessageFilter(Struct, frozen=True):
    """Which messages and updates of a flow to list, the latest first.

    Parameters
    ----------
    step:
        Path of the step that is the flow; ``None``: the workflow is the flow.
    state:
        Only those that wait, or those that the flow has received; ``None``: all.
    before:
        Only those with smaller numbers.
    limit:
        Maximum number of messages; more than ``MOST_MESSAGES`` count as that.
    """

    workflow_id: str
    step: str | None = None
    state: Literal["waiting", "received"] | None = None
    before: Annotated[int, msgspec.Meta(ge=1, lt=10**18)] | None = msgspec.field(name="cursor", default=None)
    limit: Annotated[int, msgspec.Meta(ge=1, lt=10**9)] = DEFAULT_MESSAGES
    tenant: Annotated[str | None, SET_BY_SERVICE] = None


class MessageInfo(Struct, frozen=True, omit_defaults=True):
    """A message to a flow, or an update.

    Parameters
    ----------
    number, name:
        Its number, in the order in which messages came, and its name.
    kind:
        ``message``, or ``update``, which the flow answers.
    state:
        ``waiting``; ``received``; and of updates ``completed`` or ``failed``.
    sent_at, sent_by, answered_at:
        When it came and from whom, and when the flow has answered it, RFC 3339.
    received_by:
        The key of the record that has received it.
    size:
        Size of its data, in bytes.
    data, answer, error:
        What was sent, and the answer of the flow or why it failed; left out if they are larger than 4 KiB.
    """

    number: int
    name: str
    kind: Literal["message", "update"]
    state: Literal["waiting", "received", "completed", "failed"]
    sent_at: Timestamp
    size: int
    sent_by: str | None = None
    received_by: str | None = None
    answered_at: Timestamp | None = None
    data: Raw | UnsetType = UNSET
    answer: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class MessagePage(Struct, frozen=True):
    """A page of messages, and before which number the next page begins; ``None``: it is the last one."""

    messages: list[MessageInfo]
    next_before: int | None
