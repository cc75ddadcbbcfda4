"""Endpoints for the defaults of job types."""

from __future__ import annotations

from typing import Final

from ojster.core.json_objects import read_members
from ojster.jobs.calls import JobTypeCalls
from ojster.jobs.job_type_wire import JOB_TYPE, JobTypeAnswer
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.request import HttpRequest


async def _put(request: HttpRequest) -> Answer:
    raw = await request.body()
    request.decode(raw, JOB_TYPE)
    defaults = await request.service.job_types.put(request.path["type"], read_members(raw))
    return Answer(encode(JobTypeAnswer.of(defaults)))


ROUTES: Final = endpoints_of(JobTypeCalls, lambda service: service.job_types, {JobTypeCalls.put: _put})
