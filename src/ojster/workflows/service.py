"""How are workflows and their definitions made, looked at and steered?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.tenant import split
from ojster.jobs.request import Members, read_job, read_members
from ojster.jobs.schemas import Catalogue
from ojster.jobs.service import LONGEST_WAIT, JobCalls, check_args
from ojster.scope import accepted, answer
from ojster.storage.wakeups import WORKFLOWS, workflow_topic
from ojster.workflows import definitions, notes, properties, status, suspensions, views, workflows
from ojster.workflows.definition import START_MEMBERS, Definition, Start, check_params, read_definition, read_start
from ojster.workflows.definitions import Deletion, Named
from ojster.workflows.graph import no_workflow
from ojster.workflows.info import WorkflowInfo, WorkflowPage
from ojster.workflows.notes import NewNote, Note
from ojster.workflows.orchestrator_request import MEMBER as ORCHESTRATOR
from ojster.workflows.orchestrator_request import expand
from ojster.workflows.plan import NewWorkflow, Problem, read_workflow, refusal_of
from ojster.workflows.properties import Properties, PropertyChange
from ojster.workflows.property_values import check_changes
from ojster.workflows.status import WorkflowStatistics, WorkflowStatus
from ojster.workflows.suspensions import WorkflowResumption
from ojster.workflows.views import WorkflowCounts, WorkflowFilter, WorkflowRequest
from ojster.workflows.workflows import Review, StepAddress

LARGE_REQUEST: Final = 100_000
"""From how many bytes on the request for a workflow is read in a thread, so that others need not wait."""


class WorkflowCalls(JobCalls):
    """Calls about workflows, their definitions, and what their tasks share."""

    async def _check_workflow(self, workflow_id: str) -> None:
        if self.tenant is not None:
            await self._workflow(WorkflowRequest(workflow_id, steps=False))

    async def prepare_workflow(self, members: Members) -> NewWorkflow:
        """Return the workflow that a request describes, the enqueue middleware run over the jobs that it names.

        Raises
        ------
        InvalidWorkflow
            The request breaks a rule.
        """
        self._need_all_queues("A workflow")
        settings = self.database.settings
        definition, own = None, members
        if ORCHESTRATOR in members:
            members, name, params = expand(members)
            await asyncio.to_thread(self.check_orchestrator, name, params)
        if "definition" in members:
            members, definition = await self._from_definition(members)
        elif "retry" in members:
            problem = Problem("$.retry", "Only a workflow of a definition is retried as a whole; jobs have 'options'.")
            raise refusal_of([problem])
        read = partial(
            read_workflow,
            members,
            self.database.clock(),
            largest=settings.largest_job,
            tenant=self.tenant,
            otherwise=settings.default_tenant,
        )
        size = sum(map(len, members.values()))
        new = await asyncio.to_thread(read) if size > LARGE_REQUEST else read()
        self._check_tenant(new.tenant)
        if definition is not None:
            new = msgspec.structs.replace(new, **definition.of(new.params, own, new.tenant))
        if self.middleware or await self._resource_rules():
            await self._complete_steps(new)
        if catalogue := await self._schemas():
            _check_steps(catalogue, new)
        for job in new.plan.jobs.values():
            if job.notices:
                await self._check_notices(job)
        return new

    async def _from_definition(self, members: Members) -> tuple[Members, Start]:
        """Return what a workflow says that is started from a definition, and which definition that is."""
        start = read_start(members)
        found = await self.find_definition(Named(start.definition, start.definition_version))
        check_params(found, bytes(members.get("params", b"{}")))
        own = {name: raw for name, raw in members.items() if name not in START_MEMBERS}
        start = msgspec.structs.replace(start, definition=found.name, definition_version=found.version)
        return found.members | own, start

    async def create_definition(self, name: str, members: Members) -> Definition:
        """Create a definition of workflows (seed 002).

        Raises
        ------
        InvalidRequest, InvalidWorkflow
            No workflow can be made of it.
        Duplicate
            There is one of its name.
        """
        return await self.do(definitions.create_definitions, self._read_definition(name, members))

    async def update_definition(self, name: str, members: Members) -> Definition:
        """Give a definition a new version, unless the latest is the same; return the latest.

        Raises
        ------
        InvalidRequest, InvalidWorkflow
            No workflow can be made of it.
        NotFound
            There is none of this name.
        """
        return await self.do(definitions.update_definitions, self._read_definition(name, members))

    def _read_definition(self, name: str, members: Members) -> Definition:
        found = read_definition(name, members)
        settings = self.database.settings
        read_workflow(found.members, self.database.clock(), largest=settings.largest_job, tenant=self.tenant)
        return msgspec.structs.replace(found, name=self.named(found.name))

    async def find_definition(self, which: Named) -> Definition:
        """Return a version of a definition, or its latest.

        Raises
        ------
        NotFound
            There is none.
        """
        which = msgspec.structs.replace(which, name=self.named(which.name))
        return await self.look(definitions.find_definitions, which)

    async def definitions(self) -> list[Definition]:
        """Return the latest versions of all definitions, by name."""
        found = await self.database.read(definitions.list_definitions, None)
        return [one for one in found if self.sees(split(one.name)[0])]

    async def delete_definition(self, what: Deletion) -> None:
        """Delete a definition with all its versions.

        Raises
        ------
        NotFound
            There is none.
        Conflict
            Workflows of it have not finished, and it is not to be forced.
        """
        await self.do(definitions.delete_definitions, msgspec.structs.replace(what, name=self.named(what.name)))

    async def _complete_steps(self, new: NewWorkflow) -> None:
        """Put the jobs of a workflow through what ``prepare`` puts jobs through."""
        for node, spec in zip(new.plan.nodes, new.plan.specs, strict=True):
            if spec.request is not msgspec.UNSET:
                members = await self._completed(read_members(spec.request, "The step"))
                spec.request = msgspec.Raw(msgspec.json.encode(members))
                largest = self.database.settings.largest_job
                job = read_job(members, self.database.clock(), largest=largest, tenant=new.tenant)
                if node.id in new.plan.jobs:
                    new.plan.jobs[node.id] = job

    async def create_workflow(self, members: Members) -> WorkflowInfo:
        """Create a workflow, and start it unless it is scheduled (ojs-workflows.md section 11.1).

        Raises
        ------
        InvalidWorkflow
            The request breaks a rule.
        Duplicate
            There is a workflow with the given id.
        """
        (workflow_id,) = await self.create_workflows([await self.prepare_workflow(members)])
        return await self.show_workflow(workflow_id)

    async def create_workflows(self, new: Sequence[NewWorkflow]) -> list[str]:
        """Create prepared workflows in one go, and return their ids.

        Raises
        ------
        Duplicate
            There is a workflow with the given id.
        """
        return [accepted(one) for one in await self.database.run_many(workflows.create, new)]

    async def show_workflow(
        self, workflow_id: str, *, wait: float = 0.0, version: int | None = None, steps: bool = True
    ) -> WorkflowInfo:
        """Return how a workflow stands.

        Parameters
        ----------
        wait:
            How many seconds to wait for its end; or, with ``version``, until it is another than that.
        steps:
            Whether to show its steps too.

        Raises
        ------
        NotFound
            There is no such workflow.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait, LONGEST_WAIT)
        with self.database.wakeups.waiter(workflow_topic(workflow_id), WORKFLOWS) as waiter:
            while True:
                waiter.arm()
                head = await self._workflow(WorkflowRequest(workflow_id, steps=False))
                left = deadline - loop.time()
                changed = version is not None and head.version != version
                if head.finished or changed or left <= 0 or self.draining:
                    return await self._workflow(WorkflowRequest(workflow_id)) if steps else head
                await waiter.wait(left)

    async def _workflow(self, request: WorkflowRequest) -> WorkflowInfo:
        request = msgspec.structs.replace(request, tenant=self.tenant)
        found = await self.database.read(views.show_workflows, request)
        if found is None:
            raise no_workflow(request.id)
        return found

    async def list_workflows(self, chosen: WorkflowFilter) -> WorkflowPage:
        """Return a page of workflows, newest first, without their steps."""
        definition = None if chosen.definition is None else self.named(chosen.definition)
        chosen = msgspec.structs.replace(chosen, tenant=self.tenant, definition=definition)
        return await self.database.read(views.list_workflows, chosen)

    async def count_workflows(self) -> WorkflowCounts:
        """Return how many workflows are under way, by state, and how those of the last hour have ended."""
        return await self.database.read(views.count_workflows, None)

    async def cancel_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Cancel a workflow; active jobs may finish.

        Raises
        ------
        NotFound, Conflict
            There is no such workflow, or it is in a final state.
        """
        return await self._steered(workflows.cancel_workflows, workflow_id)

    async def retry_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Run again what did not succeed of a workflow.

        Raises
        ------
        NotFound, Conflict
            There is no such workflow, or it has not finished, or it is completed.
        """
        return await self._steered(workflows.retry_workflows, workflow_id)

    async def hold_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Let nothing of a workflow start until it is released.

        Raises
        ------
        NotFound, Conflict
            There is no such workflow, or it has finished.
        """
        return await self._steered(workflows.hold_workflows, workflow_id)

    async def release_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Let a workflow go on that is held.

        Raises
        ------
        NotFound, Conflict
            There is no such workflow, or it is not held.
        """
        return await self._steered(workflows.release_workflows, workflow_id)

    async def resume_workflow(self, item: WorkflowResumption) -> WorkflowInfo:
        """Let the job of a workflow go on that waits (seed 002).

        Raises
        ------
        NotFound, Conflict
            There is no such workflow or step, none waits, or several do and it is not said which is meant.
        """
        return await self._steered(suspensions.resume_workflows, item, item.workflow_id)

    async def properties(self, workflow_id: str) -> Properties:
        """Return what the tasks of a workflow share, by name.

        Raises
        ------
        NotFound
            There is no such workflow.
        """
        await self._check_workflow(workflow_id)
        return accepted(await self.database.read(properties.read_all, workflow_id))

    async def change_properties(self, item: PropertyChange) -> Properties:
        """Change what the tasks of a workflow share, and return all of it.

        Raises
        ------
        NotFound
            There is no such workflow.
        PropertyConflict
            A property has another version than is expected.
        Conflict
            The workflow has finished, there would be too many properties, or the job has lost its lease.
        """
        check_changes(item.changes)
        await self._check_workflow(item.workflow_id)
        if item.worker_id is not None:
            item = msgspec.structs.replace(item, worker_id=self.named(item.worker_id))
        return accepted(await self.database.run(properties.change, item))

    async def add_note(self, item: NewNote) -> Note:
        """Note something of a job, or of a workflow, for people and other jobs to read (seed 002: info).

        Raises
        ------
        NotFound
            There is no such job or workflow.
        PayloadTooLarge, Conflict
            The note is too large, or there are too many.
        """
        if item.job_id is not None:
            await self._check_job(item.job_id)
        else:
            await self._check_workflow(item.workflow_id or "")
        return accepted(await self.database.run(notes.add, item))

    async def workflow_notes(self, workflow_id: str) -> list[Note]:
        """Return what was noted of a workflow and its jobs, the oldest first.

        Raises
        ------
        NotFound
            There is no such workflow.
        """
        await self._check_workflow(workflow_id)
        return accepted(await self.database.read(notes.of_workflows, workflow_id))

    async def workflow_status(self, workflow_id: str) -> WorkflowStatus:
        """Return what became of each step of a workflow so far, by branch and in order, and what is going on.

        Raises
        ------
        NotFound
            There is no such workflow.
        """
        await self._check_workflow(workflow_id)
        return accepted(await self.database.read(status.read_status, workflow_id))

    async def workflow_statistics(self, definition: str | None = None) -> WorkflowStatistics:
        """Return how many workflows there are in each state, of those of this moment, the last hour and day, and all.

        Parameters
        ----------
        definition:
            Only those of this definition.
        """
        name = None if definition is None else self.named(definition)
        return await self.database.read(status.count, (self.tenant, name))

    async def ping(self) -> float:
        """Ask the database for an answer; return how many seconds that took.

        Raises
        ------
        BackendUnavailable
            There is none.
        """
        started = asyncio.get_running_loop().time()
        await self.database.run(answer, None)
        return asyncio.get_running_loop().time() - started

    async def review_step(self, review: Review) -> WorkflowInfo:
        """Approve or reject a step that waits for it, or note what is said of it.

        Raises
        ------
        NotFound, Conflict
            There is no such step, or it does not wait for an approval.
        InvalidRequest
            Nothing is said.
        """
        if self.access is not None:
            review = msgspec.structs.replace(review, author=self.access.who)
        return await self._steered(workflows.review_steps, review, review.workflow_id)

    async def cancel_step(self, address: StepAddress) -> WorkflowInfo:
        """Cancel a step and all that is inside it, active jobs too.

        Raises
        ------
        NotFound, Conflict
            There is no such step, or it has ended.
        """
        return await self._steered(workflows.cancel_steps, address, address.workflow_id)

    async def _steered(self, operation: Any, argument: Any, workflow_id: str | None = None) -> WorkflowInfo:
        await self._check_workflow(workflow_id or argument)
        accepted(await self.database.run(operation, argument))
        return await self._workflow(WorkflowRequest(workflow_id or argument))


def _check_steps(catalogue: Catalogue, new: NewWorkflow) -> None:
    """Check the arguments of the steps that refer to nothing against their schemas.

    Raises
    ------
    InvalidWorkflow
        One violates a schema that is strict.
    """
    problems: list[Problem] = []
    for node, spec in zip(new.plan.nodes, new.plan.specs, strict=True):
        job = new.plan.jobs.get(node.id)
        if job is None or spec.request is msgspec.UNSET:
            continue
        request = read_members(spec.request, "The step")
        try:
            check_args(catalogue, job, request["args"])
        except InvalidRequest as error:
            place = msgspec.json.decode(request["workflow_step"], type=str)
            wrong = "; ".join(error.details.get("validation_errors", ()))
            problems.append(Problem(f"step {place}", f"{error.message} {wrong}".strip()))
    if problems:
        raise refusal_of(problems)
