"""Defaults for the steps that a transaction adds: of cron jobs, reactions, maps, and running workflows."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from ojster.core.json_objects import read_members
from ojster.jobs.job_types import defaults_by_type
from ojster.jobs.new_job import read_job
from ojster.queues.rules import completed, resource_rules
from ojster.storage.transaction import Transaction
from ojster.workflows.plan.values import Plan


def add_defaults(tx: Transaction, plan: Plan, tenant: str) -> None:
    """Add the defaults of their types and of their queues to the planned jobs of a tenant's workflow.

    Raises
    ------
    ResourcesRefused
        A job requires more than its queue allows.
    """
    if not defaults_by_type(tx) and not resource_rules(tx):
        return
    for node, spec in zip(plan.nodes, plan.specs, strict=True):
        if spec.request is UNSET:
            continue
        members = read_members(spec.request, "The step")
        complete = completed(tx, members, tenant)
        if complete is not members:
            spec.request = msgspec.Raw(msgspec.json.encode(complete))
            if node.id in plan.jobs:
                plan.jobs[node.id] = read_job(
                    complete, tx.now, largest=tx.settings.largest_job, tenant=tenant, is_step=True
                )
