"""Triggers: what becomes a job when a CloudEvent arrives, and with which arguments.

Spec: ojs-cloudevents-interop 6, 8
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal

import msgspec

from ojster.core.durations import MONTH, SECOND, parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import Members
from ojster.core.parsing import matches_any
from ojster.core.references import Reference, Unresolvable, follow
from ojster.jobs.names import DEFAULT_QUEUE, check_queue_name, check_type

OWN_TYPES: Final = "org.openjobspec."
"""Prefix of the types of events that servers of Open Job Spec send."""

PREFIX: Final = f"{OWN_TYPES}trigger."
"""Default prefix of the types of events that name the type of their job. Spec: ojs-cloudevents-interop 6.2"""

_NAME: Final = r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d{1,9})\]|\['([^']+)'\]"
_PATH: Final = re.compile(rf"\$(?:{_NAME})*")

_NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
_encode: Final = msgspec.json.Encoder().encode


class CloudEvent(msgspec.Struct):
    """An event: its attributes that have a meaning here, and all ``members`` as they were sent, ``data`` among them."""

    specversion: Literal["1.0"]
    id: _NonEmpty
    source: _NonEmpty
    type: _NonEmpty
    subject: _NonEmpty | None = None
    time: str | None = None
    datacontenttype: str | None = None
    members: Members = {}


class TriggerMatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The events of a trigger. A ``*`` at the end of a type or source, and anywhere in a subject, stands for any text.

    Spec: ojs-cloudevents-interop 8.2
    """

    type: _NonEmpty
    source: _NonEmpty | None = None
    subject: _NonEmpty | None = None

    def covers(self, event: CloudEvent) -> bool:
        """Whether an event is one of them."""
        return (
            matches_any(event.type, (self.type,))
            and _is_meant(self.type, event)
            and (self.source is None or matches_any(event.source, (self.source,)))
            and (self.subject is None or fnmatchcase(event.subject or "", self.subject))
        )


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="mode", tag="template"):
    """Arguments by name, each with the path to its value in the event: ``{"repo": "$.data.repository.name"}``."""

    mapping: dict[str, str]

    def __post_init__(self) -> None:
        for path in self.mapping.values():
            _reference(path)

    def arguments(self, event: CloudEvent) -> bytes:
        """Return one object with the values."""
        whole = _encode(event.members)
        return _encode([{name: msgspec.Raw(follow(_reference(path), whole)) for name, path in self.mapping.items()}])


class Extraction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="mode", tag="jsonpath"):
    """A part of the event in place of its data."""

    expression: str

    def __post_init__(self) -> None:
        _reference(self.expression)

    def arguments(self, event: CloudEvent) -> bytes:
        """Return the part as arguments."""
        return _as_arguments(follow(_reference(self.expression), _encode(event.members)))


class Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events that become jobs of a type, in a queue, with arguments that ``transform`` makes of their data."""

    match: TriggerMatch
    job_type: str
    queue: str | None = None
    transform: Literal["pass-through"] | Template | Extraction = "pass-through"

    def arguments(self, event: CloudEvent) -> bytes:
        """Return the arguments of the job.

        Raises
        ------
        InvalidRequest
            The event lacks what they need.
        """
        if isinstance(self.transform, str):
            return _as_arguments(bytes(event.members.get("data", b"")))
        try:
            return self.transform.arguments(event)
        except Unresolvable as missing:
            what = f"The CloudEvent has not what its trigger for {self.job_type!r} needs"
            raise InvalidRequest(f"{what}: {missing}", field="data") from None


class Triggers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The triggers of a server: the first that covers an event counts. Other types name their job after a prefix.

    Of the same event, no second job is made within ``dedup_window``, a duration. Spec: ojs-cloudevents-interop 8.4
    """

    filters: list[Trigger] = []
    type_prefix: str = PREFIX
    dedup_window: str = "P1D"

    def __post_init__(self) -> None:
        if not SECOND <= self.dedup_window_us <= MONTH:
            raise ValueError(f"dedup_window {self.dedup_window!r:.40} is not between a second and 30 days")

    @property
    def dedup_window_us(self) -> int:
        """``dedup_window`` in microseconds."""
        return parse_duration(self.dedup_window)

    def request_of(self, event: CloudEvent) -> Members:
        """Return the request that pushes the job of an event.

        Raises
        ------
        InvalidRequest
            No trigger covers the event, or the event lacks what the trigger needs.
        """
        trigger = next((trigger for trigger in self.filters if trigger.match.covers(event)), None)
        if trigger is None:
            if not event.type.startswith(self.type_prefix) or not _is_meant(self.type_prefix, event):
                what = f"No trigger is for CloudEvents of the type {event.type!r:.200} from {event.source!r:.200}."
                raise InvalidRequest(
                    f"{what} Send {self.type_prefix + 'JOB_TYPE'!r}, or add one to --trigger-file.", field="type"
                )
            trigger = Trigger(TriggerMatch(event.type), event.type.removeprefix(self.type_prefix))
        known = {"event_id": event.id, "source": event.source, "subject": event.subject, "time": event.time}
        meta = {f"trigger_{name}": value for name, value in known.items() if value is not None}
        members = {"type": _encode(trigger.job_type), "args": trigger.arguments(event), "meta": _encode(meta)}
        if trigger.queue is not None:
            members["options"] = _encode({"queue": trigger.queue})
        return {name: msgspec.Raw(value) for name, value in members.items()}


def read_triggers(raw: bytes) -> Triggers:
    """Parse the JSON of triggers.

    Raises
    ------
    InvalidRequest
        It is malformed.
    """
    try:
        triggers = msgspec.json.decode(raw, type=Triggers)
        for trigger in triggers.filters:
            check_type(trigger.job_type)
            check_queue_name(trigger.queue or DEFAULT_QUEUE)
    except (msgspec.DecodeError, InvalidRequest) as error:
        raise InvalidRequest(f"The configuration of triggers is malformed: {str(error).rstrip('.')}.") from None
    return triggers


def _as_arguments(value: bytes) -> bytes:
    """Return arguments: a list as it is, any other value as the only one, and none for no value."""
    first = value.lstrip()[:1]
    return b"[]" if first in (b"", b"n") else value if first == b"[" else b"[%b]" % value


def _is_meant(pattern: str, event: CloudEvent) -> bool:
    """Whether a pattern may cover an event: one of a server, such as this one, only if the pattern says so.

    Without this, a webhook that sends all events to its own server would make jobs without end.
    """
    return not event.type.startswith(OWN_TYPES) or pattern.startswith(OWN_TYPES)


def _reference(path: str) -> Reference:
    """Return the reference for a path such as ``$.data.items[0]``."""
    if _PATH.fullmatch(path) is None:
        raise ValueError(f"{path!r:.80} is no path like '$.data.order.id', '$.data.items[0]' or '$.data['a b']'")
    names = tuple("".join(groups) for groups in re.findall(_NAME, path))
    return Reference(path, "$", None, None, names)
