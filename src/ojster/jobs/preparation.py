"""From enqueue requests to jobs that can be pushed: what is the same for all jobs of a request is looked up once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Final

import msgspec

from ojster.core.ids import new_id
from ojster.core.json_objects import Members
from ojster.core.reacts import ANY_EVENT
from ojster.events.reaction_rules import ATTRIBUTE as REACTIONS
from ojster.jobs import schemas
from ojster.jobs.authorship import sign
from ojster.jobs.code import ATTRIBUTE as CODE_ATTRIBUTE
from ojster.jobs.extension import Completer, life
from ojster.jobs.middleware import EnqueueMiddleware, through_middleware
from ojster.jobs.new_job import MARK, NewJob, check_size, read_job
from ojster.jobs.scope import Scope

_NULL: Final = msgspec.Raw(b"null")
_MAY_CARRY_CODE: Final = frozenset({"type", CODE_ATTRIBUTE, REACTIONS})
"""Members of a job that say whether it, or a job that follows it, carries code."""

_PLAIN: Final = frozenset({"type", "args", "meta", "options"})
"""The members of a plain request."""


class Model:
    """A job from which others are made that differ in their arguments alone, without reading the rest of them again.

    Parameters
    ----------
    shape:
        What requests for such jobs have in common: see ``shape_of``.
    job, args:
        The first one, and its arguments, as JSON.
    """

    __slots__ = ("_after_args", "_after_id", "_before_id", "_job", "_shape")

    def __init__(self, shape: Sequence[msgspec.Raw | None], job: NewJob, args: bytes) -> None:
        self._shape = shape
        self._job = job
        self._before_id, rest = job.envelope.split(job.id.encode(), 1)
        self._after_id, self._after_args = rest.split(args, 1)

    def job(self, members: Members, largest: int) -> NewJob | None:
        """Return the job that a request describes; ``None``: it must be read.

        Raises
        ------
        PayloadTooLarge
            The job is larger than ``largest`` bytes.
        """
        args = bytes(members.get("args", b""))
        if shape_of(members) != self._shape or args[:1] != b"[" or MARK in args:
            return None
        job = copy(self._job)
        job.id = new_id()
        job.envelope = b"%b%b%b%b%b" % (self._before_id, job.id.encode(), self._after_id, args, self._after_args)
        check_size(job.envelope, largest)
        return job


def shape_of(members: Members) -> Sequence[msgspec.Raw | None] | None:
    """Return what plain requests have in common if they differ in their arguments alone; ``None``: it is not plain."""
    if not members.keys() <= _PLAIN:
        return None
    return members.get("type"), members.get("meta"), members.get("options")


def _depends_on_args(job: NewJob) -> bool:
    return job.unique is not None or job.limit is not None or bool(job.reacts) or job.wait is not None


class Preparation:
    """Turns requests into jobs that can be pushed: what is the same for all jobs of a request is looked up once.

    Parameters
    ----------
    completers:
        What adds the defaults of job types, and applies the rules of queues, where there are any.
    catalogue:
        The registered schemas.
    """

    def __init__(
        self,
        scope: Scope,
        middleware: Sequence[EnqueueMiddleware],
        completers: Sequence[Completer],
        catalogue: schemas.Catalogue,
    ) -> None:
        self._scope = scope
        self._middleware = middleware
        self._completers = completers
        self.catalogue = catalogue
        self._now = scope.database.clock()
        self._model: Model | None = None
        self._may_use_model = not (self.changes_requests or catalogue.by_type)

    @property
    def changes_requests(self) -> bool:
        """Whether ``complete`` may change a request."""
        return bool(self._middleware or self._completers)

    async def job(self, members: Members) -> NewJob:
        """Run the enqueue middleware over a request, and return the job that it describes.

        Raises
        ------
        InvalidRequest, InvalidPolicy, PayloadTooLarge
            The request is malformed.
        """
        largest = self._scope.database.settings.largest_job
        if self._model is not None and (job := self._model.job(members, largest)) is not None:
            return job
        shape = shape_of(members) if self._may_use_model else None
        args = bytes(members.get("args", _NULL))
        job = await self._read(members)
        if shape is not None and not _depends_on_args(job):
            self._model = Model(shape, job, args)
        return job

    async def _read(self, members: Members) -> NewJob:
        scope = self._scope
        brings_reactions = REACTIONS in members  # those of its type are an owner's
        if self.changes_requests:
            members = await self.complete(members)
        if scope.access is not None:
            scope.check_code({name: members[name] for name in _MAY_CARRY_CODE & members.keys()})
        args = members.get("args", _NULL)
        uri = schemas.schema_uri(members) if "schema" in members else None
        settings = scope.database.settings
        job = read_job(
            members, self._now, largest=settings.largest_job, tenant=scope.tenant, otherwise=settings.default_tenant
        )
        scope.check_new(job.tenant, job.queue)
        if scope.access is not None:
            job.envelope = sign(job.envelope, scope.who)
            if brings_reactions and job.reacts & ANY_EVENT:
                scope.access.need_all_queues("A reaction")
        if self.catalogue.by_type or uri is not None:
            job.warnings = schemas.check_args(self.catalogue, job, args, uri)
        if job.reacts & ANY_EVENT:
            await check_references(scope, job)
        return job

    async def complete(self, members: Members) -> Members:
        """Run the enqueue middleware on a job, add the defaults of its type, and apply the rules of its queue."""
        if self._middleware:
            members = await through_middleware(self._middleware, members)
        for complete in self._completers:
            members = complete(members)
        return members


async def check_references(scope: Scope, job: NewJob) -> None:
    """Check what the reactions of a job refer to, such as channels.

    Raises
    ------
    InvalidRequest, Forbidden
        It does not exist, or the caller may not use it.
    """
    for check in life.of(scope.database.memory).check:
        await check(scope, job)
