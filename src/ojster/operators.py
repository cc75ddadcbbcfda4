"""Values that operators pass to the calls of ``App.client`` and ``App.plain_client``, and get from them."""

from __future__ import annotations

from ojster.client.plain_client import PlainClient
from ojster.core.rate_limit import Limits, Rate
from ojster.jobs.bulk import Action
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.queues.wire import QueueConfigBody
from ojster.schedules.cron import Cron
from ojster.workflows.read.selection import WorkflowConditions, WorkflowFilter

__all__ = [
    "Action",
    "Cron",
    "JobFilter",
    "Limits",
    "Page",
    "PlainClient",
    "QueueConfigBody",
    "Rate",
    "WorkflowConditions",
    "WorkflowFilter",
]
