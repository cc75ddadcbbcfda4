"""The endpoints of each capability."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final

from ojster.capabilities import CAPABILITIES, Capability
from ojster.server.route import Route

MODULES: Final = {
    "jobs": (
        "bulk",
        "history",
        "worker_protocol",
        "jobs_admin",
        "jobs",
        "sdk_checkpoints",
        "job_export",
        "dead_letter",
        "schemas",
        "job_types",
    ),
    "tenancy": ("tenants", "tokens", "sessions", "logins"),
    "audit": ("audit",),
    "fleet": ("workers", "fleet_admin"),
    "queues": ("queues", "queues_admin", "rate_limits", "pools"),
    "insight": ("status", "insight", "tasks"),
    "agents": ("agents",),
    "workflows": ("workflows", "workflow_bulk", "workflow_export", "definitions", "flows"),
    "collections": ("collections",),
    "files": ("files",),
    "schedules": ("schedules", "maintenance"),
    "push": ("push",),
    "events": ("webhooks", "streams", "channels"),
}
"""The modules with the endpoints of a capability, each with a tuple ``ROUTES``."""


def routes_of(capabilities: Iterable[Capability] = CAPABILITIES) -> tuple[Route, ...]:
    """Return the endpoints of capabilities."""
    modules = [name for capability in capabilities for name in MODULES.get(capability.name, ())]
    return tuple(route for name in modules for route in import_module(f"{__name__}.{name}").ROUTES)
