"""Endpoints for cron jobs.

Spec: ojs-http-binding 13, ojs-cron
"""

from __future__ import annotations

from typing import Any, Final

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import Members, read_members
from ojster.core.tenant import called, shown_tenant, split
from ojster.core.timestamps import format_timestamp
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import CronSchedule
from ojster.schedules.wire import CRON, CRON_PATCH, CronBody, CronPatchBody, JobTemplateBody
from ojster.server.pages import page_of, pagination
from ojster.server.request import Answer, HttpRequest, encode
from ojster.server.route import BASE, PAGE, Route


async def list_crons(exchange: HttpRequest) -> Answer:
    """List the cron jobs by name; with ``enabled=true`` or ``enabled=false`` only the enabled or disabled ones."""
    limit, offset, _ = page_of(exchange.query)
    crons = await exchange.engine.schedules.all()
    if (enabled := exchange.query.get("enabled")) is not None:
        crons = [cron for cron in crons if cron.enabled == (enabled == "true")]
    after = offset + limit
    shown = [_cron(cron) for cron in crons[offset:after]]
    page = pagination(len(crons), limit, offset, None) | {"has_more": after < len(crons)}
    return Answer(encode({"crons": shown, "cron_jobs": shown, "count": len(crons), "pagination": page}))


async def register_cron(exchange: HttpRequest) -> Answer:
    """Register a cron job, or update the existing one with that name."""
    raw = await exchange.body()
    body = exchange.decode(raw, CRON)
    expression = body.expression or body.cron
    if not expression:
        raise InvalidRequest("The cron job has no 'expression'. Add one, such as '0 9 * * *'.", field="expression")
    CronSchedule(expression, body.timezone)
    cron, is_new = await exchange.engine.schedules.register(
        Cron(
            name=body.name,
            expression=expression,
            timezone=body.timezone,
            overlap_policy=body.overlap_policy,
            enabled=body.enabled,
            description=body.description,
            template=_template(body, read_members(raw)),
        )
    )
    location = (b"location", f"/ojs/v1/cron/{called(cron.name)}".encode())
    return Answer(_cron_answer(cron), 201 if is_new else 200, (location,))


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


async def show_cron(exchange: HttpRequest) -> Answer:
    """Show a cron job."""
    return Answer(_cron_answer(await exchange.engine.schedules.find(exchange.path["name"])))


async def switch_cron(exchange: HttpRequest) -> Answer:
    """Enable or disable a cron job."""
    body = await exchange.read(CRON_PATCH)
    return Answer(_cron_answer(await exchange.engine.schedules.switch(exchange.path["name"], body.enabled)))


async def unregister_cron(exchange: HttpRequest) -> Answer:
    """Remove a cron job. The jobs that it has created remain."""
    cron = await exchange.engine.schedules.unregister(exchange.path["name"])
    return Answer(encode({"deleted": True, "name": called(cron.name), "cron": _cron(cron)}))


def _cron_answer(cron: Cron) -> bytes:
    shown = _cron(cron)
    return encode({"cron": shown, "cron_job": shown})


def _cron(cron: Cron) -> dict[str, Any]:
    template: Members = read_members(cron.template, "The template")

    def moment(at: int | None) -> str | None:
        return None if at is None else format_timestamp(at)

    return {
        "name": called(cron.name),
        "tenant_id": shown_tenant(split(cron.name)[0]),
        "expression": cron.expression,
        "cron": cron.expression,
        "timezone": cron.timezone,
        "overlap_policy": cron.overlap_policy,
        "enabled": cron.enabled,
        "status": "active" if cron.enabled else "disabled",
        "description": cron.description,
        **template,
        "job_template": template,
        "created_at": moment(cron.created_at),
        "last_run_at": moment(cron.last_run_at),
        "next_run_at": moment(cron.next_run_at),
        "run_count": cron.run_count,
    }


ROUTES: Final = (
    Route("GET", f"{BASE}/cron", list_crons, "Cron jobs", query=("enabled", *PAGE)),
    Route("POST", f"{BASE}/cron", register_cron, "Cron jobs", CronBody, status=201),
    Route("GET", f"{BASE}/cron/{{name}}", show_cron, "Cron jobs"),
    Route("PATCH", f"{BASE}/cron/{{name}}", switch_cron, "Cron jobs", CronPatchBody),
    Route("DELETE", f"{BASE}/cron/{{name}}", unregister_cron, "Cron jobs"),
)
