"""The jobs of a plan: completed with defaults, and checked as plain jobs are."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from ojster.core.access import Access
from ojster.core.errors import InvalidRequest
from ojster.core.job_flags import REACTIONS
from ojster.core.turns import in_turns
from ojster.jobs.contents import objects_in, replaces_others
from ojster.jobs.job_types import defaults_by_type
from ojster.jobs.new_job import read_job
from ojster.jobs.options_wire import queue_of
from ojster.jobs.preparation import Preparation
from ojster.jobs.schemas import Catalogue, check_args, schema_uri
from ojster.queues.rules import completed, resource_rules
from ojster.storage.database import Database
from ojster.storage.transaction import Transaction
from ojster.workflows.node import Kind
from ojster.workflows.plan.members import Problem, refusal_of
from ojster.workflows.plan.values import NewWorkflow, Plan

# Of a request


async def complete_steps(database: Database, new: NewWorkflow, preparation: Preparation) -> None:
    """Run the middleware and the queue rules on the jobs of a workflow, as ``Preparation.job`` does for a job."""
    async for node, spec, members in in_turns(new.plan.requests()):
        complete = await preparation.complete(dict(members))
        if complete != members:
            now, largest = database.clock(), database.settings.largest_job
            if node.id not in new.plan.jobs:  # its arguments are not known yet: the rest is checked now
                read_job(dict(complete), now, largest=largest, tenant=new.tenant, is_step=True)
            new.plan.replace(node, spec, complete, now, largest, new.tenant)


async def check_steps(catalogue: Catalogue, new: NewWorkflow) -> None:
    """Check the arguments of steps without references against their schemas; note violations of those that only warn.

    Raises
    ------
    InvalidWorkflow
        The arguments of a step violate a strict schema.
    """
    problems: list[Problem] = []
    async for node, _, request in in_turns(new.plan.requests()):
        if (job := new.plan.jobs.get(node.id)) is None:
            continue
        step = f"step {msgspec.json.decode(request['workflow_step'], type=str)}"
        try:
            violations = check_args(catalogue, job, request["args"], schema_uri(request))
            new.notes += [f"{step}: {violation}" for violation in violations]
        except InvalidRequest as error:
            wrong = "; ".join(error.details.get("validation_errors", ()))
            problems.append(Problem(step, f"{error.message} {wrong}".strip()))
    if problems:
        raise refusal_of(problems)


# Of steps that a transaction adds: of cron jobs, reactions, maps, and running workflows


def add_defaults(tx: Transaction, plan: Plan, tenant: str) -> None:
    """Add the defaults of their types and of their queues to the planned jobs of a tenant's workflow.

    Raises
    ------
    ResourcesRefused
        A job requires more than its queue allows.
    """
    if not defaults_by_type(tx) and not resource_rules(tx):
        return
    for node, spec, members in plan.requests():
        complete = completed(tx, members, tenant)
        if complete is not members:
            plan.replace(node, spec, complete, tx.now, tx.settings.largest_job, tenant)


def check_kinds(plan: Plan, access: Access | None) -> None:
    """Check that a plan has nothing whose jobs are not known yet, before the defaults of job types are added.

    Containers, such as maps and definitions, and reactions make jobs of their own later, and a unique key may replace
    jobs of any queue. The defaults of a job type are an owner's, and may have both.

    Raises
    ------
    Forbidden
        The caller is limited to some queues, and these jobs could be in any.
    """
    if access is None or not access.queues:
        return
    if any(node.kind != Kind.JOB for node in plan.nodes):
        access.need_all_queues("A step that is not a single job")
    for _, spec, members in plan.requests():
        if REACTIONS in members:
            access.need_all_queues("A reaction")
        if spec.request is not UNSET and replaces_others(objects_in(spec.request)):
            access.need_all_queues("A step that replaces jobs with its unique key")


def check_queues(plan: Plan, access: Access | None) -> None:
    """Check that a caller may enqueue the jobs of a plan, to which the defaults of their types were added.

    Raises
    ------
    Forbidden
        The caller is limited to other queues.
    """
    if access is not None and access.queues:
        for _, _, members in plan.requests():
            access.check_queue(queue_of(members))
