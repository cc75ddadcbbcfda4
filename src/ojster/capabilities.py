"""The capabilities of Ojster, in one list.

Each takes part in the life of a job through its extension. Their order is that of their extensions at each point.
"""

from __future__ import annotations

from typing import Final

from ojster.agents.extension import AgentExtension
from ojster.collections.extension import CollectionExtension
from ojster.events.extension import EventExtension
from ojster.fleet.extension import FleetExtension
from ojster.insight.extension import TaskHistoryExtension
from ojster.jobs.extension import Extension
from ojster.queues.extension import QueueExtension
from ojster.tenancy.extension import TenancyExtension
from ojster.workflows.extension import WorkflowExtension

EXTENSIONS: Final[tuple[Extension, ...]] = (
    TenancyExtension(),
    FleetExtension(),
    QueueExtension(),
    TaskHistoryExtension(),
    AgentExtension(),
    WorkflowExtension(),
    CollectionExtension(),
    EventExtension(),
)
"""What takes part in the life of a job."""
