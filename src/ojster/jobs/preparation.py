"""From requests to jobs that can be pushed: middleware, defaults of types, rules of queues, rights of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.json_objects import Members
from ojster.core.reacts import ANY_EVENT
from ojster.events.reaction_rules import ATTRIBUTE as REACTIONS
from ojster.jobs import schemas
from ojster.jobs.authorship import sign
from ojster.jobs.code import ATTRIBUTE as CODE_ATTRIBUTE
from ojster.jobs.extension import Completer, life
from ojster.jobs.middleware import EnqueueMiddleware, through_middleware
from ojster.jobs.new_job import NewJob, read_job
from ojster.jobs.scope import Scope

_NULL: Final = msgspec.Raw(b"null")
_MAY_CARRY_CODE: Final = frozenset({"type", CODE_ATTRIBUTE, REACTIONS})
"""Members of a job that say whether it, or a job that follows it, carries code."""


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
