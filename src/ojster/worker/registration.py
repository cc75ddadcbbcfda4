"""Registration of what an application declares, by its workers, and the deregistration of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from ojster.client.interface import Client
from ojster.core.errors import Forbidden, NotFound, OjsterError
from ojster.core.json_objects import Members
from ojster.core.tenant import called
from ojster.handlers.codec import CodecError, Codecs
from ojster.handlers.register import HandlerRegister
from ojster.handlers.signature_schema import signatures_of
from ojster.jobs.names import DEFAULT_QUEUE, check_queue_name
from ojster.jobs.signatures import MAX_SIGNATURES
from ojster.schedules.cron import Cron
from ojster.worker.backoff import UNREACHABLE, Backoff
from ojster.worker.outbox import LAST_REPORT_SECONDS
from ojster.workflows.orchestrator_request import ORCHESTRATE_TYPE

log = logging.getLogger(__name__)


class NoHandlers(Exception):
    """A worker was started that has no handlers, and would get no job."""


def named_queues(app: HandlerRegister, queues: Sequence[str] | None = None) -> list[str]:
    """Return the queues of a worker: those that it names, or ``default`` and then all that its handlers name.

    Raises
    ------
    ValueError
        It names none.
    InvalidRequest
        A name is malformed.
    """
    if queues is not None:
        if not queues:
            raise ValueError("'queues' is empty. Name at least one queue, or leave it out for all that handlers name.")
        return [check_queue_name(queue) for queue in queues]
    handlers = [handler for type, handler in app.handlers.items() if type != ORCHESTRATE_TYPE]
    others = {handler.options.queue for handler in handlers if handler.options.queue is not None} - {DEFAULT_QUEUE}
    return [DEFAULT_QUEUE, *sorted(others)]


async def register(client: Client, app: HandlerRegister) -> None:
    """Register what an application declares; what the server rejects is logged."""
    try:
        for type, declared in app.handlers.items():
            if members := declared.defaults():
                await _insist(partial(_put_defaults, client, type, members), f"the defaults of the job type {type}")
    except Forbidden as refusal:
        log.info("jobs that others enqueue do not get the options that this application declares: %s", refusal)
    await _announce(client, app)
    for cron in () if app.is_eager else app.crons:  # nothing would wait for their time
        try:
            await _insist(partial(_register_cron, client, app, cron), f"the cron job {cron.name}")
        except Forbidden as refusal:
            log.error("the server rejected the cron job %s: %s", cron.name, refusal)
    try:
        await _tell_of_leftovers(client, app)
    except OjsterError as error:
        log.debug("cannot look for what an earlier version of the application has declared: %s", error)


async def _announce(client: Client, app: HandlerRegister) -> None:
    """Announce the arguments of the job types. Only forms need them: what the server rejects matters little."""
    handlers = [declared for type, declared in app.handlers.items() if type != ORCHESTRATE_TYPE]
    if announced := signatures_of(handlers[:MAX_SIGNATURES]):
        try:
            await _insist(partial(client.job_types.announce, announced), "the signatures of the handlers")
        except Forbidden as refusal:
            log.info("forms for new jobs do not know the arguments of this application's handlers: %s", refusal)


async def _tell_of_leftovers(client: Client, app: HandlerRegister) -> None:
    """Log what is stored for the application's job types and what it does not declare: an earlier version may have.

    It stays in force, because somebody else may have wanted it.
    """
    for registered in await client.job_types.all():
        handler = app.handlers.get(registered.type)
        if handler is not None and not handler.defaults():
            log.warning(
                "jobs of the type %s have options that this application does not declare: `ojster job-types show %s` "
                "shows them; if nobody wants them, `ojster job-types delete %s` removes them",
                *(registered.type,) * 3,
            )
    for cron in await leftover_crons(client, app):
        if cron.enabled:
            log.warning(
                "the cron job %s starts %s, but is not declared here: if nobody wants it, `ojster cron remove %s`, or "
                "`ojster cron prune` for all like it",
                called(cron.name),
                cron.starts,
                called(cron.name),
            )


async def leftover_crons(client: Client, app: HandlerRegister) -> list[Cron]:
    """Return the cron jobs that start jobs or flows of an application, which does not declare them."""
    declared = {cron.name for cron in app.crons}
    crons = await client.schedules.all()
    return [cron for cron in crons if called(cron.name) not in declared and cron.job_type in app.handlers]


async def _insist(call: Callable[[], Awaitable[object]], what: str) -> None:
    """Call until the server can be reached."""
    backoff = Backoff()
    while True:
        try:
            await call()
            return
        except UNREACHABLE as error:
            level = logging.DEBUG if backoff.is_longest else logging.WARNING
            log.log(level, "cannot register %s, trying again in %.1f s: %s", what, backoff.seconds, error)
            await backoff.wait()
        except Forbidden:
            raise
        except OjsterError as error:
            log.error("the server rejected %s: %s", what, error)
            return


async def _put_defaults(client: Client, type: str, members: Members) -> None:
    for warning in (await client.job_types.put(type, members)).warnings:
        log.warning("the defaults of the job type %s: %s", type, warning)


async def _register_cron(client: Client, app: HandlerRegister, cron: Cron) -> None:
    """Register a cron job, disabled if an operator has disabled it."""
    try:
        known = await client.schedules.find(cron.name)
    except NotFound:
        pass
    else:
        cron = msgspec.structs.replace(cron, enabled=known.enabled)
        if app.codecs and _decoded(app, known) == _decoded(app, cron):  # encrypted again, it would count as changed
            cron = msgspec.structs.replace(cron, template=known.template, workflow=known.workflow)
    for warning in (await client.schedules.register(cron)).warnings:
        log.warning("the cron job %s: %s", cron.name, warning)


def _decoded(app: HandlerRegister, cron: Cron) -> Any:
    """Return what a cron job starts, as it is without codecs; as it is stored if this application cannot decode it."""
    starts = msgspec.json.decode(cron.workflow or cron.template)
    try:
        return _without_codecs(app.codecs, starts)
    except CodecError:
        return starts


def _without_codecs(codecs: Codecs, value: Any) -> Any:
    match value:
        case dict():
            plain = {name: _without_codecs(codecs, member) for name, member in value.items()}
            is_job = isinstance(value.get("args"), list)
            return plain | {"args": codecs.decode(value["args"], value.get("meta") or {})} if is_job else plain
        case list():
            return [_without_codecs(codecs, element) for element in value]
    return value


async def deregister(client: Client, worker_id: str, still_running: int) -> None:
    """Deregister a worker that has ended, which hands back all that it holds, unless handlers still run.

    Their jobs would run twice at the same time: they count as lost when the process has ended.
    """
    if still_running:
        log.warning("%d handlers did not stop in time; their jobs count as lost when the leases expire", still_running)
        return
    try:
        await asyncio.wait_for(client.fleet.leave(worker_id), LAST_REPORT_SECONDS)
    except (OjsterError, TimeoutError) as error:
        log.warning("cannot deregister the worker: %s", str(error) or "no answer")
