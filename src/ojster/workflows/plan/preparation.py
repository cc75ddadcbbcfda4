"""The jobs of a planned workflow, completed and checked as plain jobs are."""

from __future__ import annotations

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import Members, read_members
from ojster.core.turns import in_turns
from ojster.jobs.new_job import read_job
from ojster.jobs.preparation import Preparation
from ojster.jobs.schemas import Catalogue, check_args, schema_uri
from ojster.storage.database import Database
from ojster.workflows.plan.members import Problem, refusal_of
from ojster.workflows.plan.values import NewWorkflow


async def complete_steps(database: Database, new: NewWorkflow, preparation: Preparation) -> None:
    """Run the middleware and the queue rules on the jobs of a workflow, as ``Preparation.job`` does for a job."""
    async for node, spec in in_turns(zip(new.plan.nodes, new.plan.specs, strict=True)):
        if spec.request is not msgspec.UNSET:
            step = read_members(spec.request, "The step")
            members = await preparation.complete(dict(step))
            if members == step:
                continue
            spec.request = msgspec.Raw(msgspec.json.encode(members))
            largest = database.settings.largest_job
            job = read_job(members, database.clock(), largest=largest, tenant=new.tenant, is_step=True)
            if node.id in new.plan.jobs:
                new.plan.jobs[node.id] = job


async def check_steps(catalogue: Catalogue, new: NewWorkflow) -> None:
    """Check the arguments of steps without references against their schemas; note violations of those that only warn.

    Raises
    ------
    InvalidWorkflow
        The arguments of a step violate a strict schema.
    """
    problems: list[Problem] = []
    async for node, spec in in_turns(zip(new.plan.nodes, new.plan.specs, strict=True)):
        job = new.plan.jobs.get(node.id)
        if job is None or spec.request is msgspec.UNSET:
            continue
        request = read_members(spec.request, "The step")
        try:
            violations = check_args(catalogue, job, request["args"], schema_uri(request))
            new.notes += [f"step {_place(request)}: {violation}" for violation in violations]
        except InvalidRequest as error:
            wrong = "; ".join(error.details.get("validation_errors", ()))
            problems.append(Problem(f"step {_place(request)}", f"{error.message} {wrong}".strip()))
    if problems:
        raise refusal_of(problems)


def _place(request: Members) -> str:
    return msgspec.json.decode(request["workflow_step"], type=str)
