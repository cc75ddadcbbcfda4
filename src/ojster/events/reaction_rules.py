"""Reactions of a job: lists of actions, by event.

They are attributes of the job, checked when it is pushed, and carried out by ``ojster.events.reactions`` in the
transaction of the event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ojster.collections.collect import Collect
from ojster.collections.items import INTERNAL, check_collection_name, check_item_name, read_lookup
from ojster.core.access import Operation
from ojster.core.durations import DAY, HOUR, MINUTE, WEEK
from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.core.job_flags import BITS, COLLECTS_BIT, REACTIONS, SKIPS, JobEvent
from ojster.core.short_cache import cache_short
from ojster.events.channel import Notify
from ojster.insight.task_values import Record, Skip, SkipIfChanged, SkipIfUnchanged
from ojster.jobs.stored_actions import stored_reactions

MAX_ACTIONS: Final = 20
"""Maximum number of actions for an event."""

_DELAY: Final = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_UNITS: Final = {"m": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}


class Enqueue(msgspec.Struct, frozen=True, tag_field="action", tag="enqueue", forbid_unknown_fields=True):
    """Push a job. References in its arguments and ``meta`` may lead to the job that has the reaction: ``job.id``."""

    job: dict[str, msgspec.Raw]


class StartWorkflow(msgspec.Struct, frozen=True, tag_field="action", tag="start-workflow", forbid_unknown_fields=True):
    """Start a workflow, which may come from a definition.

    References in its ``params``, ``properties`` and ``target`` may lead to the job that has the reaction.
    """

    workflow: dict[str, msgspec.Raw]


class RetryWithDelays(
    msgspec.Struct, frozen=True, tag_field="action", tag="retry-with-delays", forbid_unknown_fields=True
):
    """For ``on_failure``: after all attempts have failed, retry after each of these delays, such as ``30m``.

    The failure is reported only after the last of these retries.
    """

    delays: tuple[str, ...]


Action = Enqueue | StartWorkflow | Collect | Notify | RetryWithDelays | Record | SkipIfUnchanged | SkipIfChanged

NEEDS: Final[dict[str, tuple[Operation, ...]]] = {
    "enqueue": (Operation.ENQUEUE,),
    "start-workflow": (Operation.ENQUEUE,),
    "collect": (Operation.CANCEL, Operation.DEQUEUE),
}
"""Operations of the kinds of actions that change more than their own job: whoever declares one needs one of these.

They are the operations of the endpoint that does the same. Other kinds concern their own job alone. So does ``collect``
into the collection of the job's own workflow.

Spec: ojs-security 7.2
"""


def needs_of(action: Mapping[str, Any]) -> tuple[Operation, ...]:
    """Return the operations for an action, given as JSON: its caller needs one of them. Empty: anybody may declare it.

    The action need not be valid.
    """
    kind = action.get("action")
    is_own = kind == "collect" and action.get("collection", INTERNAL) == INTERNAL
    return () if is_own or not isinstance(kind, str) else NEEDS.get(kind, ())


_decode: Final = msgspec.json.Decoder(dict[JobEvent, tuple[Action, ...]]).decode


def read_reactions(raw: bytes | msgspec.Raw) -> dict[JobEvent, tuple[Action, ...]]:
    """Return the reactions of a job. The jobs and workflows in them are not validated here.

    Raises
    ------
    InvalidRequest
        They are malformed.
    """
    return _read_reactions(bytes(raw))


@cache_short(1024)
def _read_reactions(raw: bytes) -> dict[JobEvent, tuple[Action, ...]]:
    """Parse reactions, with a cache: jobs of a type mostly have the same."""
    try:
        reactions = _decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The reactions of the job are malformed: {error}.", field=REACTIONS) from None
    for event, actions in reactions.items():
        if len(actions) > MAX_ACTIONS:
            raise InvalidRequest(f"{event!r} can have at most {MAX_ACTIONS} actions.", field=f"{REACTIONS}.{event}")
        retries = [action for action in actions if isinstance(action, RetryWithDelays)]
        if len(retries) > (event == "on_failure"):
            message = "'retry-with-delays' is allowed once, in 'on_failure'."
            raise InvalidRequest(message, field=f"{REACTIONS}.{event}")
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
    """Reject actions that the event does not allow."""
    if sum(isinstance(action, SkipIfUnchanged) for action in actions) > 1:
        raise InvalidRequest("'skip-if-unchanged' is allowed once.", field=f"{REACTIONS}.{event}")
    for action in actions:
        if isinstance(action, Record) and event not in ("on_success", "on_failure"):
            message = f"'record' is allowed in 'on_success' and 'on_failure', not in {event!r}."
            raise InvalidRequest(message, field=f"{REACTIONS}.{event}")
        if not isinstance(action, Skip):
            continue
        if event != "on_assignment":
            message = f"'skip-if-unchanged' and 'skip-if-changed' are allowed in 'on_assignment', not in {event!r}."
            raise InvalidRequest(message, field=f"{REACTIONS}.{event}")
        if isinstance(action, SkipIfChanged):
            read_lookup(msgspec.json.encode(action.lookup))
            if action.provides is not None:
                check_item_name(action.provides)


def reactions_of(envelope: bytes) -> dict[JobEvent, tuple[Action, ...]]:
    """Return the reactions of a stored job; raises the errors of ``read_reactions``."""
    return read_reactions(stored_reactions(envelope))


def delays_of(retry: RetryWithDelays) -> list[int]:
    """Return the delays before the retries, in microseconds.

    Raises
    ------
    InvalidRequest
        A delay is malformed, or there is none.
    """
    matches = [_DELAY.fullmatch(delay) for delay in retry.delays]
    if not matches or None in matches:
        raise InvalidRequest("'delays' must be like ['30m', '12h', '1d', '2w'].", field=f"{REACTIONS}.on_failure")
    return [int(match[1]) * _UNITS[match[2]] for match in matches if match is not None]


def most_attempts(job: Job) -> int:
    """Return the maximum number of attempts of a job, with those that ``retry-with-delays`` adds."""
    later = (it for it in reactions_of(job.envelope).get("on_failure", ()) if isinstance(it, RetryWithDelays))
    return max(1, job.max_attempts) + sum(len(retry.delays) for retry in later)


def bits_of(reactions: Mapping[JobEvent, Sequence[Any]]) -> int:
    """Return the bits of ``flags`` for these reactions."""
    bits = sum(bit for event, bit in BITS.items() if reactions.get(event))
    collects = any(isinstance(action, Collect) for action in reactions.get("on_success", ()))
    skips = any(isinstance(action, Skip) for action in reactions.get("on_assignment", ()))
    return bits | COLLECTS_BIT * collects | SKIPS * skips
