"""Endpoints for cron jobs.

Spec: ojs-http-binding 13, ojs-cron
"""

from __future__ import annotations

from typing import Final

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import Members, read_members
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.jobs.answer_wire import JobAnswer
from ojster.jobs.job_json import to_json
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import CronSchedule
from ojster.schedules.wire import (
    CRON,
    CRON_PATCH,
    CronAnswer,
    CronBody,
    CronPatchBody,
    CronPreviewAnswer,
    CronsAnswer,
    DeletedCronAnswer,
    JobTemplateBody,
    RegisteredCronAnswer,
    show_cron,
)
from ojster.server.answer import Answer, UnchangedAnswer, encode
from ojster.server.pages import offset_page_of, offset_pagination, whole
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, ENQUEUE, PAGE, Route, location


async def list_crons(request: HttpRequest) -> Answer:
    """List the cron jobs by name; with ``enabled=true`` or ``enabled=false`` only the enabled or disabled ones."""
    limit, offset = offset_page_of(request.query)
    enabled = request.query.get("enabled")
    wanted = None if enabled is None else enabled == "true"
    crons, total = await request.service.schedules.page(wanted, limit, offset)
    shown = [show_cron(cron) for cron in crons]
    return Answer(encode(CronsAnswer(shown, shown, total, offset_pagination(total, limit, offset))))


async def register_cron(request: HttpRequest) -> Answer:
    """Register a cron job, or update the existing one with that name; with ``on_conflict: reject``, refuse that.

    The answer says whether the cron job is new, and whether it is new or has changed.
    """
    raw = await request.body()
    body = request.decode(raw, CRON)
    expression = body.expression or body.cron
    if not expression:
        raise InvalidRequest("The cron job has no 'expression'. Add one, such as '0 9 * * *'.", field="expression")
    CronSchedule(expression, body.timezone)
    done = await request.service.schedules.register(
        Cron(
            name=body.name,
            expression=expression,
            timezone=body.timezone,
            overlap_policy="cancel_previous" if body.overlap_policy == "cancel" else body.overlap_policy,
            enabled=body.enabled,
            description=body.description,
            template=_template(body, read_members(raw)),
        ),
        body.on_conflict,
    )
    shown = show_cron(done.cron)
    answered = Answer if done.is_changed else UnchangedAnswer
    return answered(
        encode(RegisteredCronAnswer(shown, shown, done.is_new, done.is_changed)),
        201 if done.is_new else 200,
        (location("cron", shown.name),),
    )


def _template(body: CronBody, members: Members) -> bytes:
    """Return the enqueue request for the jobs of a cron job, with the other members of its template."""
    job = body.job_template
    if job is None:
        if body.type is None:
            raise InvalidRequest("The cron job has neither 'type' nor 'job_template'. Add one.", field="type")
        job = JobTemplateBody(body.type, body.args, body.meta, body.options)
    options = dict(job.options)
    meta = dict(job.meta)
    if "meta" in options:
        meta |= read_members(options.pop("meta"), "options.meta")
    others = {} if body.job_template is None else read_members(members["job_template"], "job_template")
    return encode(others | {"type": job.type, "args": job.args, "meta": meta, "options": options})


async def show_one_cron(request: HttpRequest) -> Answer:
    """Show a cron job."""
    return Answer(_cron_answer(await request.service.schedules.find(request.path["name"])))


async def switch_cron(request: HttpRequest) -> Answer:
    """Enable or disable a cron job."""
    body = await request.read(CRON_PATCH)
    return Answer(_cron_answer(await request.service.schedules.switch(request.path["name"], body.enabled)))


async def trigger_cron(request: HttpRequest) -> Answer:
    """Enqueue the job of a cron job now, enabled or not; its next run stays as it is."""
    job = await request.service.schedules.trigger(request.path["name"])
    return Answer(b'{"job":%b}' % to_json(job), 201)


async def unregister_cron(request: HttpRequest) -> Answer:
    """Remove a cron job. The jobs that it has created remain."""
    cron = await request.service.schedules.unregister(request.path["name"])
    return Answer(encode(DeletedCronAnswer(called(cron.name), show_cron(cron))))


async def preview_cron(request: HttpRequest) -> Answer:
    """Show the next runs of an ``expression`` in a ``timezone`` (default UTC), at most ``count`` (default 5)."""
    query = request.query
    if not (expression := query.get("expression")):
        raise InvalidRequest("The parameter 'expression' is missing.", field="expression")
    schedule = CronSchedule(expression, query.get("timezone", "UTC"))
    runs: list[str] = []
    at: int | None = request.service.database.clock()
    for _ in range(min(whole(query, "count", 5, 1), MAX_PREVIEWED)):
        if at is None or (at := schedule.next_after(at)) is None:
            break
        runs.append(format_timestamp(at))
    return Answer(encode(CronPreviewAnswer(runs)))


def _cron_answer(cron: Cron) -> bytes:
    shown = show_cron(cron)
    return encode(CronAnswer(shown, shown))


_TAG: Final = "Cron jobs"

MAX_PREVIEWED: Final = 100
"""Maximum number of runs that a preview shows."""

ROUTES: Final = (
    Route(
        "GET",
        f"{BASE}/cron-preview",
        preview_cron,
        _TAG,
        answer=CronPreviewAnswer,
        query=("expression", "timezone", "count"),
    ),
    *(
        route
        for base in (f"{BASE}/cron", f"{BASE}/crons")  # the second is what the specification's admin interface asks for
        for route in (
            Route("GET", base, list_crons, _TAG, answer=CronsAnswer, query=("enabled", *PAGE)),
            Route(
                "POST",
                base,
                register_cron,
                _TAG,
                CronBody,
                RegisteredCronAnswer,
                status=201,
                more=(200,),
                configures=True,
                needs=ENQUEUE,
            ),
            Route("GET", f"{base}/{{name}}", show_one_cron, _TAG, answer=CronAnswer),
            Route("PATCH", f"{base}/{{name}}", switch_cron, _TAG, CronPatchBody, CronAnswer),
            Route(
                "POST",
                f"{base}/{{name}}/trigger",
                trigger_cron,
                _TAG,
                answer=JobAnswer,
                status=201,
                configures=True,
                needs=ENQUEUE,
            ),
            Route("DELETE", f"{base}/{{name}}", unregister_cron, _TAG, answer=DeletedCronAnswer),
        )
    ),
)
