"""What do the tasks of a workflow share? Named values, each with a version, changed all or none. (seed 002)

The seed lets tasks "add, remove or modify properties of the workflow". Here parallel tasks cannot lose each other's
changes: a change may say which versions it was made from.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.errors import Conflict, InvalidRequest, PayloadTooLarge
from ojster.core.parsing import read_value
from ojster.jobs.request import Members, check_depth, read_members

MOST_PROPERTIES: Final = 1_000
"""How many properties a workflow may have."""

LARGEST_PROPERTY: Final = 65_536
"""How many bytes a property may take as JSON."""

LONGEST_NAME: Final = 255

LARGEST_NOTE: Final = 16_384
"""How many bytes a note of a job or a workflow may take as JSON."""


class PropertyConflict(Conflict):
    """A property has another version than the change was made from: somebody else has changed it meanwhile."""

    code = "property_conflict"
    retryable = True


class Changes(msgspec.Struct, frozen=True):
    """What is to become of properties: all of it, or nothing.

    Parameters
    ----------
    set:
        New values, as JSON, by name.
    delete:
        Names of those that are not to be there any more.
    expected:
        Which versions they must have, by name; 0: it must not be there.
    """

    set: dict[str, msgspec.Raw] = {}
    delete: tuple[str, ...] = ()
    expected: dict[str, int] = {}

    @property
    def is_nothing(self) -> bool:
        """Whether nothing changes."""
        return not self.set and not self.delete


class Property(msgspec.Struct, frozen=True):
    """A value, as JSON, and its version, which grows with every change of it."""

    value: msgspec.Raw
    version: int

    def decoded(self) -> Any:
        """Return the value."""
        return msgspec.json.decode(self.value)


def check_changes(changes: Changes) -> Changes:
    """Return changes that are well-formed.

    Raises
    ------
    InvalidRequest, PayloadTooLarge
        They are not.
    """
    for name in {*changes.set, *changes.delete, *changes.expected}:
        if not 0 < len(name) <= LONGEST_NAME or "\0" in name:
            raise InvalidRequest(f"The name of a property has 1 to {LONGEST_NAME} characters.", field="properties")
    if both := sorted(changes.set.keys() & set(changes.delete)):
        raise InvalidRequest(f"The property {both[0]!r} cannot be set and deleted at once.", field="properties")
    for name, raw in changes.set.items():
        if len(raw) > LARGEST_PROPERTY:
            raise PayloadTooLarge(
                f"The property {name!r} takes {len(raw)} bytes; at most {LARGEST_PROPERTY} are allowed.",
                limit=LARGEST_PROPERTY,
            )
        read_value(raw, f"properties.{name}")
        if bytes(raw)[:1] in (b"[", b"{"):
            check_depth(bytes(raw), f"The property {name!r}")
    for name, version in changes.expected.items():
        if version < 0:
            raise InvalidRequest(f"The version of the property {name!r} cannot be {version}.", field="expected")
    return changes


def read_properties(raw: bytes) -> dict[str, msgspec.Raw]:
    """Return the properties with which a workflow is to begin.

    Raises
    ------
    InvalidRequest, PayloadTooLarge
        They are malformed.
    """
    given: Members = read_members(raw, "The properties")
    if len(given) > MOST_PROPERTIES:
        raise InvalidRequest(f"A workflow has at most {MOST_PROPERTIES} properties.", field="properties")
    return check_changes(Changes(given)).set
