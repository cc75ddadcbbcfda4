"""The attributes of a job that capabilities define: what each of them says about the job, read in one place.

Most jobs have none, and cost nothing here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.agents.attributes import Agent, is_agent_task, read_agent
from ojster.collections.items import check_lookups
from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import Members
from ojster.core.reacts import KEPT, LOOKUP_BIT
from ojster.events.channel import Notify
from ojster.events.reaction_rules import ATTRIBUTE as REACTIONS
from ojster.events.reaction_rules import Action, Enqueue, bits_of, read_reactions
from ojster.fleet.ml_resources import has_requirements, read_resources
from ojster.jobs.code import ATTRIBUTE as CODE
from ojster.jobs.code import CODE_TYPE, read_code
from ojster.jobs.expiration import ATTRIBUTE as EXPIRATION
from ojster.jobs.expiration import read_expiration_delay
from ojster.workflows.wait import ATTRIBUTE as WAITS_FOR
from ojster.workflows.wait import WAIT_TYPE, Wait, read_wait


class Attributes(msgspec.Struct, frozen=True, gc=False):
    """What the attributes of capabilities say about a job."""

    needs: str | None = None
    """The key of its requirements (``ojster.fleet.requirements``)."""
    timeout: int | None = None
    """The maximum run time that its resources set, in microseconds."""
    agent: Agent | None = None
    wait: Wait | None = None
    reacts: int = 0
    """Bits: the events that have reactions, whether it has its own retention, and whether its args have lookups."""
    notices: tuple[Notify, ...] = ()
    enqueues: tuple[Enqueue, ...] = ()
    """The jobs that its reactions enqueue; the caller validates them."""


NO_ATTRIBUTES: Final = Attributes()

OWN_TYPES: Final = frozenset({CODE_TYPE, WAIT_TYPE})
"""Job types with attributes of their own."""

ATTRIBUTES: Final = frozenset({CODE, EXPIRATION, REACTIONS, WAITS_FOR, "requires", "schema", "version"})
"""The attributes of a job that are not options."""

_PREFIX: Final = "ext_"


def without_nulls(members: Members) -> Members:
    """Return the attributes of a request without those that are ``null``, which count as absent.

    Unknown members are kept, whatever they are.

    Spec: ojs-json-format 14.2
    """
    empty = [
        name
        for name, raw in members.items()
        if bytes(raw) == b"null" and (name in ATTRIBUTES or name.startswith(_PREFIX))
    ]
    return {name: raw for name, raw in members.items() if name not in empty} if empty else members


_OF_STEPS: Final = frozenset({"workflow_id", "workflow_step"})
"""The attributes that every step of a workflow has."""


def read_attributes(type: str, args: bytes, members: Members) -> Attributes:
    """Return what the attributes of capabilities say about a job.

    Parameters
    ----------
    type:
        The type of the job, without its version.
    args:
        Its ``args``, as JSON.
    members:
        The attributes of the request that ``read_job`` has not consumed.

    Raises
    ------
    InvalidRequest
        An attribute is malformed, or does not go with the type of the job.
    """
    looks_up = b'"$lookup"' in args and "workflow_id" not in members and check_lookups(args)
    if members.keys() <= _OF_STEPS and type not in OWN_TYPES:
        return Attributes(reacts=LOOKUP_BIT) if looks_up else NO_ATTRIBUTES
    _check_belongs(CODE, CODE_TYPE, type, members, field="type")
    if CODE in members:
        read_code(members[CODE])
    _check_belongs(WAITS_FOR, WAIT_TYPE, type, members, field=WAITS_FOR)
    needs, timeout = _requirements(members)
    actions, reacts = _reactions(type, members)
    if EXPIRATION in members:
        read_expiration_delay(members[EXPIRATION])  # validates it
        reacts |= KEPT
    if looks_up:
        reacts |= LOOKUP_BIT
    return Attributes(
        needs=needs,
        timeout=timeout,
        agent=read_agent(members) if is_agent_task(members) else None,
        wait=read_wait(members[WAITS_FOR]) if WAITS_FOR in members else None,
        reacts=reacts,
        notices=tuple(action for action in actions if isinstance(action, Notify)),
        enqueues=tuple(action for action in actions if isinstance(action, Enqueue)),
    )


def _check_belongs(attribute: str, to: str, type: str, members: Members, *, field: str) -> None:
    if (type == to) != (attribute in members):
        raise InvalidRequest(
            f"Jobs of type {to!r} must have the attribute {attribute!r}, and other jobs must not.", field=field
        )


def _requirements(members: Members) -> tuple[str | None, int | None]:
    if not has_requirements(members):
        return None, None
    resources = read_resources(members)
    return None if resources.needs is None else resources.needs.key, resources.timeout


def _reactions(type: str, members: Members) -> tuple[list[Action], int]:
    if REACTIONS not in members:
        return [], 0
    reactions = read_reactions(members[REACTIONS])
    if "on_reminder" in reactions and type != WAIT_TYPE:
        raise InvalidRequest("Only wait steps can have 'on_reminder'.", field=f"{REACTIONS}.on_reminder")
    return [action for actions in reactions.values() for action in actions], bits_of(reactions)
