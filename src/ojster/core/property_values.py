"""Properties of a workflow: named values, each with a version, that its jobs share.

A change of several properties is applied completely or not at all. It may name the versions that it is based on, so
parallel jobs cannot overwrite each other's changes.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.errors import Conflict, InvalidRequest, PayloadTooLarge
from ojster.core.json_objects import Members, read_members
from ojster.core.parsing import read_value

MAX_PROPERTIES: Final = 1_000
"""Maximum number of properties of a workflow."""

MAX_PROPERTY_BYTES: Final = 65_536
"""Maximum size of a property as JSON, in bytes."""

LONGEST_PROPERTY_NAME: Final = 255

MAX_NOTE_BYTES: Final = 16_384
"""Maximum size of a note of a job or a workflow as JSON, in bytes."""


class PropertyConflict(Conflict):
    """A property does not have the expected version: another change came first.

    Parameters
    ----------
    message:
        What was wrong, with which value, and what to do.
    details:
        Machine-readable context: ``property``, its ``current_version`` and the ``expected_version``.

    Examples
    --------
    >>> from ojster import Conflict, PropertyConflict
    >>> error = PropertyConflict("The property 'total' has version 3, not 2. Read it again.", property="total")
    >>> isinstance(error, Conflict), error.retryable, error.details
    (True, True, {'property': 'total'})
    """

    code = "x_property_conflict"
    retryable = True


class Changes(msgspec.Struct, frozen=True):
    """A change of properties, applied completely or not at all.

    Parameters
    ----------
    set:
        New values, as JSON, by name.
    delete:
        Names of properties to delete.
    expected:
        Required current versions, by name; 0: the property must not exist.
    """

    set: dict[str, msgspec.Raw] = {}
    delete: tuple[str, ...] = ()
    expected: dict[str, int] = {}

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to change."""
        return not self.set and not self.delete


class Property(msgspec.Struct, frozen=True):
    """A value, as JSON, and its version, which increases with every change."""

    value: msgspec.Raw
    version: int

    def decoded(self) -> Any:
        """Return the value."""
        return msgspec.json.decode(self.value)


def check_changes(changes: Changes) -> Changes:
    """Return the changes if they are well-formed.

    Raises
    ------
    InvalidRequest, PayloadTooLarge
        A name, a version or a value is malformed, or a value is too large.
    """
    for name in {*changes.set, *changes.delete, *changes.expected}:
        if not 0 < len(name) <= LONGEST_PROPERTY_NAME or "\0" in name:
            raise InvalidRequest(
                f"A property name must have 1 to {LONGEST_PROPERTY_NAME} characters.", field="properties"
            )
    if both := sorted(changes.set.keys() & set(changes.delete)):
        raise InvalidRequest(f"The property {both[0]!r} cannot be set and deleted at once.", field="properties")
    for name, raw in changes.set.items():
        if len(raw) > MAX_PROPERTY_BYTES:
            raise PayloadTooLarge(
                f"The property {name!r} takes {len(raw)} bytes; at most {MAX_PROPERTY_BYTES} are allowed.",
                limit=MAX_PROPERTY_BYTES,
            )
        read_value(raw, f"properties.{name}")
    for name, version in changes.expected.items():
        if version < 0:
            raise InvalidRequest(f"The version of {name!r} must be at least 0, not {version}.", field="expected")
    return changes


def read_properties(raw: bytes) -> dict[str, msgspec.Raw]:
    """Return the initial properties of a workflow.

    Raises
    ------
    InvalidRequest, PayloadTooLarge
        There are too many, or one is malformed or too large.
    """
    members: Members = read_members(raw, "The properties")
    if len(members) > MAX_PROPERTIES:
        raise InvalidRequest(f"A workflow can have at most {MAX_PROPERTIES} properties.", field="properties")
    return check_changes(Changes(members)).set
