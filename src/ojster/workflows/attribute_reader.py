"""How the wait of a wait step is read."""

from __future__ import annotations

from ojster.core.json_objects import Members
from ojster.jobs.attributes import AttributeReader, Attributes, check_belongs
from ojster.jobs.names import WAIT_TYPE
from ojster.workflows.wait import ATTRIBUTE, read_wait


class Reader(AttributeReader):
    """Reads what a wait step waits for."""

    names = frozenset({ATTRIBUTE})
    types = frozenset({WAIT_TYPE})

    def read(self, type: str, args: bytes, members: Members, attributes: Attributes) -> None:
        """Read the wait of a wait step."""
        check_belongs(ATTRIBUTE, WAIT_TYPE, type, members, field=ATTRIBUTE)
        if ATTRIBUTE in members:
            attributes.suspension = read_wait(members[ATTRIBUTE])
