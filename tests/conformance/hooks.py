"""Hooks that only the conformance suite needs, installed through the ordinary extension points.

An enqueue middleware copies ``options.metadata.test_directive`` to the job's ``meta``, so that every server can read
it; the worker that runs the job receives it as the directive of its next heartbeat. A second middleware rejects a job
with ``ojs_validate: true`` in its ``meta``.
"""

from __future__ import annotations

from ojster.core.errors import InvalidPolicy
from ojster.core.job import Job
from ojster.fleet.workers import Heartbeat, HeartbeatResponse
from ojster.jobs.middleware import EnqueueFunction, JobRequest
from ojster.jobs.queries import find
from ojster.service import Service

_DIRECTIVE = "test_directive"


def install(service: Service) -> None:
    """Add the hooks to a service."""

    async def note_directive(request: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
        options = request.get("options")
        metadata = options.get("metadata") if isinstance(options, dict) else None
        directive = metadata.get("test_directive") if isinstance(metadata, dict) else None
        if isinstance(directive, str):
            request["meta"] = {**(request.get("meta") or {}), _DIRECTIVE: directive}
        return await enqueue(request)

    async def refuse_marked(request: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
        meta = request.get("meta")
        if isinstance(meta, dict) and meta.get("ojs_validate") is True:
            raise InvalidPolicy("The job has 'ojs_validate' in its meta. Remove it.", field="meta.ojs_validate")
        return await enqueue(request)

    async def direct(heartbeat: Heartbeat, pulse: HeartbeatResponse) -> str | None:
        requests = [(id, None, True) for id in heartbeat.active_jobs]
        jobs = await service.database.read_many(find, requests) if requests else ()
        found = (job.meta.get(_DIRECTIVE) for job in jobs if isinstance(job, Job))
        return next((str(directive) for directive in found if directive), None)

    service.middleware += [note_directive, refuse_marked]
    service.directives.append(direct)
