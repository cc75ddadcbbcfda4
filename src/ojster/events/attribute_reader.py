"""How the reactions of jobs are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojster.core.access import Operation
from ojster.core.errors import InvalidRequest
from ojster.core.job_flags import REACTIONS
from ojster.core.json_objects import Members
from ojster.events.channel import Notify
from ojster.events.reaction_rules import Enqueue, bits_of, needs_of, read_reactions
from ojster.jobs.attributes import AttributeReader, Attributes
from ojster.jobs.names import WAIT_TYPE


class Reader(AttributeReader):
    """Reads ``event_reactions``."""

    names = frozenset({REACTIONS})

    def read(self, type: str, args: bytes, members: Members, attributes: Attributes) -> None:
        """Read the reactions of a job."""
        if REACTIONS not in members:
            return
        reactions = read_reactions(members[REACTIONS])
        if "on_reminder" in reactions and type != WAIT_TYPE:
            raise InvalidRequest("Only wait steps can have 'on_reminder'.", field=f"{REACTIONS}.on_reminder")
        actions = [action for of_event in reactions.values() for action in of_event]
        attributes.flags |= bits_of(reactions)
        attributes.enqueues = tuple(action.job for action in actions if isinstance(action, Enqueue))
        if notices := tuple(action for action in actions if isinstance(action, Notify)):
            attributes.values["events"] = notices

    def operations(self, made: Mapping[str, Any]) -> dict[str, tuple[Operation, ...]]:
        """Return what its reactions need."""
        reactions = made.get(REACTIONS)
        with_action = [
            action
            for actions in (reactions.values() if isinstance(reactions, dict) else ())
            for action in (actions if isinstance(actions, list) else ())
            if isinstance(action, dict)
        ]
        return {action["action"]: operations for action in with_action if (operations := needs_of(action))}
