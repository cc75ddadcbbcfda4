"""The capabilities of Ojster, in one list.

Each entry names what a capability brings: its part in the life of jobs (an extension, which also holds its due work,
its retention, its reactions and its claim policies), its routes, its commands, and its metrics. Nothing else names the
capabilities, so that one can be left out by its line here. Modules are named, and not imported, because workers need no
routes, servers no commands, and the command line none of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from ojster.jobs.extension import Extension


class CommandPlace(NamedTuple):
    """A command of the ``ojster`` command line: its name, its place as ``module:name``, and what it does.

    A group also has the names of its commands, with spaces between, so that they are suggested without importing it.
    """

    name: str
    place: str
    summary: str
    commands: str = ""


class Capability(NamedTuple):
    """What a capability brings.

    Parameters
    ----------
    extension:
        The class, in the module ``extension``, of its part in the life of jobs; ``None``: it has none.
    routes:
        Modules of the package with a tuple ``ROUTES``.
    commands:
        Commands of the ``ojster`` command line.
    metrics:
        The module with its metrics: ``EVENT_METRICS``, and a function ``families(service)``.
    is_optional:
        Whether a server without it still passes levels 0 and 1 of the conformance suite.
    """

    name: str
    extension: str | None = None
    routes: tuple[str, ...] = ()
    commands: tuple[CommandPlace, ...] = ()
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
        commands=(
            CommandPlace("push", "commands:push", "Enqueue a job."),
            CommandPlace(
                "jobs",
                "commands:jobs",
                "List, show, cancel, activate, retry and delete jobs.",
                "activate cancel delete explain history info list prioritize retry show",
            ),
            CommandPlace(
                "dead-letter",
                "dead_letter_commands:dead_letter",
                "List, retry and delete dead letters.",
                "delete list retry",
            ),
            CommandPlace(
                "job-types",
                "job_type_commands:job_types",
                "List, show and delete the defaults of job types.",
                "delete list show",
            ),
        ),
        metrics="metrics",
        is_optional=False,
    ),
    Capability(
        "tenancy",
        "TenancyExtension",
        ("routes", "token_routes", "session_routes", "login_routes"),
        (
            CommandPlace(
                "tokens",
                "commands:tokens",
                "Create, list, rotate and revoke access tokens.",
                "create list revoke rotate",
            ),
        ),
        "metrics",
    ),
    Capability(
        "audit",
        "AuditExtension",
        ("routes",),
        (CommandPlace("audit", "commands:audit", "Show, export and check the audit log.", "export list verify"),),
        is_optional=False,
    ),
    Capability(
        "fleet",
        "FleetExtension",
        ("routes", "admin_routes"),
        (
            CommandPlace(
                "workers",
                "commands:workers",
                "List workers, direct them, and override what they report.",
                "configure disable enable forget list rules tell unrunnable",
            ),
        ),
        "metrics",
    ),
    Capability(
        "queues",
        "QueueExtension",
        ("routes", "admin_routes", "rate_limit_routes", "pool_routes"),
        (
            CommandPlace(
                "queues",
                "commands:queues",
                "List, show, create, pause, resume and delete queues.",
                "create delete list pause resume show",
            ),
        ),
        "metrics",
        is_optional=False,
    ),
    Capability(
        "insight",
        "TaskHistoryExtension",
        ("status_routes", "routes", "survey_routes", "task_routes"),
        (CommandPlace("tasks", "commands:tasks", "Show the recorded runs of tasks.", "runs statistics"),),
        is_optional=False,
    ),
    Capability("agents", "AgentExtension"),
    Capability(
        "workflows",
        "WorkflowExtension",
        ("routes", "definition_routes"),
        (
            CommandPlace(
                "workflows",
                "commands:workflows",
                "Start, show, draw, approve, hold, retry and cancel workflows.",
                "approve cancel depend draw hold info list note properties reject release resume retry show start "
                "stats status steps",
            ),
            CommandPlace(
                "definitions",
                "definition_commands:definitions",
                "Create, list, show and delete workflow definitions.",
                "apply delete list show",
            ),
        ),
        "metrics",
    ),
    Capability(
        "collections",
        "CollectionExtension",
        ("routes",),
        (
            CommandPlace(
                "collections",
                "commands:collections",
                "Manage collections and their items.",
                "add create delete items list remove set",
            ),
        ),
    ),
    Capability(
        "files",
        routes=("routes",),
        commands=(
            CommandPlace("files", "commands:files", "Upload, download, list and delete files.", "delete get list put"),
        ),
    ),
    Capability(
        "schedules",
        "ScheduleExtension",
        ("routes",),
        (
            CommandPlace(
                "cron",
                "commands:cron",
                "List, add, run, enable, disable and remove cron jobs.",
                "add disable enable list remove run show",
            ),
        ),
    ),
    Capability(
        "events",
        "EventExtension",
        ("webhook_routes", "stream_routes", "channel_routes"),
        (
            CommandPlace(
                "channels",
                "commands:channels",
                "Manage the channels for notifications: e-mail and webhooks.",
                "delete email list webhook",
            ),
        ),
        "metrics",
    ),
)
"""All capabilities. Their order is that of their extensions at each extension point."""


def extensions_of(capabilities: Iterable[Capability]) -> tuple[Extension, ...]:
    """Return the extensions of capabilities."""
    return tuple(getattr(one.module("extension"), one.extension)() for one in capabilities if one.extension is not None)


@cache
def all_extensions() -> tuple[Extension, ...]:
    """Return the extensions of all capabilities."""
    return extensions_of(CAPABILITIES)
