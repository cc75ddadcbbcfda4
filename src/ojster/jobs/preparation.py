"""From enqueue requests to jobs that can be pushed: what is the same for all jobs of a request is looked up once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from ojster.core.job_flags import ANY_EVENT, REACTIONS
from ojster.core.json_objects import Members
from ojster.core.turns import LARGE_BYTES
from ojster.jobs import job_types, schemas
from ojster.jobs.authorship import sign
from ojster.jobs.code import ATTRIBUTE as CODE_ATTRIBUTE
from ojster.jobs.extension import Completer, hooks
from ojster.jobs.middleware import EnqueueMiddleware, MiddlewareChain, through_middleware
from ojster.jobs.models import (
    COPIES_PER_READ,
    COPIES_PER_TURN,
    FEWEST_COPIES,
    AlikeRequests,
    Copies,
    Model,
    Models,
    are_plain,
    known_bodies,
    recent_requests,
    shape_of,
)
from ojster.jobs.new_job import NewJob, Reach, check_envelope
from ojster.jobs.scope import Scope
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction

log = logging.getLogger(__name__)

_NULL: Final = msgspec.Raw(b"null")
_CHECKED: Final = frozenset({"type", CODE_ATTRIBUTE, REACTIONS})
"""Members of a job that ``Scope.check_contents`` looks at: its code, and what follows it."""


class Preparation:
    """Turns requests into jobs that can be pushed: what is the same for all jobs of a request is looked up once.

    Parameters
    ----------
    completers:
        What adds the defaults of job types, and applies the rules of queues, where there are any.
    catalogue:
        The registered schemas.
    of_many:
        Whether there are several requests, so that models pay.
    """

    def __init__(
        self,
        scope: Scope,
        middleware: MiddlewareChain[EnqueueMiddleware],
        completers: Sequence[Completer],
        catalogue: schemas.Catalogue,
        *,
        of_many: bool = True,
    ) -> None:
        self._scope = scope
        self._middleware = middleware
        self._completers = completers
        self.catalogue = catalogue
        self._now = scope.database.clock()
        self._recent = recent_requests.of(scope.database.memory)
        has_models = of_many and not (self.changes_requests or catalogue.by_type)
        self._checked: set[frozenset[tuple[str, bytes]]] = set()
        """The requests without their arguments whose reactions refer to what exists."""
        self._models = Models(self._now, scope.database.settings.largest_job) if has_models else None

    @property
    def changes_requests(self) -> bool:
        """Whether ``complete`` may change a request."""
        return bool(self._middleware or self._completers)

    async def jobs(self, requests: Iterable[Members]) -> list[NewJob]:
        """Return the jobs that requests describe. See ``job``."""
        if isinstance(requests, AlikeRequests) and (copies := await self._copies(requests)) is not None:
            return copies
        jobs: list[NewJob] = []
        left = COPIES_PER_TURN
        for members in requests:
            job = None if self._models is None else self._models.next_job(members)
            if job is None:
                job = await self.job(members)
                left -= COPIES_PER_READ
            jobs.append(job)
            left -= 1
            if left <= 0:
                left = COPIES_PER_TURN
                await asyncio.sleep(0)
        return jobs

    async def _copies(self, requests: AlikeRequests) -> Copies | None:
        """Return the jobs of many requests that are known to be alike; ``None``: look at each of them."""
        if self._models is None or len(requests) < FEWEST_COPIES:
            return None
        first = await self.job(requests[0])
        model = first.model if isinstance(first.model, Model) and not first.warnings else None
        if model is None or not model.fits(requests.args, self._scope.database.settings.largest_job):
            return None
        return Copies(first, model, requests.args)

    async def job(self, members: Members) -> NewJob:
        """Run the enqueue middleware over a request, and return the job that it describes.

        Raises
        ------
        InvalidRequest, InvalidPolicy, PayloadTooLarge
            The request is malformed.
        """
        if self._models is None:
            return await self._read(members)
        if (job := self._models.next_job(members)) is not None:
            return job
        shape = shape_of(members)
        if (job := self._models.job(shape, members)) is not None:
            return job
        request = dict(members)
        job = await self._read(members)
        job.model = self._models.keep(shape, job, request)
        return job

    async def _read(self, members: Members) -> NewJob:
        scope = self._scope
        brings_reactions = REACTIONS in members  # those of its type are an owner's
        if self.changes_requests:
            members = await self.complete(members)
        if scope.access is not None:
            scope.check_contents({name: members[name] for name in _CHECKED & members.keys()})
        others = ((name, bytes(raw)) for name, raw in members.items() if name != "args")
        alike = frozenset(others) if REACTIONS in members else None
        args = members.get("args", _NULL)
        uri = schemas.schema_uri(members) if members.get("schema", _NULL) != _NULL else None
        settings = scope.database.settings
        job = self._recent.read(
            members, self._now, largest=settings.largest_job, tenant=scope.tenant, otherwise=settings.default_tenant
        )
        scope.check_new(job.tenant, job.queue)
        if scope.access is not None:
            job.envelope = sign(job.envelope, scope.who)
            if job.unique is not None and (scope.access.queues or scope.cancels_only_own):
                job.reach = Reach(scope.access, scope.cancels_only_own)
            check_envelope(job.envelope, settings.largest_job)
            if brings_reactions and job.flags & ANY_EVENT:
                scope.access.need_all_queues("A reaction")
        if self.catalogue.by_type or uri is not None:
            job.warnings += schemas.check_args(self.catalogue, job, args, uri)
        if job.flags & ANY_EVENT and alike not in self._checked:
            await check_references(scope, job)
            if alike is not None:
                self._checked.add(alike)
        return job

    async def complete(self, members: Members) -> Members:
        """Run the enqueue middleware on a job, add the defaults of its type, and apply the rules of its queue."""
        if self._middleware:
            members = await through_middleware(self._middleware, members)
        for complete in self._completers:
            members = complete(members)
        return members


class _LookUps(NamedTuple):
    """What preparations look up, and the version of the database's memory with which it counts."""

    version: int
    completers: Sequence[Completer]
    catalogue: schemas.Catalogue


class Preparations:
    """The preparations of one caller: what they look up is kept until an operator changes something."""

    def __init__(self, scope: Scope, middleware: MiddlewareChain[EnqueueMiddleware]) -> None:
        self._scope = scope
        self._middleware = middleware
        self._memory = scope.database.memory
        self._recent = recent_requests.of(self._memory)
        self._bodies = known_bodies.of(self._memory)
        self._looked_up: _LookUps | None = None
        self._plain_version: int | None = None
        """The version of the memory with which nothing completes a request or checks its arguments."""

    @property
    def _is_plain(self) -> bool:
        """Whether nothing completes a request or checks its arguments, as far as is known."""
        return self._plain_version == self._memory.version and not self._middleware

    async def begin(self, *, of_many: bool = True) -> Preparation:
        """Return a preparation; ``of_many``: whether it may be of several requests."""
        known = self._looked_up
        if known is None or known.version != self._memory.version:
            known = self._looked_up = await self._look_up()
            is_plain = self._scope.access is None and not (known.completers or known.catalogue.by_type)
            self._plain_version = known.version if is_plain else None
        return Preparation(self._scope, self._middleware, known.completers, known.catalogue, of_many=of_many)

    async def _look_up(self) -> _LookUps:
        scope, database, version = self._scope, self._scope.database, self._memory.version
        catalogue = await database.remembered(schemas.registered)
        completers: list[Completer | None] = []
        if defaults := await database.remembered(job_types.defaults_by_type):
            otherwise = database.settings.default_tenant
            completers.append(lambda members: job_types.with_defaults(defaults, members, scope.tenant, otherwise))
        completers += [await completer(scope) for completer in hooks.of(self._memory).completer]
        return _LookUps(version, list(filter(None, completers)), catalogue)

    def copy(self, members: Members) -> NewJob | None:
        """Return the job of a request that only has other arguments than a recent one, and consume it.

        ``None``: it must be prepared, as ``Preparation.job`` does, which gives the same job.
        """
        if not self._is_plain:
            return None
        scope = self._scope
        settings = scope.database.settings
        job = self._recent.copy(
            members, largest=settings.largest_job, tenant=scope.tenant, otherwise=settings.default_tenant
        )
        if job is not None:
            scope.check_new(job.tenant, job.queue)
        return job

    def copy_of_body(self, body: bytes) -> NewJob | None:
        """Return what ``copy`` does for the request in a body, if that is like a recent one; ``None``: read it."""
        if len(body) >= LARGE_BYTES or not self._is_plain:  # a large one is read beside the event loop
            return None
        model, args = self._bodies.find(body, self._scope.tenant) or (None, b"")
        if model is None or not are_plain(args):
            return None
        job = model.checked(model.with_others(args, b""), args, self._scope.database.settings.largest_job)
        self._scope.check_new(job.tenant, job.queue)
        return job

    def remember_body(self, body: bytes, args: bytes, job: NewJob) -> NewJob:
        """Remember a body with these arguments that was read; return the job that it has become."""
        if self._is_plain and isinstance(job.model, Model):
            self._bodies.remember(body, args, self._scope.tenant, job.model)
        return job


def log_warnings(jobs: Iterable[NewJob]) -> None:
    """Log what looks like a mistake in the requests of jobs that were pushed."""
    for job in jobs:
        for warning in job.warnings:
            log.warning("the job %s: %s", job.id, warning)


async def check_references(scope: Scope, job: NewJob) -> None:
    """Check what the reactions of a job refer to, such as channels.

    Raises
    ------
    InvalidRequest, Forbidden
        It does not exist, or the caller may not use it.
    """
    await scope.look(find_missing, job)


@for_each
@returns_refusal
def find_missing(tx: Transaction, job: NewJob) -> None:
    """Return the refusal of each job whose reactions refer to what does not exist, or ``None``."""
    for check in hooks.of(tx.memory).check:
        check(tx, job)
