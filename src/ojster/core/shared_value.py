"""Large values that many jobs of a workflow contain, and that are stored once for all of them.

A parameter of 60 kB that 16,000 steps refer to would be a gigabyte of jobs. Their rows name the value and the place in
the envelope where it belongs; whoever reads an envelope reads it whole.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Final

SHARED_FROM: Final = 8_192
"""The size from which a value that a step refers to is stored once for its workflow, in bytes of JSON."""

STORE: Final = "INSERT INTO shared_values (digest, workflow, value) VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING"
"""Stores a value, given by ``SharedValue.row``, unless it is stored already."""


class SharedValue:
    """A value, and the workflow that owns it: it is deleted with the workflow, and no other one can refer to it.

    Parameters
    ----------
    workflow:
        Number of the workflow.
    value:
        The value, as JSON.
    """

    def __init__(self, workflow: int, value: bytes) -> None:
        self.workflow = workflow
        self.value = value
        self.is_stored = False
        """Whether the workflow has it already, by an earlier transaction or an earlier job of this one."""

    @cached_property
    def digest(self) -> bytes:
        """The key of the value: no two values of a workflow have the same one, and no two workflows share a value."""
        return hashlib.blake2b(self.value, digest_size=32, salt=self.workflow.to_bytes(8)).digest()

    @property
    def row(self) -> tuple[bytes, int, bytes]:
        """The parameters of ``STORE``."""
        return self.digest, self.workflow, self.value

    def taken_from(self, envelope: bytes) -> tuple[bytes, int] | None:
        """Return an envelope without the value, and the place where it was; ``None`` if it is not in there."""
        place = envelope.find(self.value)
        if place < 0:
            return None
        return envelope[:place] + envelope[place + len(self.value) :], place
