"""Defaults of job types for the steps that a transaction adds: of reactions, maps, and running workflows."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from ojster.core.json_objects import read_members
from ojster.jobs.job_types import defaults_by_type, with_defaults
from ojster.jobs.new_job import read_job
from ojster.storage.transaction import Transaction
from ojster.workflows.plan.values import Plan


def add_defaults(tx: Transaction, plan: Plan, tenant: str) -> None:
    """Add the defaults of their types to the planned jobs of a tenant's workflow."""
    known = defaults_by_type(tx)
    if not known:
        return
    for node, spec in zip(plan.nodes, plan.specs, strict=True):
        if spec.request is UNSET:
            continue
        members = read_members(spec.request, "The step")
        completed = with_defaults(known, members, tenant)
        if completed is not members:
            spec.request = msgspec.Raw(msgspec.json.encode(completed))
            if node.id in plan.jobs:
                plan.jobs[node.id] = read_job(
                    completed, tx.now, largest=tx.settings.largest_job, tenant=tenant, is_step=True
                )
