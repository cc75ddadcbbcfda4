"""Endpoints for cron jobs.

Spec: ojs-http-binding 13, ojs-cron
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import Members, is_same_json, read_members
from ojster.jobs.options import DEFAULT_OPTIONS
from ojster.jobs.options_wire import AT_TOP, read_options
from ojster.schedules.calls import ScheduleCalls
from ojster.schedules.cron import Cron
from ojster.schedules.cron_expression import CronSchedule
from ojster.schedules.wire import (
    CRON,
    CronBody,
    CronInfo,
    CronsAnswer,
    JobTemplateBody,
    RegisteredCronAnswer,
    show_cron,
)
from ojster.server.answer import Answer, UnchangedAnswer, encode
from ojster.server.declared import endpoints_of
from ojster.server.pages import flag, offset_page_of, offset_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import location


async def _list(request: HttpRequest) -> Answer:
    limit, offset = offset_page_of(request.query)
    wanted = flag(request.query, "enabled") if "enabled" in request.query else None
    crons, total = await request.service.schedules.page(wanted, limit, offset)
    return Answer(encode(CronsAnswer.of(crons, offset_pagination(total, limit, offset))))


async def _register(request: HttpRequest) -> Answer:
    raw = await request.body()
    body = request.decode(raw, CRON)
    members = read_members(raw)
    expression = body.expression or body.cron
    if body.cron and body.cron != expression:
        raise InvalidRequest("'expression' and 'cron' contradict each other. Send one of them.", field="cron")
    if not expression:
        raise InvalidRequest("The cron job has no 'expression'. Add one, such as '0 9 * * *'.", field="expression")
    CronSchedule(expression, body.timezone)
    template, workflow = _started(body, members)
    done = await request.service.schedules.register(
        Cron(
            name=body.name,
            expression=expression,
            timezone=body.timezone,
            overlap_policy="cancel_previous" if body.overlap_policy == "cancel" else body.overlap_policy,
            enabled=body.enabled,
            description=body.description,
            template=template,
            workflow=workflow,
        ),
        body.on_conflict,
    )
    answered = Answer if done.is_changed else UnchangedAnswer
    idle = (*_idle(members), *_idle_of(members, show_cron(done.cron)))
    shown = RegisteredCronAnswer.of(msgspec.structs.replace(done, warnings=(*idle, *done.warnings)))
    return answered(encode(shown), 201 if done.is_new else 200, (location("cron", shown.cron.name),))


def _started(body: CronBody, members: Members) -> tuple[bytes, bytes | None]:
    """Return the ``template`` and the ``workflow`` of a cron job."""
    if body.workflow is None:
        return _template(body, members), None
    for other in sorted(members.keys() & ({"job_template", "type", "args", "meta", "options"} | AT_TOP)):
        if not _says_nothing(other, members.get(other, msgspec.Raw(b"null"))):
            raise InvalidRequest(
                f"The cron job has 'workflow' and {other!r}. A cron job enqueues a job or starts a workflow: leave one "
                "of them out.",
                field=other,
            )
    return b"{}", bytes(members["workflow"])


def _says_nothing(name: str, raw: msgspec.Raw) -> bool:
    """Return whether a member of a job says the same as if it were absent: it is ``null``, empty, or the default."""
    value = msgspec.json.decode(raw)
    return value in (None, [], {}) or (name in AT_TOP and read_options(encode({name: raw})) == DEFAULT_OPTIONS)


def _refuse_contradiction(job: JobTemplateBody, members: Members) -> None:
    """Refuse members beside a template that say something else than the template. A shown cron job has them twice."""
    for name, value in msgspec.structs.asdict(job).items():
        raw = members.get(name, msgspec.Raw(b"null"))
        is_same = is_same_json(msgspec.json.decode(raw), msgspec.json.decode(encode(value)))
        if not is_same and not _says_nothing(name, raw):
            raise InvalidRequest(
                f"The cron job has 'job_template', and beside it another {name!r}. Leave one of them out.", field=name
            )


def _idle(members: Members) -> list[str]:
    """Return a warning for each member at the top that is neither of the cron job nor of its template."""
    around = next((name for name in ("job_template", "workflow") if bytes(members.get(name, b"null")) != b"null"), None)
    return [
        f"The member {name[:60]!r} has no effect beside {around!r}. Write it inside."
        for name in members
        if around is not None and name not in _OF_CRON and bytes(members[name]) != b"null"
    ]


_MEANT: Final = {
    "status": "Send 'enabled'.",
    "tenant_id": "Send the header X-OJS-Tenant.",
    "starts": "Send 'job_template' or 'workflow'.",
    "created_at": "The server records it. Leave it out.",
    "created_by": "The server records who registers it. Leave it out.",
}
"""Members of a shown cron job that do not change it when it is sent, and what does. Those that its runs change bring no
warning: they differ when it has run since it was shown."""


def _idle_of(members: Members, shown: CronInfo) -> list[str]:
    """Return a warning for each member of a shown cron job that says something else than the cron job that was made."""
    return [
        f"The member {name!r} has no effect: it is {getattr(shown, name)!r}. {meant}"
        for name, meant in _MEANT.items()
        if name in members and msgspec.json.decode(members[name]) not in (None, getattr(shown, name))
    ]


def _template(body: CronBody, members: Members) -> bytes:
    """Return the enqueue request for the jobs of a cron job, with the other members of its template.

    Without a ``job_template``, these are the members at the top that do not belong to the cron job, such as ``queue``.
    """
    job = body.job_template
    if job is None:
        if body.type is None:
            raise InvalidRequest(
                "The cron job has neither 'type' nor 'job_template' nor 'workflow'. Add one.", field="type"
            )
        job = JobTemplateBody(body.type, body.args, body.meta, body.options)
    else:
        _refuse_contradiction(job, members)
    options = dict(job.options)
    meta = dict(job.meta)
    if "meta" in options:
        meta |= read_members(options.pop("meta"), "options.meta")
    if body.job_template is None:
        others = {name: raw for name, raw in members.items() if name not in _OF_CRON}
    else:
        others = read_members(members["job_template"], "job_template")
    return encode(others | {"type": job.type, "args": job.args, "meta": meta, "options": options})


_OF_CRON: Final = frozenset(CronBody.__struct_fields__) | frozenset(CronInfo.__struct_fields__)
"""Members that belong to a cron job itself, also those that only the server sets: a shown one may be sent again."""

ROUTES: Final = endpoints_of(
    ScheduleCalls,
    lambda service: service.schedules,
    {ScheduleCalls.all: _list, ScheduleCalls.register: _register},
)
