"""The capabilities of Ojster, in one list.

Each entry names what a capability brings to the life of jobs: an extension, which also holds its due work, its
retention, its reactions and its claim policies. By its name, the server adds its endpoints and gauges, and the command
line its commands, so that it can be left out by its line here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ojster.core.event_metrics import EventMetrics
from ojster.jobs.attributes import AttributeReader, use_readers

if TYPE_CHECKING:
    from ojster.jobs.extension import Extension


class Capability(NamedTuple):
    """What a capability brings.

    Parameters
    ----------
    extension:
        The class, in the module ``extension``, of its part in the life of jobs; ``None``: it has none.
    is_optional:
        Whether a server without it still passes levels 0 and 1 of the conformance suite.
    has_attributes:
        Whether it has a module ``attribute_reader`` with the class ``Reader``: how its attributes of jobs are read.
    has_event_metrics:
        Whether it has a module ``event_metrics`` with ``EVENT_METRICS``: metrics that its events change.
    """

    name: str
    extension: str | None = None
    is_optional: bool = True
    has_attributes: bool = False
    has_event_metrics: bool = False

    def module(self, name: str) -> Any:
        """Import a module of its package."""
        return import_module(f"ojster.{self.name}.{name}")


CAPABILITIES: Final = (
    Capability("jobs", is_optional=False, has_event_metrics=True),
    Capability("tenancy", "TenancyExtension", has_event_metrics=True),
    Capability("audit", "AuditExtension", is_optional=False),
    Capability("fleet", "FleetExtension", is_optional=False, has_attributes=True),
    Capability("queues", "QueueExtension", is_optional=False, has_event_metrics=True),
    Capability("insight", "TaskHistoryExtension", is_optional=False),
    Capability("agents", "AgentExtension", has_attributes=True),
    Capability("workflows", "WorkflowExtension", has_attributes=True),
    Capability("collections", "CollectionExtension", has_attributes=True),
    Capability("files"),
    Capability("schedules", "ScheduleExtension"),
    Capability("push", "PushExtension", has_event_metrics=True),
    Capability("events", "EventExtension", has_attributes=True, has_event_metrics=True),
)
"""All capabilities. Their order is that of their extensions at each extension point."""


def extensions_of(capabilities: Iterable[Capability]) -> tuple[Extension, ...]:
    """Return the extensions of capabilities, in their order; some have none."""
    return tuple(
        getattr(capability.module("extension"), capability.extension)()
        for capability in capabilities
        if capability.extension is not None
    )


@cache
def all_extensions() -> tuple[Extension, ...]:
    """Return the extensions of all capabilities."""
    return extensions_of(CAPABILITIES)


def event_metrics(capabilities: Iterable[Capability] = CAPABILITIES) -> EventMetrics:
    """Return the metrics that the events of capabilities change."""
    return EventMetrics(
        capability.module("event_metrics").EVENT_METRICS for capability in capabilities if capability.has_event_metrics
    )


def attribute_readers(capabilities: Iterable[Capability] = CAPABILITIES) -> list[AttributeReader]:
    """Return how the attributes of capabilities are read."""
    return [capability.module("attribute_reader").Reader() for capability in capabilities if capability.has_attributes]


use_readers(attribute_readers())
