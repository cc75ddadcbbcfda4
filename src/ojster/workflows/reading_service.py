"""Calls that read workflows: one with its steps, lists, levels of a graph, counts and shared properties."""

from __future__ import annotations

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.ids import ids_beginning_with, is_job_id
from ojster.core.parsing import refuse_unknown
from ojster.core.property_values import Property
from ojster.jobs.queries import no_workflow
from ojster.jobs.scope import CapabilityService, accepted
from ojster.jobs.service import MAX_WAIT_SECONDS
from ojster.workflows import properties
from ojster.workflows.calls import WorkflowCalls
from ojster.workflows.read import status, views
from ojster.workflows.read.flow_levels import find_asked
from ojster.workflows.read.info import WorkflowInfo, WorkflowPage
from ojster.workflows.read.levels import MOST_LEVEL_STEPS, Level, LevelRequest, show_levels
from ojster.workflows.read.selection import WorkflowFilter, list_workflows
from ojster.workflows.read.status import WorkflowCounts, WorkflowStatistics, WorkflowStatus
from ojster.workflows.read.step_pages import MOST_STEPS, STEP_STATES, StepFilter, StepPage, list_steps
from ojster.workflows.read.views import WorkflowRequest
from ojster.workflows.stored_workflow import ALL_STATES
from ojster.workflows.topics import WORKFLOWS, workflow_end_topic, workflow_topic


class WorkflowReading(CapabilityService, WorkflowCalls):
    """Calls that read workflows."""

    async def check(self, workflow_id: str) -> None:
        """Raise ``NotFound`` if the caller's tenant has no such workflow."""
        if self.scope.tenant is not None:
            await self._workflow(WorkflowRequest(workflow_id, 0))

    async def show(
        self,
        workflow_id: str,
        *,
        wait: float = 0.0,
        version: int | None = None,
        steps: bool = True,
        most_steps: int | None = None,
    ) -> WorkflowInfo:
        """Return a workflow, if wanted after waiting for its end or a change.

        Parameters
        ----------
        workflow_id:
            Its id, or the beginning of one, of at least six characters, with which no other id begins.
        wait:
            Maximum wait for the end of the workflow, in seconds, at most ``MAX_WAIT_SECONDS``.
        version:
            With ``wait``: stop waiting too when the workflow has another version.
        steps:
            Whether to include the steps.
        most_steps:
            Number of steps up to which they are included; ``None``, the default: all.

        Raises
        ------
        NotFound
            The workflow does not exist.
        Conflict
            The ids of several workflows begin so.
        Forbidden
            It is the beginning of an id, and the caller is limited to certain queues.
        """
        if not is_job_id(workflow_id) and ids_beginning_with(workflow_id) is not None:
            self.scope.need_all_queues("The beginning of an id")
            workflow_id = accepted(await self.database.read(views.full_ids, (workflow_id, self.scope.tenant)))
        topic = workflow_end_topic(workflow_id) if version is None else workflow_topic(workflow_id)
        head = await self.database.look_until(
            (topic, WORKFLOWS),
            lambda: self._workflow(WorkflowRequest(workflow_id, 0)),
            lambda head: head.finished or version not in (None, head.version),
            min(wait, MAX_WAIT_SECONDS),
        )
        return await self._workflow(WorkflowRequest(workflow_id, most_steps)) if steps else head

    async def _workflow(self, request: WorkflowRequest) -> WorkflowInfo:
        request = msgspec.structs.replace(request, tenant=self.scope.tenant)
        shown = await self.database.read(views.show_workflows, request)
        if shown is None:
            raise no_workflow(request.id)
        return shown

    async def steps(self, chosen: StepFilter) -> StepPage:
        """Return a page of the steps of a workflow, containers among them, in the order of their creation.

        Raises
        ------
        NotFound
            The workflow does not exist.
        InvalidRequest
            The state is unknown.
        """
        refuse_unknown("state", chosen.state, STEP_STATES)
        limit = min(chosen.limit, MOST_STEPS)
        chosen = msgspec.structs.replace(chosen, tenant=self.scope.tenant, limit=limit)
        page = await self.scope.look(list_steps, chosen)
        if chosen.search and not chosen.after and not chosen.is_held and len(page.steps) < limit:
            rest = msgspec.structs.replace(chosen, limit=limit - len(page.steps))
            page = StepPage([*page.steps, *await self.scope.look(find_asked, rest)], page.next_after)
        return page

    async def level(self, asked: LevelRequest) -> Level:
        """Return a page of the steps in one container of a workflow, with the arrows between them.

        Raises
        ------
        NotFound
            The workflow, or the container in it, does not exist.
        """
        limit = min(asked.limit, MOST_LEVEL_STEPS)
        asked = msgspec.structs.replace(asked, tenant=self.scope.tenant, limit=limit)
        return await self.scope.look(show_levels, asked)

    async def select(self, chosen: WorkflowFilter) -> WorkflowPage:
        """Return a page of workflows, newest first, without their steps.

        Raises
        ------
        InvalidRequest
            The state is unknown, or there is an offset beside ``params`` or ``metadata``.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("A list of workflows")
        for state in chosen.states:
            refuse_unknown("state", state, ALL_STATES)
        if chosen.is_searched and chosen.offset:
            message = "A list by 'params' or 'metadata' has no offset. Go on with its 'next_cursor'."
            raise InvalidRequest(message, field="offset")
        definition = None if chosen.definition is None else self.scope.named(chosen.definition)
        cron_name = None if chosen.cron_name is None else self.scope.named(chosen.cron_name)
        chosen = msgspec.structs.replace(chosen, tenant=self.scope.tenant, definition=definition, cron_name=cron_name)
        return await self.database.survey(list_workflows, chosen)

    async def count(self) -> WorkflowCounts:
        """Return how many workflows are under way, by state, and how those of the last hour have ended."""
        return await self.database.survey(status.count_workflows, None)

    async def status(self, workflow_id: str) -> WorkflowStatus:
        """Return the results of a workflow's ended steps, by branch and in order, and the steps under way.

        Raises
        ------
        NotFound
            The workflow does not exist.
        """
        await self.check(workflow_id)
        return accepted(await self.database.read(status.read_status, workflow_id))

    async def statistics(self, definition: str | None = None) -> WorkflowStatistics:
        """Return the number of workflows by state: current, of the past hour, of the past 24 hours, and all.

        Parameters
        ----------
        definition:
            Count only workflows of this definition.
        """
        name = None if definition is None else self.scope.named(definition)
        return await self.database.survey(status.count, (self.scope.tenant, name))

    async def properties(self, workflow_id: str) -> dict[str, Property]:
        """Return the shared properties of a workflow, by name.

        Raises
        ------
        NotFound
            The workflow does not exist.
        """
        await self.check(workflow_id)
        return accepted(await self.database.read(properties.read_all, workflow_id))
