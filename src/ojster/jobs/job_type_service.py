"""Calls about the defaults of job types, and the signatures of their handlers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ojster.core.json_objects import Members
from ojster.core.tenant import NOBODY, called, split
from ojster.jobs import job_types
from ojster.jobs.calls import JobTypeCalls
from ojster.jobs.job_types import JobTypeDefaults
from ojster.jobs.preparation import check_references
from ojster.jobs.scope import CapabilityService
from ojster.jobs.signatures import Signature, announce, list_signatures, read_announcement


class JobTypeService(CapabilityService, JobTypeCalls):
    """Calls about the defaults of job types, and the signatures of their handlers."""

    async def put(self, type: str, members: Members) -> JobTypeDefaults:
        """Set the defaults of a job type, which replace earlier ones.

        Raises
        ------
        InvalidRequest
            A member is malformed, or concerns a single job.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("Setting defaults of a job type")
        self.scope.check_contents({name: raw for name, raw in members.items() if name != "type"})
        item, job = job_types.read_defaults(type, members, largest=self.database.settings.largest_job)
        job.tenant = self.scope.tenant or ""
        if job.flags:
            await check_references(self.scope, job)
        item = msgspec.structs.replace(item, type=self.scope.named(item.type))
        return _for_its_tenant(await self.database.run(job_types.put_defaults, item))

    async def find(self, type: str) -> JobTypeDefaults:
        """Return the defaults of a job type.

        Raises
        ------
        NotFound
            It has none.
        """
        for defaults in await self.all():
            if defaults.type == type:
                return defaults
        raise job_types.no_defaults(type)

    async def all(self) -> list[JobTypeDefaults]:
        """Return the defaults of all job types that have some, by type."""
        defaults = await self.database.read(job_types.list_defaults, None)
        return [_for_its_tenant(of_type) for of_type in defaults if self.scope.sees(split(of_type.type)[0])]

    async def delete(self, type: str) -> None:
        """Delete the defaults of a job type. Jobs that have them keep them.

        Raises
        ------
        NotFound
            It has none.
        """
        self.scope.need_all_queues("Setting defaults of a job type")
        await self.scope.do(job_types.delete_defaults, self.scope.named(type))

    async def announce(self, signatures: Sequence[Signature]) -> int:
        """Announce the arguments of job types, which replaces what was announced of them; return their number.

        Parameters
        ----------
        signatures:
            The arguments of each type; ``announced_at`` is set by the server.

        Raises
        ------
        InvalidRequest
            There are too many, a type is malformed, or a schema is too large.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("Announcing signatures of job types")
        return await self.database.run(announce, read_announcement(self.scope.tenant, signatures))

    async def signatures(self, type: str | None = None) -> list[Signature]:
        """Return the arguments of job types by type, as the workers of the tenant, or of all tenants, announce them.

        Parameters
        ----------
        type:
            The only type; by default all.
        """
        return await self.database.read(list_signatures, (self.scope.tenant or NOBODY, type))


def _for_its_tenant(defaults: JobTypeDefaults) -> JobTypeDefaults:
    return msgspec.structs.replace(defaults, type=called(defaults.type))
