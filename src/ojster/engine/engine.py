"""What can be asked of Ojster? Every operation, as one awaitable call on top of a database.

The HTTP server, the in-process client and the worker all use this. It adds to the transaction functions what does not
belong into a transaction: middleware, waiting, refusals as exceptions, and what a tenant may see (``Engine.of``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from ojster.database.database import Database
from ojster.database.dispatcher import Operation, Patience
from ojster.database.transaction import Transaction
from ojster.database.waiting import choosy
from ojster.database.wakeups import DUE, FINISHED, WORKFLOWS, job_topic, workflow_topic
from ojster.engine import (
    agents,
    checkpoints,
    collections,
    control,
    cron,
    definitions,
    event_log,
    files,
    holds,
    idempotency,
    inspect,
    notes,
    notifications,
    outcome,
    properties,
    queue_config,
    queues,
    retention,
    schemas,
    task_history,
    tenants,
    tokens,
    unrunnable,
    worker_rules,
    workers,
    workflow_status,
    workflow_views,
    workflows,
)
from ojster.engine import bulk as bulks
from ojster.engine.admission import Pushed
from ojster.engine.agents import Account
from ojster.engine.archive import Archive, Hashes
from ojster.engine.bulk import ALLOWED, USUAL, Action, Bulk, Dealt, Some, Summary
from ojster.engine.checkpoints import Checkpoint, NewCheckpoint
from ojster.engine.claim import Nobody, claim
from ojster.engine.collections import Collection, Place
from ojster.engine.configuration import Rules
from ojster.engine.definitions import Deletion, Named
from ojster.engine.events import EventFilter, EventPage
from ojster.engine.graph import no_workflow
from ojster.engine.history import Entry, Lineage, purge_history, read_history, trace_lineage
from ojster.engine.holds import Resumption, WorkflowResumption
from ojster.engine.idempotency import Key, Reply
from ojster.engine.inspect import JobPage, Page
from ojster.engine.notes import NewNote, Note
from ojster.engine.outcome import Acknowledgement, FailureReport, Progress, Release
from ojster.engine.properties import Properties, PropertyChange
from ojster.engine.push import push
from ojster.engine.queues import Queue, QueueStatistics
from ojster.engine.schemas import Catalogue, Mode
from ojster.engine.selection import JobFilter, Step, walk
from ojster.engine.transitions import Steered
from ojster.engine.unrunnable import Unrunnable
from ojster.engine.upkeep import upkeep
from ojster.engine.way import Claim
from ojster.engine.workers import Heartbeat, Leave, Pulse, Worker
from ojster.engine.workflow_status import WorkflowStatistics, WorkflowStatus
from ojster.engine.workflow_views import WorkflowCounts, WorkflowFilter, WorkflowRequest
from ojster.engine.workflows import Review, StepAddress
from ojster.files.store import FileStore
from ojster.model.access import Access, Grant, Token, hash_secret, join_token, new_id, new_secret
from ojster.model.agents import AgentState
from ojster.model.channel import Channel, check_channel
from ojster.model.collection import (
    Item,
    Lookup,
    NewItem,
    Where,
    check_collection_name,
)
from ojster.model.definition import START_MEMBERS, Definition, Start, check_params, read_definition, read_start
from ojster.model.envelope import Job
from ojster.model.errors import (
    BackendUnavailable,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    OjsterError,
    SchemaViolation,
    TenantMissing,
    Unsupported,
)
from ojster.model.failure import Failure
from ojster.model.file import JSON, LARGEST_INLINE_RESULT, File, NewFile
from ojster.model.job import Members, NewJob, check_queue_name, queue_of, read_job, read_members
from ojster.model.orchestrator import MEMBER as ORCHESTRATOR
from ojster.model.orchestrator import expand
from ojster.model.properties import check_changes
from ojster.model.reactions import ANY_EVENT
from ojster.model.states import FINISHED as FINISHED_STATES
from ojster.model.task_history import MOST_SHOWN as MOST_SHOWN_TASKS
from ojster.model.task_history import TaskFilter, TaskRun, TaskStatistics
from ojster.model.tenant import DEFAULT_TENANT, NOBODY, called, qualify, split
from ojster.model.worker_rule import WorkerRule
from ojster.model.workflow import NewWorkflow, Problem, read_workflow, refusal_of
from ojster.model.workflow_info import WorkflowInfo, WorkflowPage

log = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")
W = TypeVar("W", Acknowledgement, FailureReport, Release, Progress, NewCheckpoint, Account)

JobRequest = dict[str, Any]
Enqueue = Callable[[JobRequest], Awaitable[JobRequest]]
EnqueueMiddleware = Callable[[JobRequest, Enqueue], Awaitable[JobRequest]]
"""Wraps every push (ojs-middleware.md): gets the enqueue request and ``next``; may change it, or raise to refuse it."""

Directive = Callable[[Heartbeat, Pulse], Awaitable[str | None]]
"""Has a say in what a worker is told with its heartbeat: ``running``, ``quiet``, ``terminate``, or nothing."""

LONGEST_WAIT: Final = 60.0
"""How long a call may wait for something to happen, in seconds."""

LONGEST_SLEEP: Final = 30.0
"""After how many seconds the chores look again, although nothing is known to be due."""

LONGEST_PAUSE: Final = 2.0
"""How long to wait at most before a database that is away is tried again, in seconds."""

LENIENCY: Final = 5.0
"""For how long, after the database was away, no lease ends, in seconds: workers report first what they have done."""

LARGE_REQUEST: Final = 100_000
"""From how many bytes on the request for a workflow is read in a thread, so that others need not wait."""

WALK_INTERVAL: Final = 600.0
"""How often all jobs are walked through for those of queues that have retention periods of their own, in seconds."""

RETENTION_INTERVAL: Final = 60.0
"""How often finished jobs are looked through for those whose retention is over, in seconds."""

IDLE_PAUSE: Final = 1.0
"""How long a worker waits in vain that is to be given nothing, in seconds: it would ask again at once."""

LOOK_AGAIN: Final = 0.1
"""How often it is looked, in seconds, whether somebody else has answered a request."""

AT_ONCE: Final = 200
"""To how many jobs something is done in one transaction, if a filter has chosen them: a few milliseconds' worth."""

RESERVED: Final = "ojster."
"""How the names of queues begin that Ojster uses itself."""

MOST_SHOWN: Final = 1_000
"""Of how many jobs that a filter has chosen it is told what became of each."""


class Sweep:
    """What has become of the jobs that a filter has chosen.

    Attributes
    ----------
    matched, succeeded:
        How many there were, and to how many it was done.
    items:
        The first ``MOST_SHOWN`` of them, each with the reason why it was not done, if it was not.
    """

    def __init__(self, action: Action) -> None:
        self.action = action
        self.matched = 0
        self.succeeded = 0
        self.items: list[tuple[str, OjsterError | None]] = []

    @property
    def failed(self) -> int:
        """To how many it could not be done."""
        return self.matched - self.succeeded

    def add(self, dealt: Dealt) -> None:
        """Note what became of some."""
        self.matched += len(dealt.ids)
        self.succeeded += sum(refusal is None for refusal in dealt.refusals)
        room = MOST_SHOWN - len(self.items)
        self.items += list(zip(dealt.ids[:room], dealt.refusals[:room], strict=True))


class _Life:
    """What all views of an engine have in common."""

    def __init__(self) -> None:
        self.draining = False
        self.catalogue: tuple[int, Catalogue | None] = (0, None)
        self.followed_at = 0
        self.hashes = Hashes()


class Engine:
    """Every operation on jobs, queues, workers and cron jobs of one database.

    Parameters
    ----------
    database:
        An open database; ``close`` closes it.
    middleware:
        Wraps every push, the first outermost.
    directives:
        Asked in turn what a worker is to be told; the first that has an answer wins.
    store:
        Where the bytes of files are kept; ``None``: there are no files.

    Attributes
    ----------
    tenant:
        Whose view it is: it sees and makes only what is theirs; ``None``: it sees all, and what it makes is nobody's
        unless it says whose it is.
    access:
        What the caller may do whose view it is; ``None``: everything.
    """

    def __init__(
        self,
        database: Database,
        *,
        middleware: Sequence[EnqueueMiddleware] = (),
        directives: Sequence[Directive] = (),
        store: FileStore | None = None,
    ) -> None:
        self.store = store
        self.check_orchestrator: Callable[[str, Any], None] = _no_orchestrator
        """Checks the name of an orchestrator, and parameters for it; raises ``InvalidRequest``."""
        self.database = database
        self.middleware = list(middleware)
        self.directives = list(directives)
        self.tenant: str | None = None
        self.access: Access | None = None
        self._chores: list[asyncio.Task[None]] = []
        self._life = _Life()

    def of(self, tenant: str) -> Engine:
        """Return the engine as a tenant sees it (ojs-multi-tenancy.md); the empty string: what is nobody's."""
        view = copy(self)
        view.tenant = tenant
        return view

    def by(self, access: Access) -> Engine:
        """Return the engine as somebody may use it (ojs-security.md section 7)."""
        view = copy(self)
        view.access = access
        return view

    def named(self, name: str) -> str:
        """Return under which name something is kept that its tenant calls so."""
        return qualify(self.tenant or NOBODY, name)

    def sees(self, tenant: str) -> bool:
        """Whether what is this tenant's is to be seen."""
        return self.tenant is None or self.tenant == tenant

    def for_all(self, what: str) -> None:
        """Let only those do something that concerns all tenants who are none of them.

        Raises
        ------
        Forbidden
            It is the view of a tenant.
        """
        if self.tenant is not None:
            raise Forbidden(f"{what} concerns all tenants, and is not for one of them.")

    async def check_jobs(self, ids: Sequence[str]) -> list[OjsterError | None]:
        """Return for each id whether there is no such job, as far as the tenant is concerned."""
        if self.tenant is None or not ids:
            return [None for _ in ids]
        owners = await self.database.read(inspect.find_owners, tuple(ids))
        return [None if owners.get(id) == self.tenant else inspect.no_job(id) for id in ids]

    async def _check_job(self, job_id: str) -> None:
        for refusal in await self.check_jobs((job_id,)):
            if refusal is not None:
                raise refusal

    async def _check_workflow(self, workflow_id: str) -> None:
        if self.tenant is not None:
            await self._workflow(WorkflowRequest(workflow_id, steps=False))

    # Lifecycle

    @property
    def draining(self) -> bool:
        """Whether nobody is to wait any more."""
        return self._life.draining

    def drain(self) -> None:
        """Answer those who wait, now, with what there is; from now on nobody waits. The first step of a shutdown."""
        self._life.draining = True
        self.database.let_nobody_wait()
        self.database.wakeups.wake_all()

    def start_chores(self) -> None:
        """Look after all that falls due, until ``close``. Any number of processes may do so for one database."""
        if not self._chores:
            self._chores = [
                asyncio.create_task(self._keep_up(), name="ojster-upkeep"),
                asyncio.create_task(self._retain(), name="ojster-retention"),
            ]

    async def stop_chores(self) -> None:
        """Stop looking after what falls due."""
        chores, self._chores = self._chores, []
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)

    async def close(self) -> None:
        """Stop the chores and close the database."""
        await self.stop_chores()
        await asyncio.to_thread(self.database.close)

    async def do(self, operation: Operation[A, R | OjsterError], argument: A) -> R:
        """Run a transaction function that needs nothing of this module, and return its result, or raise its refusal."""
        return accepted(await self.database.run(operation, argument))

    async def look(self, operation: Operation[A, R | OjsterError], argument: A) -> R:
        """Run a transaction function that only reads, as ``do`` does."""
        return accepted(await self.database.read(operation, argument))

    # Jobs

    async def prepare(self, members: Members) -> NewJob:
        """Run the enqueue middleware over a request, and return the job that it describes.

        Raises
        ------
        InvalidRequest, InvalidPolicy, PayloadTooLarge
            The request is malformed.
        """
        members = await self._completed(members)
        catalogue = await self._schemas()
        args = members.get("args", msgspec.Raw(b"null"))
        settings = self.database.settings
        job = read_job(
            members,
            self.database.clock(),
            largest=settings.largest_job,
            tenant=self.tenant,
            otherwise=settings.default_tenant,
        )
        self._check_tenant(job.tenant)
        if self.access is not None:
            self.access.check_queue(job.queue)
            if job.reacts & ANY_EVENT:
                self.access.need_all_queues("A reaction")
        if self.tenant is not None and job.queue.startswith(RESERVED):
            raise Forbidden(f"Queues whose names begin with {RESERVED!r} are not for tenants.")
        if catalogue:
            job.warnings = _check_args(catalogue, job, args)
        if job.notices:
            await self._check_notices(job)
        return job

    async def _check_notices(self, job: NewJob) -> None:
        """See that a job can tell those whom it wants to tell (seed 003: notifications).

        Raises
        ------
        InvalidRequest
            There is no such channel.
        Forbidden
            It names others than the channel does, and the caller may not say who is told.
        """
        for notice in job.notices:
            if self.access is not None and (notice.to or notice.cc):
                self.access.need_admin()
        names = sorted({notice.channel for notice in job.notices})
        found = await self.database.read_many(
            notifications.find_channels, [qualify(job.tenant, name) for name in names]
        )
        missing = [name for name, one in zip(names, found, strict=True) if isinstance(one, OjsterError)]
        if missing:
            raise InvalidRequest(f"There is no channel {missing[0]!r}.", field="event_reactions")

    async def _completed(self, members: Members) -> Members:
        """Run the enqueue middleware over a job, and complete and check it as the rules of its queue say."""
        members = await through_middleware(self.middleware, members)
        rules = await self._resource_rules()
        if rules and (queue := queue_of(members)) in rules:
            members = rules[queue].apply(members, queue)
        return members

    async def _resource_rules(self) -> Mapping[str, Rules]:
        """Return the rules of queues that say something of what jobs need."""
        known = self.database.configuration.known_rules
        if known is None:
            known = await self.database.read(queue_config.rules, None)
        return {queue: rules for queue, rules in known.items() if rules.are_about_resources} if known else known

    def _need_all_queues(self, what: str) -> None:
        if self.access is not None:
            self.access.need_all_queues(what)

    def _check_tenant(self, tenant: str) -> None:
        if not tenant and self.database.settings.tenants == "required":
            raise TenantMissing(
                "It is not said whose it is: name the tenant with the header X-OJS-Tenant or in 'meta.tenant_id'.",
                field="meta.tenant_id",
            )

    async def _schemas(self) -> Catalogue:
        """Return the schemas that are registered, as far as this process has heard."""
        configuration, catalogue = self._life.catalogue
        if catalogue is None or configuration != self.database.configuration.version:
            configuration = self.database.configuration.version
            catalogue = Catalogue(await self.database.read(schemas.list_schemas, None))
            self._life.catalogue = (configuration, catalogue)
        return catalogue

    async def push(self, jobs: Sequence[NewJob]) -> list[Pushed]:
        """Insert jobs, all or none (PUSH).

        Raises
        ------
        Duplicate
            An id or a unique key is taken.
        """
        return accepted(await self.database.run(push, jobs))

    async def enqueue(self, requests: Sequence[Members]) -> list[Pushed]:
        """Prepare and push jobs, all or none."""
        return await self.push([await self.prepare(members) for members in requests])

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        """Hand out jobs (FETCH); if there are none, wait for one, at most ``wait`` seconds."""
        waits = wait > 0 and not self.draining
        queues = request.queues
        if self.access is not None:
            for queue in queues:
                self.access.check_queue(queue)
        if self.tenant is not None:
            worker_id = self.named(request.worker_id) if request.worker_id else None
            request = msgspec.structs.replace(request, tenant=self.tenant, worker_id=worker_id)
            queues = tuple(qualify(self.tenant or DEFAULT_TENANT, queue) for queue in queues)
        if request.provided is not None or self.database.configuration.may_be_special(request.worker_id):
            queues = tuple(map(choosy, queues))
        patience = Patience(queues if waits else (), _in_vain if waits else _never, self.give_back)
        call = self.database.run_patiently(claim, request, patience)
        try:
            if waits:
                await asyncio.wait((call,), timeout=min(wait, LONGEST_WAIT))
                if not call.done():
                    self.database.hurry(patience)
            jobs = (await call)[0]
            if waits and isinstance(jobs, Nobody):
                await asyncio.sleep(min(wait, IDLE_PAUSE))
            return jobs
        except asyncio.CancelledError:
            if _has_arrived(call):
                self.give_back(call.result()[0])
            call.cancel()
            raise

    def give_back(self, jobs: Sequence[Job]) -> None:
        """Take back jobs that were handed to somebody who has gone meanwhile; their attempt does not count."""
        if jobs:
            with contextlib.suppress(BackendUnavailable):  # then their leases end by themselves
                self.database.run_many(outcome.release, [Release(job.id, job.worker_id, job.attempt) for job in jobs])

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> list[Job | OjsterError]:
        """Complete jobs (ACK); for each return it, or why its acknowledgement was refused.

        Results of more than 64 KiB become files, if there is where to keep them, unless steps look into them.
        """
        if self.store is not None and any(len(item.result or b"") > LARGEST_INLINE_RESULT for item in items):
            items = [await self._with_file(item) for item in items]
        return await self._word(outcome.acknowledge, items)

    async def _with_file(self, item: Acknowledgement) -> Acknowledgement:
        """Keep the result of a job as a file if it is a large one."""
        if item.append:
            return item  # what is added may look into it
        if item.result is None or not LARGEST_INLINE_RESULT < len(item.result) <= self.database.settings.largest_job:
            return item
        if not await self.database.read(outcome.may_be_files, item.job_id):
            return item
        try:
            file = await self.files.keep(item.result, NewFile(content_type=JSON, job_id=item.job_id))
        except (BackendUnavailable, NotFound) as error:
            log.warning("the result of the job %s is kept in the database: %s", item.job_id, error)
            return item
        return msgspec.structs.replace(item, result=None, result_file=file.id)

    async def fail(self, items: Sequence[FailureReport]) -> list[Job | OjsterError]:
        """End failed attempts (FAIL); for each return the job, or why the report was refused."""
        return await self._word(outcome.fail, items)

    async def release(self, items: Sequence[Release]) -> list[Job | OjsterError]:
        """Take back jobs that a worker could not finish; their attempt does not count."""
        return await self._word(outcome.release, items)

    async def _word(self, operation: Operation[W, Job | OjsterError], items: Sequence[W]) -> list[Job | OjsterError]:
        """Pass on what workers say of jobs, as far as these are to be seen."""
        if self.tenant is None:
            return list(await self.database.run_many(operation, items))
        refusals = await self.check_jobs([item.job_id for item in items])
        accepted = [self._by(item) for item, refusal in zip(items, refusals, strict=True) if refusal is None]
        outcomes = iter(await self.database.run_many(operation, accepted) if accepted else ())
        return [refusal or next(outcomes) for refusal in refusals]

    def _by(self, item: W) -> W:
        """Name the worker as it is kept."""
        return msgspec.structs.replace(item, worker_id=self.named(item.worker_id)) if item.worker_id else item

    async def report(self, item: Progress) -> Job:
        """Note how far a job is.

        Raises
        ------
        NotFound, Conflict
            There is no such job, or the caller does not hold its lease.
        """
        (found,) = await self._word(outcome.report, (item,))
        return accepted(found)

    async def account(self, item: Account) -> AgentState:
        """Note what an agent's task uses, or is about to, and return how it stands (ojs-ai-agents.md section 3).

        Raises
        ------
        NotFound, Conflict
            There is no such job, or the caller does not hold its lease.
        TokenBudgetExceeded
            A call is about to be made, and there are too few tokens left for it.
        ToolNotFound
            The job has not declared the tool.
        """
        await self._check_job(item.job_id)
        return accepted(await self.database.run(agents.account, self._by(item)))

    async def save_checkpoint(self, item: NewCheckpoint) -> Checkpoint:
        """Save how far a job has got, in the place of what was saved before.

        Raises
        ------
        NotFound, Conflict
            There is no such job, or it is finished, or the caller does not hold its lease.
        PayloadTooLarge
            The state is larger than 1 MiB.
        """
        await self._check_job(item.job_id)
        return accepted(await self.database.run(checkpoints.save, self._by(item)))

    async def find_checkpoint(self, job_id: str) -> Checkpoint:
        """Return what a job has saved.

        Raises
        ------
        NotFound
            There is no such job, or it has saved nothing.
        """
        await self._check_job(job_id)
        return accepted(await self.database.read(checkpoints.find_checkpoints, job_id))

    async def clear_checkpoint(self, job_id: str) -> bool:
        """Delete what a job has saved; tell whether there was something.

        Raises
        ------
        NotFound
            There is no such job.
        """
        await self._check_job(job_id)
        return accepted(await self.database.run(checkpoints.clear, job_id))

    async def find(self, job_id: str) -> Job:
        """Return a job (INFO).

        Raises
        ------
        NotFound
            There is no such job.
        """
        job = await self.database.read(inspect.find, job_id)
        if job is None or not self.sees(job.tenant):
            raise inspect.no_job(job_id)
        return job

    async def wait_for(self, job_id: str, wait: float) -> Job:
        """Return a job as soon as it is finished, or as it is after ``wait`` seconds.

        Raises
        ------
        NotFound
            There is no such job.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait, LONGEST_WAIT)
        with self.database.wakeups.waiter(job_topic(job_id), FINISHED) as waiter:
            while True:
                waiter.arm()
                job = await self.find(job_id)
                left = deadline - loop.time()
                if job.state in FINISHED_STATES or left <= 0 or self.draining:
                    return job
                await waiter.wait(left)

    async def history(self, job_id: str) -> list[Entry]:
        """Return what has happened to a job, the oldest first, at most the last 1,000.

        Raises
        ------
        NotFound
            There is no such job.
        """
        await self._check_job(job_id)
        return accepted(await self.database.read(read_history, job_id))

    async def purge_history(self, job_id: str) -> int:
        """Forget what has happened to a job so far; return how many entries that were.

        Raises
        ------
        NotFound
            There is no such job.
        """
        await self._check_job(job_id)
        return accepted(await self.database.run(purge_history, job_id))

    async def lineage(self, job_id: str) -> Lineage:
        """Return which jobs of its workflow lead to a job, and which follow it.

        Raises
        ------
        NotFound
            There is no such job.
        """
        await self._check_job(job_id)
        return accepted(await self.database.read(trace_lineage, job_id))

    async def cancel(self, job_id: str) -> Steered:
        """Cancel an unfinished job (CANCEL).

        Raises
        ------
        NotFound, Conflict
            There is no such job, or it is finished.
        """
        await self._check_job(job_id)
        return accepted(await self.database.run(control.cancel, job_id))

    async def adjust_priority(self, job_id: str, by: int) -> Job:
        """Let the priority of an unfinished job differ by so much from the one with which it was pushed (seed 003).

        Raises
        ------
        NotFound, Conflict
            There is no such job, or it is finished.
        InvalidRequest
            The priority would be none from -100 to 100.
        Forbidden
            It would be raised, and the caller does not administer.
        """
        if by > 0 and self.access is not None:
            self.access.need_admin()
        await self._check_job(job_id)
        return accepted(await self.database.run(control.adjust, control.Adjustment(job_id, by)))

    async def activate(self, job_id: str, data: bytes | None = None, failure: Failure | None = None) -> Steered:
        """Let a pending job go on: make it available, or, if it waits, resume it.

        Parameters
        ----------
        data:
            What it waits for, as JSON.
        failure:
            Why what it waits for will not come.

        Raises
        ------
        NotFound, Conflict
            There is no such job, or it is not pending.
        """
        await self._check_job(job_id)
        return accepted(await self.database.run(holds.activate, Resumption(job_id, data, failure)))

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

    async def job_notes(self, job_id: str) -> list[Note]:
        """Return what was noted of a job, the oldest first.

        Raises
        ------
        NotFound
            There is no such job.
        """
        await self._check_job(job_id)
        return accepted(await self.database.read(notes.of_jobs, job_id))

    async def list_jobs(self, chosen: JobFilter = JobFilter(), page: Page = Page()) -> JobPage:  # noqa: B008  (frozen)
        """Return a page of the jobs that match, newest first unless the page says otherwise."""
        return await self.database.read(inspect.list_jobs, (self._theirs(chosen), page))

    async def count_jobs(self, queue: str | None = None) -> dict[str, dict[str, int]]:
        """Return the number of jobs by queue and state."""
        if self.tenant:
            counts = await self.database.read(tenants.count_jobs, self.tenant)
            return counts if queue is None else {name: states for name, states in counts.items() if name == queue}
        return await self.database.read(inspect.count_jobs, queue)

    def _theirs(self, chosen: JobFilter) -> JobFilter:
        return chosen if self.tenant is None else msgspec.structs.replace(chosen, tenant=self.tenant)

    async def retry_dead(self, job_id: str, revival: control.Revival | None = None) -> Job:
        """Run a discarded job again as if it were new, changed as ``revival`` says.

        Raises
        ------
        NotFound, Conflict
            There is no such job, or it is no dead letter.
        InvalidRequest
            What it would become is no job.
        """
        await self._check_job(job_id)
        if self.access is not None and revival is not None and revival.queue is not None:
            self.access.check_queue(revival.queue)
        return accepted(await self.database.run(control.retry_dead, revival or control.Revival(job_id)))

    async def delete_dead(self, job_id: str) -> Job:
        """Delete a discarded job for good.

        Raises
        ------
        NotFound, Conflict
            There is no such job, or it is no dead letter.
        """
        await self._check_job(job_id)
        return accepted(await self.database.run(control.delete_dead, job_id))

    async def perform(self, bulk: Bulk) -> Reply:
        """Do something to several jobs in one go, unless the request was answered before.

        Raises
        ------
        Conflict
            The idempotency key was given to another request.
        """
        if self.tenant is not None:
            ids = [item for item in bulk.items if isinstance(item, str)]
            refusals = dict(zip(ids, await self.check_jobs(ids), strict=True))
            items = [(refusals[item] or item) if isinstance(item, str) else item for item in bulk.items]
            bulk = msgspec.structs.replace(bulk, items=items, key=self._key(bulk.key))
        return accepted(await self.database.run(bulks.perform, bulk))

    def _key(self, key: Key | None) -> Key | None:
        return None if key is None else msgspec.structs.replace(key, operation=self.named(key.operation))

    async def answer_once(self, key: Key | None, answer: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the answer to a request, or, if it was made before under the same key, what was answered then.

        If somebody is at it just now, that is waited for.

        Raises
        ------
        Conflict
            The key was given to another request, or its answer takes too long.
        """
        if (key := self._key(key)) is None:
            return await answer()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LONGEST_WAIT
        while (known := accepted(await self.database.run(idempotency.begin, key))) is not None:
            if known.status != idempotency.IN_PROGRESS:
                return known
            if loop.time() > deadline:
                raise Conflict(f"The request with the idempotency key {key.key!r} is still being answered.")
            await asyncio.sleep(LOOK_AGAIN)
        reply = None
        try:
            reply = await answer()
            return reply
        finally:
            await self.database.run(idempotency.finish, (key, reply))

    async def sweep(self, action: Action, chosen: JobFilter, *, quietly: bool = False) -> Sweep:
        """Do something to all jobs that match now, in small transactions, so that nobody waits for it.

        Each is dealt with if it still is in one of the states that were chosen when its turn comes. If the process dies
        meanwhile, some were dealt with and the others were not: it can be asked again. It is an event, unless done
        ``quietly``.

        Raises
        ------
        InvalidRequest
            The states that are chosen are none in which it can be done.
        """
        states = chosen.states or USUAL[action]
        if wrong := [state for state in states if state not in ALLOWED[action]]:
            raise InvalidRequest(
                f"Jobs that are {' or '.join(wrong)} cannot be {action.past}; only those that are "
                f"{', '.join(sorted(ALLOWED[action]))} can.",
                field="state",
            )
        found = Sweep(action)
        step: Step | None = Step(msgspec.structs.replace(self._theirs(chosen), states=states))
        while step is not None:
            stretch = await self.database.read(walk, step)
            for start in range(0, len(stretch.ids), AT_ONCE):
                ids = stretch.ids[start : start + AT_ONCE]
                found.add(await self.database.run(bulks.deal_with, Some(action, ids, states)))
            step = stretch.next
        if not quietly:
            await self.database.run(bulks.conclude, Summary(action, found.matched, found.succeeded))
        return found

    # Workflows

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
        found = await self.database.read(workflow_views.show_workflows, request)
        if found is None:
            raise no_workflow(request.id)
        return found

    async def list_workflows(self, chosen: WorkflowFilter) -> WorkflowPage:
        """Return a page of workflows, newest first, without their steps."""
        definition = None if chosen.definition is None else self.named(chosen.definition)
        chosen = msgspec.structs.replace(chosen, tenant=self.tenant, definition=definition)
        return await self.database.read(workflow_views.list_workflows, chosen)

    async def count_workflows(self) -> WorkflowCounts:
        """Return how many workflows are under way, by state, and how those of the last hour have ended."""
        return await self.database.read(workflow_views.count_workflows, None)

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
        return await self._steered(holds.resume_workflows, item, item.workflow_id)

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
        return accepted(await self.database.read(workflow_status.read_status, workflow_id))

    async def workflow_statistics(self, definition: str | None = None) -> WorkflowStatistics:
        """Return how many workflows there are in each state, of those of this moment, the last hour and day, and all.

        Parameters
        ----------
        definition:
            Only those of this definition.
        """
        name = None if definition is None else self.named(definition)
        return await self.database.read(workflow_status.count, (self.tenant, name))

    async def ping(self) -> float:
        """Ask the database for an answer; return how many seconds that took.

        Raises
        ------
        BackendUnavailable
            There is none.
        """
        started = asyncio.get_running_loop().time()
        await self.database.run(_answer, None)
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

    # Queues

    async def queues(self) -> list[Queue]:
        """Return all queues by name; a tenant's view has those in which it has had jobs."""
        found = await self.database.read(queues.list_queues, None)
        if self.tenant is None:
            return found
        if self.tenant == NOBODY:
            known = await self.database.read_many(queues.statistics_of_nobodys, [queue.name for queue in found])
            return [one.queue for one in known if one is not None]
        theirs = await self.count_jobs()
        return [queue for queue in found if queue.name in theirs]

    async def queue_statistics(self, name: str) -> QueueStatistics:
        """Return how a queue does.

        Raises
        ------
        NotFound
            There is no such queue.
        """
        statistics = queues.statistics_of_nobodys if self.tenant == NOBODY else queues.statistics
        found = await self.database.read(statistics, self.named(name))
        if found is None:
            raise NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
        return found

    async def pause(self, name: str) -> Queue:
        """Stop handing out jobs of a queue, whether there is one of that name yet or not.

        Raises
        ------
        InvalidRequest
            It is no name of a queue.
        """
        self.for_all("Pausing a queue")
        return await self.database.run(queues.pause, check_queue_name(name))

    async def resume(self, name: str) -> Queue:
        """Hand out jobs of a queue again."""
        self.for_all("Resuming a queue")
        return await self.database.run(queues.resume, check_queue_name(name))

    # Workers

    async def beat(self, heartbeat: Heartbeat) -> Pulse:
        """Note that a worker is alive, extend its leases, and tell it what is wanted of it (BEAT)."""
        if self.tenant is not None:
            worker_id = self.named(heartbeat.worker_id)
            heartbeat = msgspec.structs.replace(heartbeat, worker_id=worker_id, tenant=self.tenant)
        pulse = await self.database.run(workers.beat, heartbeat)
        for directive in self.directives:
            if (answer := await directive(heartbeat, pulse)) is not None:
                pulse.directive = answer
                break
        return pulse

    async def leave(self, worker_id: str, *, lost: bool = False) -> None:
        """Forget a worker that stopped; jobs that it still holds are given to others.

        Parameters
        ----------
        lost:
            It did not stop in good order: its attempts count, and workflows may be cancelled for it.
        """
        await self.database.run(workers.leave, Leave(self.named(worker_id), lost))

    async def direct(self, worker_id: str, directive: str) -> Worker:
        """Tell a worker, with its next heartbeat, to be ``running``, ``quiet`` or ``terminate``.

        Raises
        ------
        NotFound
            There is no such worker.
        InvalidRequest
            There is no such directive.
        """
        if directive not in ("running", "quiet", "terminate"):
            raise InvalidRequest(f"A worker can be told 'running', 'quiet' or 'terminate', not {directive!r}.")
        return accepted(await self.database.run(workers.direct, (self.named(worker_id), directive)))

    async def find_worker(self, worker_id: str) -> Worker:
        """Return a worker.

        Raises
        ------
        NotFound
            There is no such worker.
        """
        return accepted(await self.database.read(workers.find_workers, self.named(worker_id)))

    async def workers(self) -> list[Worker]:
        """Return all workers, those seen last first."""
        found = await self.database.read(workers.list_workers, None)
        return [worker for worker in found if self.sees(split(worker.id)[0])]

    async def change_worker_rule(self, worker_id: str, members: Mapping[str, Any]) -> WorkerRule:
        """Say something of a worker that stands over what it says of itself (seed 003); return all that is said.

        Parameters
        ----------
        members:
            Members of ``WorkerRule``; those that are left out stay. One that is disabled gives back what it holds.
        """
        change = worker_rules.RuleChange(self.named(worker_id), dict(members))
        rule = await self.database.run(worker_rules.change_rules, change)
        return msgspec.structs.replace(rule, id=called(rule.id))

    async def forget_worker_rule(self, worker_id: str) -> None:
        """Say nothing of a worker any more.

        Raises
        ------
        NotFound
            Nothing is said of it.
        """
        await self.do(worker_rules.forget_rules, self.named(worker_id))

    async def worker_rules(self) -> list[WorkerRule]:
        """Return what is said of workers, present or not."""
        found = await self.database.read(worker_rules.list_rules, None)
        mine = [rule for rule in found if self.sees(split(rule.id)[0])]
        return [msgspec.structs.replace(rule, id=called(rule.id)) for rule in mine]

    async def unrunnable(self) -> list[Unrunnable]:
        """Return which jobs wait that no worker can run which is there, and why."""
        self.for_all("What no worker can run")
        return await self.database.read(unrunnable.list_unrunnable, None)

    # Cron jobs

    async def register_cron(self, item: cron.Cron) -> tuple[cron.Cron, bool]:
        """Register or update a cron job; return it, and whether it is new.

        Raises
        ------
        InvalidRequest
            Its template describes no job, or one that its queue does not allow.
        Forbidden
            The caller is not for all queues.
        """
        self._need_all_queues("A cron job")
        members = read_members(item.template, "The cron job's template")
        queue = queue_of(members)
        if (rules := (await self._resource_rules()).get(queue)) is not None:
            rules.apply(members, queue)
        largest = self.database.settings.largest_job
        read_job(members, self.database.clock(), largest=largest, tenant=self.tenant)
        item = msgspec.structs.replace(item, name=self.named(item.name))
        return await self.database.run(cron.register, item)

    async def switch_cron(self, name: str, enabled: bool) -> cron.Cron:
        """Enable or disable a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        """
        return accepted(await self.database.run(cron.switch, (self.named(name), enabled)))

    async def unregister_cron(self, name: str) -> cron.Cron:
        """Remove a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        """
        return accepted(await self.database.run(cron.unregister, self.named(name)))

    async def find_cron(self, name: str) -> cron.Cron:
        """Return a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        """
        return accepted(await self.database.read(cron.find_cron, self.named(name)))

    async def crons(self) -> list[cron.Cron]:
        """Return all cron jobs by name."""
        found = await self.database.read(cron.list_crons, None)
        return [item for item in found if self.sees(split(item.name)[0])]

    # Channels

    async def put_channel(self, channel: Channel) -> bool:
        """Make or change a channel through which jobs tell somebody something (seed 003); return whether it is new.

        Raises
        ------
        InvalidRequest
            It cannot be used.
        """
        check_channel(channel)
        kept = msgspec.structs.replace(channel, name=self.named(channel.name))
        return await self.do(notifications.put_channels, kept)

    async def channels(self) -> list[Channel]:
        """Return the channels, by name."""
        found = await self.database.read(notifications.list_channels, None)
        mine = [one for one in found if self.sees(split(one.name)[0])]
        return [msgspec.structs.replace(one, name=called(one.name)) for one in mine]

    async def delete_channel(self, name: str) -> None:
        """Delete a channel.

        Raises
        ------
        NotFound
            There is none.
        """
        await self.do(notifications.delete_channels, self.named(name))

    # Files

    @property
    def files(self) -> Archive:
        """The files of this view.

        Raises
        ------
        Unsupported
            There is no file store.
        """
        if self.store is None:
            raise Unsupported("No file store is configured: ojster serve --files DIRECTORY, or s3://BUCKET.")
        return Archive(self, self.store)

    @property
    def hashes(self) -> Hashes:
        """How far the hashes of uploads have come in this process."""
        return self._life.hashes

    async def create_file(self, new: NewFile) -> File:
        """Begin to upload a file. See ``Archive.create``."""
        return await self.files.create(new)

    async def write_file(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Go on with an upload. See ``Archive.write``."""
        return await self.files.write(file_id, offset, source)

    async def find_file(self, file_id: str, job_id: str | None = None) -> File:
        """Return a file. See ``Archive.find``."""
        return await self.files.find(file_id, job_id)

    async def list_files(self, limit: int = 50, before: str | None = None) -> list[File]:
        """Return files. See ``Archive.list``."""
        return await self.files.list(limit, before)

    async def read_file(self, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes of a file. See ``Archive.read``."""
        return await self.files.read(file_id, start)

    async def delete_file(self, file_id: str) -> None:
        """Delete a file. See ``Archive.delete``."""
        await self.files.delete(file_id)

    # Tasks

    async def task_runs(self, chosen: TaskFilter = TaskFilter()) -> list[TaskRun]:  # noqa: B008  (frozen)
        """Return how jobs have ended that were recorded, the latest first (seed 003: task history)."""
        return await self.look(task_history.list_runs, self._tasks(chosen))

    async def task_statistics(self, chosen: TaskFilter = TaskFilter()) -> list[TaskStatistics]:  # noqa: B008  (frozen)
        """Return how often tasks have succeeded and failed, and how long they took."""
        return await self.look(task_history.list_statistics, self._tasks(chosen))

    def _tasks(self, chosen: TaskFilter) -> TaskFilter:
        return msgspec.structs.replace(chosen, tenant=self.tenant, limit=max(1, min(chosen.limit, MOST_SHOWN_TASKS)))

    # Collections

    async def create_collection(self, name: str, description: str | None = None) -> Collection:
        """Make a named collection (seed 003).

        Raises
        ------
        InvalidRequest
            It is no name of one.
        Conflict
            There is one of its name.
        """
        new = collections.NewCollection(self.named(check_collection_name(name)), description, self.who)
        return await self.do(collections.create_collections, new)

    async def collections(self) -> list[Collection]:
        """Return the named collections, by name."""
        found = await self.database.read(collections.list_collections, None)
        return [one for name, one in found if self.sees(split(name)[0])]

    async def delete_collection(self, name: str, *, force: bool = False) -> None:
        """Delete a named collection with all that it holds, or has held.

        Raises
        ------
        NotFound
            There is none.
        Conflict
            Something is in it, and it is not to be forced.
        """
        await self.do(collections.delete_collections, collections.Removal(self.named(name), force))

    async def add_item(self, where: Where, item: NewItem) -> Item:
        """Put something into a collection; it is known who has, and when.

        Raises
        ------
        NotFound
            There is no such collection or workflow.
        InvalidRequest, PayloadTooLarge
            The name or the data are none.
        Conflict
            There is an item of the name, and it is not to be replaced; or there are too many; or its file is not
            complete; or the job whose collection it is does not run.
        """
        return await self.do(collections.add, collections.Addition(self._place(where), item.check(), self.who))

    async def remove_item(self, where: Where, name: str) -> Item:
        """Remove something from a collection; its history keeps it. Return it.

        Raises
        ------
        NotFound
            There is no such collection, workflow or item.
        """
        return await self.do(collections.remove, collections.Taking(self._place(where), name, self.who))

    async def items(self, where: Where, lookup: Lookup | None = None, *, history: bool = False) -> list[Item]:
        """Return what is in a collection and matches, in the order in which it was added, at most 1,001 items.

        Parameters
        ----------
        lookup:
            Which items; what it says of the collection does not matter.
        history:
            Whether those too that were removed, or replaced.

        Raises
        ------
        NotFound
            There is no such collection or workflow.
        """
        question = collections.Question(self._place(where), lookup or Lookup(""), history)
        return await self.look(collections.show, question)

    def _place(self, where: Where) -> Place:
        name = None if where.name is None else self.named(where.name)
        return Place(name, where.workflow_id, where.job_id, self.tenant)

    @property
    def who(self) -> str | None:
        """The name of who uses it, if that is known."""
        return None if self.access is None else self.access.who

    # Tokens

    async def create_token(
        self, name: str, grants: Sequence[Grant], queues: Sequence[str] = (), expires_at: int | None = None
    ) -> tuple[Token, str]:
        """Make a token (ojs-security.md section 12.3); return it, and what is shown of it only now.

        Parameters
        ----------
        queues:
            Only for jobs of these queues, whose names may end in ``*``.
        expires_at:
            From when on it is worth nothing, in microseconds since the epoch.

        Raises
        ------
        InvalidRequest
            It would let nobody do anything.
        """
        self.for_all("Making a token")
        if not grants:
            raise InvalidRequest("A token without a role lets nobody do anything; give it one.", field="grants")
        if expires_at is not None and expires_at <= self.database.clock():
            raise InvalidRequest("The token would have expired already.", field="expires_at")
        id, secret = new_id(), new_secret()
        hashed = await asyncio.to_thread(hash_secret, id, secret)
        new = Token(id, name, hashed, tuple(grants), 0, tuple(queues), expires_at)
        return await self.database.run(tokens.create_tokens, new), join_token(id, secret)

    async def rotate_token(self, token_id: str, grace: int) -> tuple[Token, str]:
        """Give a token another secret; the present one is good for ``grace`` microseconds yet (section 6.4).

        Raises
        ------
        NotFound
            There is no such token.
        """
        self.for_all("Rotating a token")
        secret = new_secret()
        hashed = await asyncio.to_thread(hash_secret, token_id, secret)
        token = await self.do(tokens.rotate_tokens, tokens.Rotation(token_id, hashed, grace))
        return token, join_token(token_id, secret)

    async def revoke_token(self, token_id: str) -> Token:
        """Let a token be worth nothing from now on.

        Raises
        ------
        NotFound
            There is no such token.
        """
        self.for_all("Revoking a token")
        return await self.do(tokens.revoke_tokens, token_id)

    async def tokens(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        self.for_all("The tokens")
        return await self.database.read(tokens.list_tokens, None)

    # Events

    async def select_events(self, chosen: EventFilter) -> EventPage:
        """Return a page of what has happened lately, oldest first."""
        chosen = msgspec.structs.replace(chosen, tenant=self.tenant)
        await self._follow()
        return await self.database.read(event_log.select_events, chosen)

    async def read_on(self, number: int) -> event_log.Stretch:
        """Return what has happened, to anybody, since the event with a number."""
        await self._follow()
        return await self.database.read(event_log.read_on, number)

    async def last_event(self) -> int:
        """Return the number up to which all has happened already."""
        await self._follow()
        return await self.database.read(event_log.last_event, None)

    async def _follow(self) -> None:
        """Say now and then that somebody wants to know what happens, and put it in order."""
        now = self.database.clock()
        if now >= self._life.followed_at + event_log.FOLLOWED_FOR // 2:
            self._life.followed_at = now
            await self.database.run(event_log.note_follower, None)
        await self.database.order_events()

    # Inside

    async def _keep_up(self) -> None:
        database = self.database
        with database.wakeups.waiter(DUE) as waiter:
            while True:
                waiter.arm()
                database.next_due = None
                delay = LONGEST_SLEEP
                try:
                    due = await database.run(upkeep, None)
                    database.next_due = due
                    if due is not None:
                        delay = min(LONGEST_SLEEP, max(0.0, (due - database.clock()) / 1e6))
                except BackendUnavailable as error:
                    await self._until_it_answers(error)
                    continue
                except OjsterError as error:
                    log.error("upkeep failed, and is tried again in a second: %s", error)
                    delay = 1.0
                await waiter.wait(delay)

    async def _until_it_answers(self, error: BackendUnavailable) -> None:
        """Wait until the database works again, and then a little, so that workers can report what they have done.

        Without that, leases that ran out meanwhile would end, and jobs that are done would run again.
        """
        started = asyncio.get_running_loop().time()
        log.warning("the database is away, and is tried again and again: %s", error)
        pause = 0.2
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
            try:
                await self.database.run(_answer, None)
                break
            except BackendUnavailable:
                continue
        log.warning("the database is back after %.1f s", asyncio.get_running_loop().time() - started)
        await asyncio.sleep(LENIENCY)

    async def _retain(self) -> None:
        loop = asyncio.get_running_loop()
        walked_at = loop.time() - WALK_INTERVAL
        while True:
            deleted = 0
            try:
                deleted = (await self.database.run(retention.forget, None))["rows"]
                if deleted < retention.BATCH and loop.time() >= walked_at + WALK_INTERVAL:
                    walked_at = loop.time()
                    await self.retain_by_walks()
                    if self.store is not None:
                        await self.files.prune()
            except OjsterError as error:
                log.error("retention failed, and is tried again later: %s", error)
            await asyncio.sleep(0.02 if deleted >= retention.BATCH else RETENTION_INTERVAL)

    async def retain_by_walks(self) -> int:
        """Forget finished jobs of queues and workspaces that say how long they are kept; return how many.

        (ojs-admin-api.md section 6.6; seed 003)
        """
        settings = self.database.settings
        own, deleted = await self.database.read(retention.own_retention, None), 0
        for chosen in retention.walks(own, settings.retention, self.database.clock()):
            deleted += (await self.sweep(Action.DELETE, chosen, quietly=True)).succeeded
        for queue, kept in own.queues.items():
            most = kept.most_dead_letters
            while most is not None and (pruned := await self.database.run(retention.prune_own, (queue, most))):
                deleted += pruned
        return deleted

    async def prune(self, *, dry_run: bool = False) -> dict[str, int]:
        """Forget now all that was kept long enough, in small transactions (seed 003: expiration).

        The servers do so all the time; this is for who wants to wait for it, or to see what it would be.

        Parameters
        ----------
        dry_run:
            Only count.

        Returns
        -------
        dict[str, int]
            How many ``jobs``, those of workflows among them, how many ``workflows``, and how many ``files``.
        """
        self.for_all("Pruning")
        found: Counter[str] = Counter()
        if dry_run:
            found += await self.database.read(retention.count_forgettable, None)
            own = await self.database.read(retention.own_retention, None)
            for chosen in retention.walks(own, self.database.settings.retention, self.database.clock()):
                found["jobs"] += await self._count_matching(chosen)
            found["files"] = await self.database.read(files.count_forgettable_files, None)
        else:
            while (done := await self.database.run(retention.forget, None))["rows"]:
                found += done
            found["jobs"] += await self.retain_by_walks()
            found["files"] = 0 if self.store is None else await self.files.prune()
        return {name: found[name] for name in ("jobs", "workflows", "files")}

    async def _count_matching(self, chosen: JobFilter) -> int:
        count, step = 0, Step(chosen)
        while True:
            stretch = await self.database.read(walk, step)
            count += len(stretch.ids)
            if stretch.next is None:
                return count
            step = stretch.next


def _check_args(catalogue: Catalogue, job: NewJob, args: msgspec.Raw) -> tuple[str, ...]:
    """Return what is wrong with the arguments of a job, unless its schema forbids it (ojs-schema-registry.md 7).

    Raises
    ------
    SchemaViolation
        It does.
    """
    version = None if job.version is None else msgspec.json.decode(job.version)
    schema = catalogue.schema_of(qualify(job.tenant, job.type), version) or catalogue.schema_of(job.type, version)
    if schema is None:
        return ()
    wrong = catalogue.violations(schema, msgspec.json.decode(args))
    if wrong and schema.mode is Mode.STRICT:
        raise SchemaViolation(
            f"Job arguments do not match the schema of {job.type}@{schema.name}.", validation_errors=wrong
        )
    return tuple(f"Schema validation warning: {one}" for one in wrong)


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
            _check_args(catalogue, job, request["args"])
        except InvalidRequest as error:
            place = msgspec.json.decode(request["workflow_step"], type=str)
            wrong = "; ".join(error.details.get("validation_errors", ()))
            problems.append(Problem(f"step {place}", f"{error.message} {wrong}".strip()))
    if problems:
        raise refusal_of(problems)


async def through_middleware(middleware: Sequence[EnqueueMiddleware], members: Members) -> Members:
    """Return an enqueue request as the middleware, the first outermost, has changed it, unless it raises to refuse."""
    if not middleware:
        return members

    async def enqueue(request: JobRequest) -> JobRequest:
        return request

    chain: Enqueue = enqueue
    for layer in reversed(middleware):
        chain = _wrap(layer, chain)
    request = await chain(msgspec.json.decode(msgspec.json.encode(members)))
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in request.items()}


def _no_orchestrator(name: str, params: Any) -> None:
    raise InvalidRequest(
        f"There is no orchestrator {name!r:.80} here: ojster serve --app MODULE:APP says where they are.",
        field=ORCHESTRATOR,
    )


def _answer(tx: Transaction, requests: Sequence[None]) -> list[None]:
    """Ask the database for nothing but an answer."""
    tx.execute("SELECT 1")
    return list(requests)


def _in_vain(jobs: Sequence[Job]) -> bool:
    """Whether a fetch should wait: there is no job, and there may be one."""
    return not jobs and not isinstance(jobs, Nobody)


def _never(jobs: Sequence[Job]) -> bool:
    """A fetch that does not wait takes what there is."""
    return False


def _has_arrived(call: asyncio.Future[Any]) -> bool:
    """Whether a call has its results, although its caller was interrupted."""
    return call.done() and not call.cancelled() and call.exception() is None


def _wrap(layer: EnqueueMiddleware, inner: Enqueue) -> Enqueue:
    async def wrapped(request: JobRequest) -> JobRequest:
        return await layer(request, inner)

    return wrapped


def accepted(result: R | OjsterError) -> R:
    """Return a result, or raise it if it is a refusal."""
    if isinstance(result, OjsterError):
        raise result
    return result
