"""The capabilities of Ojster, in one list.

Each entry names what a capability brings: its part in the life of jobs (an extension, which also holds its due work,
its retention, its reactions and its claim policies), its routes, its commands, and its metrics. Nothing else names the
capabilities, so that one can be left out by its line here. Modules of routes, commands and metrics are named, and not
imported, because workers need no routes, and servers no commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

import msgspec

from ojster.agents.extension import AgentExtension
from ojster.audit.extension import AuditExtension
from ojster.collections.extension import CollectionExtension
from ojster.events.extension import EventExtension
from ojster.fleet.extension import FleetExtension
from ojster.insight.extension import TaskHistoryExtension
from ojster.jobs.extension import Extension
from ojster.queues.extension import QueueExtension
from ojster.schedules.extension import ScheduleExtension
from ojster.tenancy.extension import TenancyExtension
from ojster.workflows.extension import WorkflowExtension


class Capability(msgspec.Struct, frozen=True):
    """What a capability brings.

    Parameters
    ----------
    extension:
        Its part in the life of jobs; ``None``: it has none.
    routes:
        Modules of the package with a tuple ``ROUTES``.
    commands:
        Commands of the ``ojster`` command line, as ``module:name``.
    metrics:
        The module with its metrics: ``EVENT_METRICS``, and a function ``families(service)``.
    is_optional:
        Whether a server without it still passes levels 0 and 1 of the conformance suite.
    """

    name: str
    extension: Extension | None = None
    routes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    metrics: str | None = None
    is_optional: bool = True

    def module(self, name: str) -> Any:
        """Import a module of its package."""
        return import_module(f"ojster.{self.name}.{name}")


CAPABILITIES: Final = (
    Capability(
        "jobs",
        routes=(
            "bulk_routes",
            "routes",
            "history_routes",
            "worker_routes",
            "admin_routes",
            "dead_letter_routes",
            "schema_routes",
            "job_type_routes",
        ),
        commands=("commands:push", "commands:jobs", "dead_letter_commands:dead_letter", "job_type_commands:job_types"),
        metrics="metrics",
        is_optional=False,
    ),
    Capability("tenancy", TenancyExtension(), ("routes", "token_routes"), ("commands:tokens",), "metrics"),
    Capability("audit", AuditExtension(), ("routes",), ("commands:audit",), is_optional=False),
    Capability("fleet", FleetExtension(), ("routes", "admin_routes"), ("commands:workers",), "metrics"),
    Capability(
        "queues",
        QueueExtension(),
        ("routes", "admin_routes", "rate_limit_routes", "pool_routes"),
        ("commands:queues",),
        "metrics",
        is_optional=False,
    ),
    Capability(
        "insight",
        TaskHistoryExtension(),
        ("status_routes", "routes", "task_routes"),
        ("commands:tasks",),
        is_optional=False,
    ),
    Capability("agents", AgentExtension()),
    Capability(
        "workflows",
        WorkflowExtension(),
        ("routes", "definition_routes"),
        ("commands:workflows", "definition_commands:definitions"),
        "metrics",
    ),
    Capability("collections", CollectionExtension(), ("routes",), ("commands:collections",)),
    Capability("files", routes=("routes",), commands=("commands:files",)),
    Capability("schedules", ScheduleExtension(), ("routes",), ("commands:cron",)),
    Capability(
        "events",
        EventExtension(),
        ("webhook_routes", "stream_routes", "channel_routes"),
        ("commands:channels",),
        "metrics",
    ),
)
"""All capabilities. Their order is that of their extensions at each extension point."""


def extensions_of(capabilities: Iterable[Capability]) -> tuple[Extension, ...]:
    """Return the extensions of capabilities."""
    return tuple(one.extension for one in capabilities if one.extension is not None)


EXTENSIONS: Final = extensions_of(CAPABILITIES)
"""The extensions of all capabilities."""
