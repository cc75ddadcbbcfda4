"""How lookups in the arguments of jobs are found."""

from __future__ import annotations

from typing import ClassVar

from ojster.collections.items import check_lookups
from ojster.core.job_flags import LOOKUP_BIT
from ojster.core.json_objects import Members
from ojster.jobs.attributes import AttributeReader, Attributes


class Reader(AttributeReader):
    """Finds the lookups of jobs that are no steps: those of steps are resolved before the step starts."""

    mark: ClassVar[bytes] = b'"$lookup"'

    def read(self, type: str, args: bytes, members: Members, attributes: Attributes) -> None:
        """Check the lookups in the arguments."""
        if self.mark in args and "workflow_id" not in members and check_lookups(args):
            attributes.flags |= LOOKUP_BIT
