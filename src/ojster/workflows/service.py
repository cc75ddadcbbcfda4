"""Calls about workflows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from ojster.core.errors import OjsterError, PayloadTooLarge
from ojster.core.json_objects import Members, without_nulls
from ojster.core.property_values import Property, check_changes
from ojster.core.refusals import size_details
from ojster.core.tenant import NOBODY
from ojster.core.turns import LARGE_BYTES, in_turns, read_aside
from ojster.jobs.failure import Failure
from ojster.jobs.preparation import check_references
from ojster.jobs.scope import Scope, accepted
from ojster.jobs.service import JobService
from ojster.jobs.transitions import ChangedJob
from ojster.storage.call import TransactionFunction
from ojster.storage.inbox import LARGE
from ojster.workflows import properties
from ojster.workflows.definition import OF_DEFINITIONS, Start, from_definition, read_start
from ojster.workflows.definition_service import DefinitionService
from ojster.workflows.definitions import Named
from ojster.workflows.orchestrator_request import ORCHESTRATOR_MEMBER as ORCHESTRATOR
from ojster.workflows.orchestrator_request import expand
from ojster.workflows.plan.members import refusal_of
from ojster.workflows.plan.models import recent_workflows
from ojster.workflows.plan.nested_definitions import Nested, complete_nested, has_definitions
from ojster.workflows.plan.planned_jobs import check_steps, complete_steps
from ojster.workflows.plan.request import read_workflow, without_definition
from ojster.workflows.plan.values import NewWorkflow
from ojster.workflows.properties import PropertyChange
from ojster.workflows.read import views
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.views import WorkflowRequest
from ojster.workflows.reading_service import WorkflowReading
from ojster.workflows.run import cancellation, control, creation, fork, retry, suspensions
from ojster.workflows.run.control import Review
from ojster.workflows.run.dependencies import NewDependencies, add_dependencies
from ojster.workflows.run.early_answers import Resumption
from ojster.workflows.run.fork import Fork
from ojster.workflows.run.fork_preview import ForkPoint, ForkPreview, preview_forks
from ojster.workflows.run.steps import StepAddress
from ojster.workflows.run.suspensions import WorkflowResumption

log = logging.getLogger(__name__)

SMALL_WEIGHT: Final = 50
"""Weight of workflows up to which their creation shares a transaction with other calls."""

A = TypeVar("A")


class WorkflowService(WorkflowReading):
    """Calls about workflows and their shared properties."""

    def __init__(
        self,
        scope: Scope,
        jobs: JobService,
        definitions: DefinitionService,
        check_orchestrator: Callable[[str, Any], None],
    ) -> None:
        super().__init__(scope)
        self._jobs = jobs
        self._definitions = definitions
        self._check_orchestrator = check_orchestrator

    async def _check_author(self, workflow_id: str) -> None:
        """Raise ``Forbidden`` if the caller may not stop a workflow or its steps."""
        if self.scope.cancels_only_own:
            stored = await self._workflow(WorkflowRequest(workflow_id, 0))
            accepted(self.scope.refuse_foreign(f"The workflow {workflow_id}", stored.created_by))

    async def prepare(self, members: Members) -> NewWorkflow:
        """Run the enqueue middleware on the jobs of a request; return the workflow that it describes.

        Raises
        ------
        InvalidWorkflow
            The request breaks a rule.
        """
        self.scope.need_all_queues("A workflow")
        settings = self.database.settings
        members = without_nulls(members)
        self.scope.check_contents(members)
        definition, own = None, members
        if ORCHESTRATOR in members:
            members, name, params = expand(members)
            await asyncio.to_thread(self._check_orchestrator, name, params)
        if "definition" in members:
            members, definition = await self._from_definition(members)
        elif of_definition := sorted(OF_DEFINITIONS & members.keys()):
            raise refusal_of([without_definition(of_definition[0])])
        if has_definitions(members):
            nested = Nested(members, self.scope.tenant or NOBODY)
            members = accepted(await self.database.read(complete_nested, nested))
        preparation = await self._jobs.preparation()
        size = sum(map(len, members.values()))
        read_one: Callable[..., NewWorkflow] = read_workflow
        if size < LARGE_BYTES and not (preparation.changes_requests or preparation.catalogue.by_type):
            read_one = recent_workflows.of(self.database.memory).read
        read = partial(
            read_one,
            members,
            self.database.clock(),
            largest=settings.largest_job,
            tenant=self.scope.tenant,
            otherwise=settings.default_tenant,
        )
        new = await read_aside(size, read)
        self.scope.check_tenant(new.tenant)
        new.created_by = self.scope.who
        if definition is not None:
            new = msgspec.structs.replace(new, **definition.of(new.params, own, new.tenant))
        if preparation.changes_requests:
            await complete_steps(self.database, new, preparation)
        if preparation.catalogue.by_type:
            await check_steps(preparation.catalogue, new)
        async for job in in_turns(new.plan.jobs.values()):
            if job.flags:
                await check_references(self.scope, job)
        return new

    async def _from_definition(self, members: Members) -> tuple[Members, Start]:
        """Return the members of a workflow that starts from a definition, and the start with its resolved version."""
        start = read_start(members)
        definition = await self._definitions.find(Named(start.definition, start.definition_version))
        whole, start = from_definition(definition, start, members)
        return whole, msgspec.structs.replace(start, definition=self.scope.named(start.definition))

    async def create(self, members: Members) -> WorkflowInfo:
        """Create a workflow, and start it unless it is scheduled.

        Raises
        ------
        InvalidWorkflow
            The request breaks a rule.
        Duplicate
            A workflow with the given id exists.

        Spec: ojs-workflows 11.1
        """
        new = await self.prepare(members)
        (workflow_id,) = await self.create_many([new])
        for warning in new.warnings:
            log.warning("the workflow %s: %s", workflow_id, warning)
        return await self.show(workflow_id, most_steps=views.MOST_SHOWN_STEPS)

    async def create_many(self, new: Sequence[NewWorkflow]) -> list[str]:
        """Create prepared workflows, small ones together; return their ids.

        Raises
        ------
        Duplicate
            A workflow with the given id exists.
        """
        if any(len(creation_request.plan.nodes) > creation.NODES_CREATED_AT_ONCE for creation_request in new):
            return [await self._create_in_steps(creation_request) for creation_request in new]
        is_small = sum(creation_request.weight for creation_request in new) <= SMALL_WEIGHT
        weight = len(new) if is_small else LARGE
        return [accepted(created) for created in await self.database.run_many(creation.create, new, weight)]

    async def _create_in_steps(self, new: NewWorkflow) -> str:
        """Create a large workflow in several transactions, and return its id."""
        seq = accepted(await self.database.run(creation.begin, new))
        for part in creation.parts_of(new.plan):
            accepted(await self.database.run(creation.plant, (seq, part), LARGE))
        return accepted(await self.database.run(creation.finish, (seq, new), LARGE))

    async def cancel(self, workflow_id: str, *, stop_active: bool = False) -> WorkflowInfo:
        """Cancel a workflow; active jobs may finish, or are cancelled, too, with ``stop_active``.

        Raises
        ------
        NotFound, Conflict
            There is no such workflow, or it is in a final state.
        """
        await self._check_author(workflow_id)
        order = cancellation.WorkflowCancellation(workflow_id, stop_active, self.scope.who)
        return await self._steered(workflow_id, cancellation.cancel_workflows, order)

    async def terminate(self, workflow_id: str) -> WorkflowInfo:
        """End a workflow without letting it clean up: active jobs are stopped, and nothing is compensated.

        Raises
        ------
        NotFound, Conflict
            There is no such workflow, or nothing of it runs.
        Forbidden
            The caller may stop only its own workflows.
        """
        await self._check_author(workflow_id)
        order = cancellation.WorkflowCancellation(workflow_id, by=self.scope.who)
        return await self._steered(workflow_id, cancellation.terminate_workflows, order)

    async def retry(self, workflow_id: str) -> WorkflowInfo:
        """Run the steps of a workflow again that did not succeed.

        Raises
        ------
        NotFound, Conflict
            The workflow does not exist, or has not finished, or is completed.
        """
        return await self._steered(workflow_id, retry.retry_workflows, workflow_id)

    async def fork(self, item: Fork) -> WorkflowInfo:
        """Run a workflow again from a step on, as a new workflow; return that.

        Raises
        ------
        NotFound, Conflict
            The workflow or the step does not exist, or cannot run again.
        InvalidRequest, Duplicate, TenantLimitExceeded
            The step has no arguments or no result; its id or target is in use; or the tenant has too many jobs.
        """
        self.scope.need_all_queues("A workflow")
        self._check_size(item.args)
        self._check_size(item.result)
        item = msgspec.structs.replace(self.scope.of_tenant(item), by=self.scope.who)
        return await self._workflow(
            WorkflowRequest(accepted(await self.database.run(fork.fork_workflows, item, LARGE)))
        )

    async def preview_fork(self, point: ForkPoint) -> ForkPreview:
        """Return what a fork from a step would run again and keep; nothing is changed.

        Raises
        ------
        NotFound, Conflict
            The workflow or the step does not exist, or cannot run again.
        """
        return accepted(await self.database.read(preview_forks, self.scope.of_tenant(point)))

    async def hold(self, workflow_id: str) -> WorkflowInfo:
        """Hold a workflow: nothing of it starts until it is released.

        Raises
        ------
        NotFound, Conflict
            The workflow does not exist, or has finished.
        Forbidden
            The caller may hold only its own workflows.
        """
        await self._check_author(workflow_id)
        return await self._steered(workflow_id, control.hold_workflows, workflow_id)

    async def release(self, workflow_id: str) -> WorkflowInfo:
        """Release a held workflow.

        Raises
        ------
        NotFound, Conflict
            The workflow does not exist, or is not held.
        """
        return await self._steered(workflow_id, control.release_workflows, workflow_id)

    async def resume(self, item: WorkflowResumption) -> WorkflowInfo:
        """Resume the suspended job of a workflow.

        Raises
        ------
        NotFound, Conflict
            The workflow or step does not exist, no job is suspended, or several are and the step is not named.
        Forbidden
            It is resumed with an error, and the caller may cancel only its own workflows.
        PayloadTooLarge
            The data are larger than the largest job.
        """
        self._check_size(item.data)
        if item.failure is not None:
            await self._check_author(item.workflow_id)
        item = msgspec.structs.replace(item, by=self.scope.who)
        return await self._steered(item.workflow_id, suspensions.resume_workflows, item)

    async def change_properties(self, item: PropertyChange) -> dict[str, Property]:
        """Change shared properties of a workflow; return all of them.

        Raises
        ------
        NotFound
            The workflow does not exist.
        PropertyConflict
            A property does not have the expected version.
        Conflict
            The workflow has finished, would have too many properties, or the job has lost its lease.
        Forbidden
            The caller is limited to certain queues, and names no job of these.
        """
        check_changes(item.changes)
        if item.job_id is None:
            self.scope.need_all_queues("A workflow")
        else:
            await self.scope.check_job(item.job_id)
        await self.check(item.workflow_id)
        return await self.scope.do(properties.change, self.scope.with_worker(item))

    async def review_step(self, review: Review) -> WorkflowInfo:
        """Approve or reject a step that waits for approval, or add notes to it.

        Raises
        ------
        NotFound, Conflict
            The step does not exist, or does not wait for an approval.
        InvalidRequest
            The review is empty.
        """
        if self.scope.access is not None:
            review = msgspec.structs.replace(review, author=self.scope.access.who)
        return await self._steered(review.workflow_id, control.review_steps, review)

    async def cancel_step(self, address: StepAddress) -> WorkflowInfo:
        """Cancel a step with everything inside it, active jobs included.

        Raises
        ------
        NotFound, Conflict
            The step does not exist, or has ended.
        Forbidden
            The caller may cancel only its own workflows.
        """
        await self._check_author(address.workflow_id)
        return await self._steered(address.workflow_id, cancellation.cancel_steps, address)

    async def add_dependencies(self, item: NewDependencies) -> WorkflowInfo:
        """Let a step of a graph that has not started wait for others of the graph, too.

        Raises
        ------
        NotFound, Conflict
            The workflow, the step or one of the others does not exist, or the step has started.
        InvalidRequest
            The step is in no graph, or in one with compensations, or the steps would wait for each other.
        Forbidden
            The caller may hold only its own workflows.
        """
        await self._check_author(item.workflow_id)
        return await self._steered(item.workflow_id, add_dependencies, item)

    async def retry_step(self, address: StepAddress) -> WorkflowInfo:
        """Run a failed or cancelled step again, with everything after it, while the other steps go on.

        Raises
        ------
        NotFound, Conflict
            The step does not exist, or has not ended, or has succeeded, or what follows its failure has begun.
        """
        return await self._steered(address.workflow_id, retry.retry_steps, address)

    def _check_size(self, data: bytes | None) -> None:
        if (size := len(data or b"")) > (largest := self.database.settings.largest_job):
            message = f"The result has {size} bytes (limit {largest}). Send less."
            raise PayloadTooLarge(message, **size_details(largest, size, "result"))

    async def _steered(
        self, id: str, operation: TransactionFunction[A, str | OjsterError], argument: A
    ) -> WorkflowInfo:
        self.scope.need_all_queues("A workflow")
        await self.check(id)
        accepted(await self.database.run(operation, argument))
        return await self._workflow(WorkflowRequest(id))

    async def activate(self, job_id: str, data: bytes | None = None, failure: Failure | None = None) -> ChangedJob:
        """Make a pending job available, or resume it if it is suspended.

        Raises
        ------
        NotFound, Conflict
            The job does not exist; or it is not pending, and cannot keep the answer: it has one, or has ended.
        Forbidden
            It is resumed with an error, and the caller may cancel only its own jobs.
        """
        self._check_size(data)
        await self.scope.check_job(job_id)
        if failure is not None:
            accepted((await self.scope.refuse_cancellation((job_id,))).get(job_id))
        return await self.scope.do(suspensions.activate, Resumption(job_id, data, failure, self.scope.who))
