"""Endpoints for the defaults of job types."""

from __future__ import annotations

from typing import Final

from ojster.core.json_objects import read_members
from ojster.jobs.job_type_wire import (
    JOB_TYPE,
    DeletedJobTypeAnswer,
    JobTypeAnswer,
    JobTypeBody,
    JobTypesAnswer,
    show_job_type,
)
from ojster.server.answer import Answer, encode
from ojster.server.pages import offset_page_of, offset_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, ENQUEUE, PAGE, Route


async def list_job_types(request: HttpRequest) -> Answer:
    """List the job types that have defaults, by type."""
    limit, offset = offset_page_of(request.query)
    found = await request.service.job_types.all()
    shown = [show_job_type(one) for one in found[offset : offset + limit]]
    return Answer(encode(JobTypesAnswer(shown, offset_pagination(len(found), limit, offset))))


async def show_one_job_type(request: HttpRequest) -> Answer:
    """Show the defaults of a job type."""
    return Answer(encode(JobTypeAnswer(show_job_type(await request.service.job_types.find(request.path["type"])))))


async def put_job_type(request: HttpRequest) -> Answer:
    """Set the defaults of a job type: members that its jobs have if their requests leave them out."""
    raw = await request.body()
    request.decode(raw, JOB_TYPE)
    one = await request.service.job_types.put(request.path["type"], read_members(raw))
    return Answer(encode(JobTypeAnswer(show_job_type(one))))


async def delete_job_type(request: HttpRequest) -> Answer:
    """Delete the defaults of a job type. Jobs that have them keep them."""
    await request.service.job_types.delete(request.path["type"])
    return Answer(encode(DeletedJobTypeAnswer(request.path["type"])))


_PATH: Final = f"{BASE}/job-types"
_TAG: Final = "Job types"

ROUTES: Final = (
    Route("GET", _PATH, list_job_types, _TAG, answer=JobTypesAnswer, query=PAGE),
    Route("GET", f"{_PATH}/{{type}}", show_one_job_type, _TAG, answer=JobTypeAnswer),
    Route("PUT", f"{_PATH}/{{type}}", put_job_type, _TAG, JobTypeBody, JobTypeAnswer, needs=ENQUEUE),
    Route("DELETE", f"{_PATH}/{{type}}", delete_job_type, _TAG, answer=DeletedJobTypeAnswer),
)
