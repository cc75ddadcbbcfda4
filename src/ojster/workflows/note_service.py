"""Calls about notes of jobs and workflows."""

from __future__ import annotations

from ojster.jobs.messages import Holder
from ojster.jobs.scope import CapabilityService, Scope
from ojster.workflows import notes
from ojster.workflows.calls import NoteCalls
from ojster.workflows.notes import NewNote, Note
from ojster.workflows.read.notes import of_jobs, of_workflows
from ojster.workflows.service import WorkflowService


class NoteService(CapabilityService, NoteCalls):
    """Calls about notes, for people and other jobs to read."""

    def __init__(self, scope: Scope, workflows: WorkflowService) -> None:
        super().__init__(scope)
        self._workflows = workflows

    async def add_to_job(
        self, job_id: str, note: bytes, worker_id: str | None = None, attempt: int | None = None
    ) -> Note:
        """Add a note to a job; with ``worker_id`` or ``attempt``, only if that worker holds its lease, in that attempt.

        Raises
        ------
        NotFound
            The job does not exist.
        PayloadTooLarge, Conflict
            The note is too large, there are too many, or the lease is lost.
        """
        await self.scope.check_job(job_id)
        holder = self.scope.holder(Holder(job_id, worker_id, attempt))
        return await self.scope.do(notes.add, NewNote(note, job_id=job_id, holder=holder))

    async def of_job(self, job_id: str) -> list[Note]:
        """Return the notes on a job, oldest first.

        Raises
        ------
        NotFound
            The job does not exist.
        """
        await self.scope.check_job(job_id)
        return await self.scope.look(of_jobs, job_id)

    async def add_to_workflow(self, workflow_id: str, note: bytes) -> Note:
        """Add a note to a workflow. Raises as ``add_to_job`` does."""
        self.scope.need_all_queues("A workflow")
        await self._workflows.check(workflow_id)
        return await self.scope.do(notes.add, NewNote(note, workflow_id=workflow_id))

    async def of_workflow(self, workflow_id: str) -> list[Note]:
        """Return the notes on a workflow and its jobs, oldest first.

        Raises
        ------
        NotFound
            The workflow does not exist.
        """
        await self._workflows.check(workflow_id)
        return await self.scope.look(of_workflows, workflow_id)
