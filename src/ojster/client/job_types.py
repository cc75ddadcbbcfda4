"""Calls about the defaults of job types, made to a server."""

from __future__ import annotations

from urllib.parse import quote

from ojster.client.connection import RemoteCapability
from ojster.core.json_objects import Members
from ojster.jobs.job_type_wire import JobTypeAnswer, JobTypesAnswer, read_job_type
from ojster.jobs.job_types import JobTypeDefaults


class RemoteJobTypes(RemoteCapability):
    """Calls about the defaults of job types."""

    async def put(self, type: str, members: Members) -> JobTypeDefaults:
        """Set the defaults of a job type."""
        return read_job_type((await self._connection.ask(JobTypeAnswer, "PUT", _path(type), members)).job_type)

    async def find(self, type: str) -> JobTypeDefaults:
        """Return the defaults of a job type."""
        return read_job_type((await self._connection.ask(JobTypeAnswer, "GET", _path(type))).job_type)

    async def all(self) -> list[JobTypeDefaults]:
        """Return the defaults of all job types that have some."""
        found: list[JobTypeDefaults] = []
        while True:
            answer = await self._connection.ask(JobTypesAnswer, "GET", f"/job-types?limit=200&offset={len(found)}")
            found += [read_job_type(shown) for shown in answer.job_types]
            if not answer.pagination.has_more:
                return found

    async def delete(self, type: str) -> None:
        """Delete the defaults of a job type."""
        await self._connection.call("DELETE", _path(type))


def _path(type: str) -> str:
    return f"/job-types/{quote(type, safe='')}"
