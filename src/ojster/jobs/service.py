"""How are jobs pushed, handed out, ended, looked at and steered?"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ojster.agents import budgets
from ojster.agents.attributes import AgentState
from ojster.agents.budgets import Account
from ojster.collections.result_files import may_be_files
from ojster.collections.service import CollectionCalls
from ojster.core.errors import (
    BackendUnavailable,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    OjsterError,
    SchemaViolation,
    TenantMissing,
)
from ojster.core.job import Job
from ojster.core.reacts import ANY_EVENT
from ojster.core.states import FINISHED as FINISHED_STATES
from ojster.core.tenant import DEFAULT_TENANT, qualify
from ojster.events import notifications
from ojster.files.file import JSON, LARGEST_INLINE_RESULT, NewFile
from ojster.fleet.abilities import may_be_special
from ojster.jobs import bulk as bulks
from ojster.jobs import checkpoints, completion, idempotency, interventions, queries, schemas
from ojster.jobs.admission import Pushed
from ojster.jobs.bulk import ALLOWED, USUAL, Action, Bulk, Dealt, Some, Summary
from ojster.jobs.checkpoints import Checkpoint, NewCheckpoint
from ojster.jobs.claim import Nobody, claim
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.history import Entry, Lineage, purge_history, read_history, trace_lineage
from ojster.jobs.idempotency import Key, Reply
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.push import push
from ojster.jobs.queries import JobPage, Page
from ojster.jobs.request import Members, NewJob, queue_of, read_job
from ojster.jobs.schemas import Catalogue, Mode
from ojster.jobs.selection import JobFilter, Step, walk
from ojster.jobs.transitions import Steered
from ojster.queues import configuration as queue_config
from ojster.queues.rules import Rules, queue_rules
from ojster.scope import Enqueue, EnqueueMiddleware, JobRequest, accepted
from ojster.storage.dispatcher import Operation, Patience
from ojster.storage.parked import choosy
from ojster.storage.wakeups import FINISHED, job_topic
from ojster.tenancy import quotas
from ojster.workflows import notes, suspensions
from ojster.workflows.notes import Note
from ojster.workflows.suspensions import Resumption

log = logging.getLogger(__name__)

W = TypeVar("W", Acknowledgement, FailureReport, Release, Progress, NewCheckpoint, Account)


LONGEST_WAIT: Final = 60.0
"""How long a call may wait for something to happen, in seconds."""

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


class JobCalls(CollectionCalls):
    """Calls about jobs."""

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
            job.warnings = check_args(catalogue, job, args)
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
        known = queue_rules.known(self.database.memory)
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
        version, catalogue = self._life.catalogue
        if catalogue is None or version != self.database.memory.version:
            version = self.database.memory.version
            catalogue = Catalogue(await self.database.read(schemas.list_schemas, None))
            self._life.catalogue = (version, catalogue)
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
        if request.provided is not None or may_be_special(self.database.memory, request.worker_id):
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
                self.database.run_many(
                    completion.release, [Release(job.id, job.worker_id, job.attempt) for job in jobs]
                )

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> list[Job | OjsterError]:
        """Complete jobs (ACK); for each return it, or why its acknowledgement was refused.

        Results of more than 64 KiB become files, if there is where to keep them, unless steps look into them.
        """
        if self.store is not None and any(len(item.result or b"") > LARGEST_INLINE_RESULT for item in items):
            items = [await self._with_file(item) for item in items]
        return await self._word(completion.acknowledge, items)

    async def _with_file(self, item: Acknowledgement) -> Acknowledgement:
        """Keep the result of a job as a file if it is a large one."""
        if item.append:
            return item  # what is added may look into it
        if item.result is None or not LARGEST_INLINE_RESULT < len(item.result) <= self.database.settings.largest_job:
            return item
        if not await self.database.read(may_be_files, item.job_id):
            return item
        try:
            file = await self.files.keep(item.result, NewFile(content_type=JSON, job_id=item.job_id))
        except (BackendUnavailable, NotFound) as error:
            log.warning("the result of the job %s is kept in the database: %s", item.job_id, error)
            return item
        return msgspec.structs.replace(item, result=None, result_file=file.id)

    async def fail(self, items: Sequence[FailureReport]) -> list[Job | OjsterError]:
        """End failed attempts (FAIL); for each return the job, or why the report was refused."""
        return await self._word(completion.fail, items)

    async def release(self, items: Sequence[Release]) -> list[Job | OjsterError]:
        """Take back jobs that a worker could not finish; their attempt does not count."""
        return await self._word(completion.release, items)

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
        (found,) = await self._word(completion.report, (item,))
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
        return accepted(await self.database.run(budgets.account, self._by(item)))

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
        job = await self.database.read(queries.find, job_id)
        if job is None or not self.sees(job.tenant):
            raise queries.no_job(job_id)
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
        return accepted(await self.database.run(interventions.cancel, job_id))

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
        return accepted(await self.database.run(interventions.adjust, interventions.Adjustment(job_id, by)))

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
        return accepted(await self.database.run(suspensions.activate, Resumption(job_id, data, failure)))

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
        return await self.database.read(queries.list_jobs, (self._theirs(chosen), page))

    async def count_jobs(self, queue: str | None = None) -> dict[str, dict[str, int]]:
        """Return the number of jobs by queue and state."""
        if self.tenant:
            counts = await self.database.read(quotas.count_jobs, self.tenant)
            return counts if queue is None else {name: states for name, states in counts.items() if name == queue}
        return await self.database.read(queries.count_jobs, queue)

    def _theirs(self, chosen: JobFilter) -> JobFilter:
        return chosen if self.tenant is None else msgspec.structs.replace(chosen, tenant=self.tenant)

    async def retry_dead(self, job_id: str, revival: interventions.Revival | None = None) -> Job:
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
        return accepted(await self.database.run(interventions.retry_dead, revival or interventions.Revival(job_id)))

    async def delete_dead(self, job_id: str) -> Job:
        """Delete a discarded job for good.

        Raises
        ------
        NotFound, Conflict
            There is no such job, or it is no dead letter.
        """
        await self._check_job(job_id)
        return accepted(await self.database.run(interventions.delete_dead, job_id))

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


def check_args(catalogue: Catalogue, job: NewJob, args: msgspec.Raw) -> tuple[str, ...]:
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


def _wrap(layer: EnqueueMiddleware, inner: Enqueue) -> Enqueue:
    async def wrapped(request: JobRequest) -> JobRequest:
        return await layer(request, inner)

    return wrapped


def _in_vain(jobs: Sequence[Job]) -> bool:
    """Whether a fetch should wait: there is no job, and there may be one."""
    return not jobs and not isinstance(jobs, Nobody)


def _never(jobs: Sequence[Job]) -> bool:
    """A fetch that does not wait takes what there is."""
    return False


def _has_arrived(call: asyncio.Future[Any]) -> bool:
    """Whether a call has its results, although its caller was interrupted."""
    return call.done() and not call.cancelled() and call.exception() is None
