"""How the requirements of jobs are read."""

from __future__ import annotations

from ojster.core.json_objects import Members
from ojster.fleet.ml_resources import ATTRIBUTES, REQUIRES, has_requirements, read_resources
from ojster.jobs.attributes import AttributeReader, Attributes


class Reader(AttributeReader):
    """Reads ``requires`` and the resources of ojs-ml-resources."""

    names = ATTRIBUTES | {REQUIRES}

    def read(self, type: str, args: bytes, members: Members, attributes: Attributes) -> None:
        """Read what a worker must have for the job."""
        if has_requirements(members):
            resources = read_resources(members)
            attributes.needs = None if resources.needs is None else resources.needs.key
            attributes.timeout = resources.timeout
