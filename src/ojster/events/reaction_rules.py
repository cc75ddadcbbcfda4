"""What is to happen when something happens to a job? Reactions: lists of actions, by event. (seed 003)

They are said with the job, checked when it is pushed, and carried out by ``ojster.events.reactions`` in the transaction
of the event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from ojster.collections.items import INTERNAL, Matching, check_collection_name, check_item_name, read_lookup
from ojster.core.durations import DAY, HOUR, MINUTE, WEEK
from ojster.core.errors import InvalidRequest
from ojster.core.reacts import BITS, COLLECTS, SKIPS, JobEvent
from ojster.events.channel import Notify
from ojster.insight.task_values import Record, Skip, SkipIfChanged, SkipIfUnchanged

ATTRIBUTE: Final = "event_reactions"
"""The attribute of the job in which they stand."""

MOST_ACTIONS: Final = 20
"""How many actions an event may have."""

_DELAY: Final = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_UNITS: Final = {"m": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}


class Enqueue(msgspec.Struct, frozen=True, tag_field="action", tag="enqueue", forbid_unknown_fields=True):
    """Push a job. References in its arguments and its ``meta`` lead to that which it is a reaction to: ``job.id``."""

    job: dict[str, msgspec.Raw]


class StartWorkflow(msgspec.Struct, frozen=True, tag_field="action", tag="start-workflow", forbid_unknown_fields=True):
    """Start a workflow, or one of a definition. References in its ``params``, ``properties`` and ``target`` may lead
    to the job that it is a reaction to.
    """

    workflow: dict[str, msgspec.Raw]


class Collect(msgspec.Struct, frozen=True, tag_field="action", tag="collect", forbid_unknown_fields=True):
    """Put data, or artifacts, into a collection (``ojster.collections.items``), in the place of what has the same name.

    Parameters
    ----------
    name:
        The item's name; what stands in braces leads to the job, ``build-{job.result.arch}``, or to the artifact,
        ``{artifact.name}``.
    collection:
        Which; ``internal`` is that of the job's workflow.
    data:
        Any JSON, in which references may lead to the job, or the artifact; without, the result of the job, or the data
        of the artifact.
    replace:
        Whether it takes the place of an item of that name; else the reaction fails if there is one.
    artifacts:
        Which artifacts of the job it is about, by what they must be like; without, data is put there.
    """

    name: str
    collection: str = INTERNAL
    category: str | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    replace: bool = True
    artifacts: Matching | None = None


class RetryWithDelays(
    msgspec.Struct, frozen=True, tag_field="action", tag="retry-with-delays", forbid_unknown_fields=True
):
    """Of ``on_failure``: when all attempts have failed, try again after each of these delays, such as ``30m``.

    Nobody hears of a failure before the last of them.
    """

    delays: tuple[str, ...]


Action = Enqueue | StartWorkflow | Collect | Notify | RetryWithDelays | Record | SkipIfUnchanged | SkipIfChanged
Reactions = dict[JobEvent, tuple[Action, ...]]

_decode: Final = msgspec.json.Decoder(Reactions).decode


def read_reactions(raw: bytes | msgspec.Raw) -> Reactions:
    """Return the reactions that a job says; whether jobs and workflows can be made of them is not checked here.

    Raises
    ------
    InvalidRequest
        They are malformed.
    """
    return _read_reactions(bytes(raw))


@lru_cache(maxsize=1024)
def _read_reactions(raw: bytes) -> Reactions:
    """Read reactions, or remember them: those of jobs of a type are mostly the same."""
    try:
        reactions = _decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The reactions of the job are malformed: {error}.", field=ATTRIBUTE) from None
    for event, actions in reactions.items():
        if len(actions) > MOST_ACTIONS:
            raise InvalidRequest(f"{event!r} has more than {MOST_ACTIONS} actions.", field=f"{ATTRIBUTE}.{event}")
        retries = [action for action in actions if isinstance(action, RetryWithDelays)]
        if len(retries) > (event == "on_failure"):
            message = "'retry-with-delays' can stand once, in 'on_failure'."
            raise InvalidRequest(message, field=f"{ATTRIBUTE}.{event}")
        for retry in retries:
            delays_of(retry)
        for collect in (action for action in actions if isinstance(action, Collect)):
            if collect.collection != INTERNAL:
                check_collection_name(collect.collection)
        for notice in (action for action in actions if isinstance(action, Notify)):
            notice.check()
        _check_places(event, actions)
    return reactions


def _check_places(event: JobEvent, actions: Sequence[Action]) -> None:
    """Refuse actions that make no sense when something happens."""
    if sum(isinstance(action, SkipIfUnchanged) for action in actions) > 1:
        raise InvalidRequest("'skip-if-unchanged' can stand once.", field=f"{ATTRIBUTE}.{event}")
    for action in actions:
        if isinstance(action, Record) and event not in ("on_success", "on_failure"):
            message = "'record' can stand in 'on_success' and 'on_failure'."
            raise InvalidRequest(message, field=f"{ATTRIBUTE}.{event}")
        if not isinstance(action, Skip):
            continue
        if event != "on_assignment":
            message = "'skip-if-unchanged' and 'skip-if-changed' can stand in 'on_assignment'."
            raise InvalidRequest(message, field=f"{ATTRIBUTE}.{event}")
        if isinstance(action, SkipIfChanged):
            read_lookup(msgspec.json.encode(action.lookup))
            if action.provides is not None:
                check_item_name(action.provides)


class _Envelope(msgspec.Struct):
    event_reactions: msgspec.Raw = msgspec.Raw(b"{}")


_in_envelope: Final = msgspec.json.Decoder(_Envelope).decode


def reactions_of(envelope: bytes) -> Reactions:
    """Return the reactions of a job that is stored; raises as ``read_reactions`` does."""
    return read_reactions(_in_envelope(envelope).event_reactions)


def delays_of(retry: RetryWithDelays) -> list[int]:
    """Return after what times, in microseconds, it is tried again.

    Raises
    ------
    InvalidRequest
        One of them is no time, or there is none.
    """
    found = [_DELAY.fullmatch(delay) for delay in retry.delays]
    if not found or None in found:
        raise InvalidRequest("Delays are a list such as ['30m', '12h', '1d', '2w'].", field=f"{ATTRIBUTE}.on_failure")
    return [int(match[1]) * _UNITS[match[2]] for match in found if match is not None]


def bits_of(reactions: Mapping[JobEvent, Sequence[Any]]) -> int:
    """Return how a job's row says to which events there are reactions."""
    bits = sum(bit for event, bit in BITS.items() if reactions.get(event))
    collects = any(isinstance(action, Collect) for action in reactions.get("on_success", ()))
    skips = any(isinstance(action, Skip) for action in reactions.get("on_assignment", ()))
    return bits | COLLECTS * collects | SKIPS * skips
