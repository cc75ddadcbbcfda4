"""Calls about the defaults of job types, made to a server."""

from __future__ import annotations

from urllib.parse import quote

from ojster.client.connection import RemoteCapability
from ojster.core.json_objects import Members
from ojster.jobs.calls import JobTypeCalls
from ojster.jobs.job_type_wire import JobTypeAnswer
from ojster.jobs.job_types import JobTypeDefaults


class RemoteJobTypes(RemoteCapability, JobTypeCalls):
    """Calls about the defaults of job types."""

    async def put(self, type: str, members: Members) -> JobTypeDefaults:
        """Set the defaults of a job type."""
        path = f"/job-types/{quote(type, safe='')}"
        return (await self._connection.ask(JobTypeAnswer, "PUT", path, members)).value()
