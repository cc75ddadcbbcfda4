"""What does the conformance suite want that nobody else does? Two hooks, on the ordinary extension points.

``options.metadata.test_directive`` of a job becomes the directive of the worker that holds it (it is kept in the job's
``meta``, so that any server knows it), and a job whose ``meta`` has ``ojs_validate`` is refused by an enqueue
middleware.
"""

from __future__ import annotations

from ojster.core.errors import InvalidPolicy
from ojster.fleet.workers import Heartbeat, Pulse
from ojster.jobs.queries import find
from ojster.scope import Enqueue, JobRequest
from ojster.service import Engine

_DIRECTIVE = "test_directive"


def install(engine: Engine) -> None:
    """Add the hooks to an engine."""

    async def note_directive(request: JobRequest, enqueue: Enqueue) -> JobRequest:
        options = request.get("options")
        metadata = options.get("metadata") if isinstance(options, dict) else None
        directive = metadata.get("test_directive") if isinstance(metadata, dict) else None
        if isinstance(directive, str):
            request["meta"] = {**(request.get("meta") or {}), _DIRECTIVE: directive}
        return await enqueue(request)

    async def refuse_marked(request: JobRequest, enqueue: Enqueue) -> JobRequest:
        meta = request.get("meta")
        if isinstance(meta, dict) and meta.get("ojs_validate") is True:
            raise InvalidPolicy("The job is marked to be refused.", field="meta.ojs_validate")
        return await enqueue(request)

    async def direct(heartbeat: Heartbeat, pulse: Pulse) -> str | None:
        jobs = await engine.database.read_many(find, heartbeat.active_jobs) if heartbeat.active_jobs else ()
        found = (job.meta.get(_DIRECTIVE) for job in jobs if job is not None)
        return next((str(directive) for directive in found if directive), None)

    engine.middleware += [note_directive, refuse_marked]
    engine.directives.append(direct)
