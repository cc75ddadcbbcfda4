"""What does the conformance suite want that nobody else does? Two hooks, on the ordinary extension points.

``options.metadata.test_directive`` of a job becomes the directive of the worker that holds it, and a job whose ``meta``
has ``ojs_validate`` is refused by an enqueue middleware.
"""

from __future__ import annotations

from ojster.engine.engine import Engine, Enqueue, JobRequest
from ojster.engine.workers import Heartbeat, Pulse
from ojster.model.errors import InvalidPolicy
from ojster.model.ids import new_id


def install(engine: Engine) -> None:
    """Add the hooks to an engine."""
    directives: dict[str, str] = {}

    async def note_directive(request: JobRequest, enqueue: Enqueue) -> JobRequest:
        options = request.get("options")
        metadata = options.get("metadata") if isinstance(options, dict) else None
        directive = metadata.get("test_directive") if isinstance(metadata, dict) else None
        if isinstance(directive, str):
            request.setdefault("id", new_id())
            directives[request["id"]] = directive
        return await enqueue(request)

    async def refuse_marked(request: JobRequest, enqueue: Enqueue) -> JobRequest:
        meta = request.get("meta")
        if isinstance(meta, dict) and meta.get("ojs_validate") is True:
            raise InvalidPolicy("The job is marked to be refused.", field="meta.ojs_validate")
        return await enqueue(request)

    def direct(heartbeat: Heartbeat, pulse: Pulse) -> str | None:
        return next((directives[id] for id in heartbeat.active_jobs if id in directives), None)

    engine.middleware += [note_directive, refuse_marked]
    engine.directives.append(direct)
