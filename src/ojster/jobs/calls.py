"""Calls about the defaults of job types, as a service, a server and its client have them."""

from __future__ import annotations

from typing import Final

from ojster.core.access import ENQUEUE
from ojster.core.calls import Call, Calls, Deletion, Handled, Listing
from ojster.core.json_objects import Members
from ojster.jobs.job_type_wire import DeletedJobTypeAnswer, JobTypeAnswer, JobTypeBody, JobTypesAnswer
from ojster.jobs.job_types import JobTypeDefaults

_TAG: Final = "Job types"
_ONE: Final = "/job-types/{type}"


class JobTypeCalls(Calls):
    """Calls about the defaults of job types."""

    @Listing("GET", "/job-types", "list_job_types", _TAG, JobTypesAnswer)
    async def all(self) -> list[JobTypeDefaults]:
        """List the job types that have defaults, by type."""

    @Call("GET", _ONE, "show_one_job_type", _TAG, JobTypeAnswer)
    async def find(self, type: str) -> JobTypeDefaults:
        """Show the defaults of a job type."""

    @Handled("PUT", _ONE, "put_job_type", _TAG, JobTypeAnswer, body=JobTypeBody, needs=ENQUEUE)
    async def put(self, type: str, members: Members) -> JobTypeDefaults:
        """Set the defaults of a job type: members that its jobs have if their requests leave them out."""

    @Deletion("DELETE", _ONE, "delete_job_type", _TAG, DeletedJobTypeAnswer)
    async def delete(self, type: str) -> None:
        """Delete the defaults of a job type. Jobs that have them keep them."""
