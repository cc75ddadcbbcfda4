"""Which calls are there, wherever the jobs are? The engine itself answers them, and so does the HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from ojster.agents.attributes import AgentState
from ojster.agents.budgets import Account
from ojster.collections.contents import Collection
from ojster.collections.items import Item, Lookup, NewItem, Where
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.events.channel import Channel
from ojster.files.file import File, NewFile
from ojster.fleet.unrunnable import Unrunnable
from ojster.fleet.worker_rule import WorkerRule
from ojster.fleet.workers import Heartbeat, Pulse, Worker
from ojster.insight.task_values import TaskFilter, TaskRun, TaskStatistics
from ojster.jobs.admission import Pushed
from ojster.jobs.bulk import Action
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.history import Entry
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.queries import JobPage, Page
from ojster.jobs.request import Members
from ojster.jobs.selection import JobFilter
from ojster.jobs.service import Sweep
from ojster.jobs.transitions import Steered
from ojster.queues.queues import Queue, QueueStatistics
from ojster.schedules.cron import Cron
from ojster.tenancy.access import Grant, Token
from ojster.workflows.definition import Definition
from ojster.workflows.definitions import Deletion, Named
from ojster.workflows.info import WorkflowInfo, WorkflowPage
from ojster.workflows.notes import NewNote, Note
from ojster.workflows.properties import Properties, PropertyChange
from ojster.workflows.status import WorkflowStatistics, WorkflowStatus
from ojster.workflows.suspensions import WorkflowResumption
from ojster.workflows.views import WorkflowFilter
from ojster.workflows.workflows import Review, StepAddress


class Client(Protocol):
    """Everything that can be asked of Ojster. What each call does and raises is said in ``the services``."""

    async def enqueue(self, requests: Sequence[Members]) -> list[Pushed]:
        """Push jobs, all or none."""

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        """Hand out jobs; wait for one, at most ``wait`` seconds."""

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> Sequence[Job | OjsterError]:
        """Complete jobs."""

    async def fail(self, items: Sequence[FailureReport]) -> Sequence[Job | OjsterError]:
        """End failed attempts."""

    async def release(self, items: Sequence[Release]) -> Sequence[Job | OjsterError]:
        """Hand jobs back unfinished."""

    async def report(self, item: Progress) -> object:
        """Note how far a job is."""

    async def account(self, item: Account) -> AgentState:
        """Note what an agent's task uses."""

    async def save_checkpoint(self, item: NewCheckpoint) -> object:
        """Save how far a job has got."""

    async def beat(self, heartbeat: Heartbeat) -> Pulse:
        """Report that a worker is alive."""

    async def leave(self, worker_id: str, *, lost: bool = False) -> None:
        """Forget a worker that stopped."""

    async def find(self, job_id: str) -> Job:
        """Return a job."""

    async def wait_for(self, job_id: str, wait: float) -> Job:
        """Return a job when it is finished, or as it is after ``wait`` seconds."""

    async def cancel(self, job_id: str) -> Steered:
        """Cancel an unfinished job."""

    async def adjust_priority(self, job_id: str, by: int) -> Job:
        """Let the priority of an unfinished job differ by so much from the one with which it was pushed."""

    async def activate(self, job_id: str, data: bytes | None = None, failure: Failure | None = None) -> Steered:
        """Let a pending job go on."""

    async def add_note(self, item: NewNote) -> Note:
        """Note something of a job or a workflow."""

    async def job_notes(self, job_id: str) -> list[Note]:
        """Return what was noted of a job, the oldest first."""

    async def list_jobs(self, chosen: JobFilter = ..., page: Page = ...) -> JobPage:
        """Return a page of jobs."""

    async def sweep(self, action: Action, chosen: JobFilter) -> Sweep:
        """Do something to all jobs that match, in small transactions."""

    async def history(self, job_id: str) -> list[Entry]:
        """Return what has happened to a job, the oldest first."""

    async def retry_dead(self, job_id: str) -> Job:
        """Run a discarded job again."""

    async def delete_dead(self, job_id: str) -> object:
        """Delete a discarded job."""

    async def create_workflow(self, members: Members) -> WorkflowInfo:
        """Create a workflow, and start it unless it is scheduled."""

    async def show_workflow(
        self, workflow_id: str, *, wait: float = 0.0, version: int | None = None, steps: bool = True
    ) -> WorkflowInfo:
        """Return how a workflow stands, at its end or, with ``version``, after a change, if that comes in time."""

    async def list_workflows(self, chosen: WorkflowFilter) -> WorkflowPage:
        """Return a page of workflows without their steps."""

    async def cancel_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Cancel a workflow."""

    async def retry_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Run again what did not succeed of a workflow."""

    async def hold_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Let nothing of a workflow start."""

    async def release_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Let a workflow go on that is held."""

    async def resume_workflow(self, item: WorkflowResumption) -> WorkflowInfo:
        """Let the job of a workflow go on that waits."""

    async def properties(self, workflow_id: str) -> Properties:
        """Return what the tasks of a workflow share."""

    async def change_properties(self, item: PropertyChange) -> Properties:
        """Change what the tasks of a workflow share."""

    async def workflow_notes(self, workflow_id: str) -> list[Note]:
        """Return what was noted of a workflow and its jobs."""

    async def workflow_status(self, workflow_id: str) -> WorkflowStatus:
        """Return what became of each step of a workflow so far."""

    async def workflow_statistics(self, definition: str | None = None) -> WorkflowStatistics:
        """Return how many workflows there are in each state."""

    async def create_definition(self, name: str, members: Members) -> Definition:
        """Create a definition of workflows."""

    async def update_definition(self, name: str, members: Members) -> Definition:
        """Give a definition a new version."""

    async def find_definition(self, which: Named) -> Definition:
        """Return a version of a definition, or its latest."""

    async def definitions(self) -> list[Definition]:
        """Return the latest versions of all definitions."""

    async def delete_definition(self, what: Deletion) -> None:
        """Delete a definition."""

    async def review_step(self, review: Review) -> WorkflowInfo:
        """Approve or reject a step."""

    async def cancel_step(self, address: StepAddress) -> WorkflowInfo:
        """Cancel a step and all that is inside it."""

    async def queues(self) -> list[Queue]:
        """Return all queues."""

    async def queue_statistics(self, name: str) -> QueueStatistics:
        """Return how a queue does."""

    async def pause(self, name: str) -> Queue:
        """Stop handing out a queue's jobs."""

    async def resume(self, name: str) -> Queue:
        """Hand out a queue's jobs again."""

    async def workers(self) -> list[Worker]:
        """Return all workers."""

    async def unrunnable(self) -> list[Unrunnable]:
        """Return which jobs no worker can run that is there."""

    async def change_worker_rule(self, worker_id: str, members: Mapping[str, Any]) -> WorkerRule:
        """Say something of a worker that stands over what it says of itself."""

    async def forget_worker_rule(self, worker_id: str) -> None:
        """Say nothing of a worker any more."""

    async def worker_rules(self) -> list[WorkerRule]:
        """Return what is said of workers."""

    async def direct(self, worker_id: str, directive: str) -> Worker:
        """Tell a worker what to be."""

    async def register_cron(self, item: Cron) -> tuple[Cron, bool]:
        """Register or update a cron job."""

    async def switch_cron(self, name: str, enabled: bool) -> Cron:
        """Enable or disable a cron job."""

    async def unregister_cron(self, name: str) -> Cron:
        """Remove a cron job."""

    async def find_cron(self, name: str) -> Cron:
        """Return a cron job."""

    async def crons(self) -> list[Cron]:
        """Return all cron jobs."""

    async def put_channel(self, channel: Channel) -> bool:
        """Make or change a channel; return whether it is new."""

    async def channels(self) -> list[Channel]:
        """Return the channels."""

    async def delete_channel(self, name: str) -> None:
        """Delete a channel."""

    async def task_runs(self, chosen: TaskFilter = ...) -> list[TaskRun]:
        """Return how jobs have ended that were recorded, the latest first."""

    async def task_statistics(self, chosen: TaskFilter = ...) -> list[TaskStatistics]:
        """Return how often tasks have succeeded and failed, and how long they took."""

    async def create_file(self, new: NewFile) -> File:
        """Begin to upload a file; one that is there already is complete."""

    async def write_file(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Go on with an upload."""

    async def find_file(self, file_id: str, job_id: str | None = None) -> File:
        """Return a file, or as much of it as has come; with a job, only one of its workspace."""

    async def list_files(self, limit: int = 50, before: str | None = None) -> list[File]:
        """Return files, the latest first."""

    async def read_file(self, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes of a file from ``start`` on."""

    async def delete_file(self, file_id: str) -> None:
        """Delete a file to which nobody refers."""

    async def create_collection(self, name: str, description: str | None = None) -> Collection:
        """Make a named collection."""

    async def collections(self) -> list[Collection]:
        """Return the named collections."""

    async def delete_collection(self, name: str, *, force: bool = False) -> None:
        """Delete a named collection."""

    async def add_item(self, where: Where, item: NewItem) -> Item:
        """Put something into a collection."""

    async def remove_item(self, where: Where, name: str) -> Item:
        """Remove something from a collection."""

    async def items(self, where: Where, lookup: Lookup | None = None, *, history: bool = False) -> list[Item]:
        """Return what is in a collection and matches, or was."""

    async def prune(self, *, dry_run: bool = False) -> dict[str, int]:
        """Forget now what was kept long enough, or count it; return how many ``jobs`` and ``workflows``."""

    async def create_token(
        self, name: str, grants: Sequence[Grant], queues: Sequence[str] = (), expires_at: int | None = None
    ) -> tuple[Token, str]:
        """Make a token; return it, and what is shown of it only now."""

    async def rotate_token(self, token_id: str, grace: int) -> tuple[Token, str]:
        """Give a token another secret; the present one is good for ``grace`` microseconds yet."""

    async def revoke_token(self, token_id: str) -> Token:
        """Let a token be worth nothing."""

    async def tokens(self) -> list[Token]:
        """Return all tokens."""

    async def close(self) -> None:
        """Disconnect."""
