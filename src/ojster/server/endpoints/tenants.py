"""Endpoints for tenants, their limits and their statistics.

Spec: ojs-multi-tenancy 10
"""

from __future__ import annotations

from typing import Final

from ojster.core.tenant import check_tenant
from ojster.jobs.answer_wire import ItemPageAnswer
from ojster.jobs.filters import filter_of
from ojster.jobs.job_json import to_json
from ojster.jobs.queries import Page
from ojster.jobs.scope import Caller
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, NUMBERED_PAGE, Route
from ojster.tenancy.calls import TenantCalls
from ojster.tenancy.wire import TENANT


async def _put(request: HttpRequest) -> Answer:
    tenant, is_new = await request.service.tenants.replace(request.path["id"], await request.read(TENANT))
    return Answer(encode(tenant), 201 if is_new else 200)


async def list_tenant_jobs(request: HttpRequest) -> Answer:
    """List the jobs of a tenant, newest first, optionally by ``state``, ``queue`` and ``type``."""
    page, tenant = numbered_page(request.query), check_tenant(request.path["id"])
    chosen = filter_of({name: request.query.get(name) for name in ("state", "queue", "type")})
    caller = Caller(tenant, request.service.scope.access)
    listed = await request.service.as_(caller).jobs.select(chosen, Page(page.size, page.offset))
    items = b",".join([to_json(job) for job in listed.jobs])
    return Answer(b'{"items":[%b],"pagination":%b}' % (items, encode(numbered_pagination(page, listed.total))))


ROUTES: Final = (
    *endpoints_of(TenantCalls, lambda service: service.tenants, {TenantCalls.put: _put}),
    Route(
        "GET",
        f"{BASE}/admin/tenants/{{id}}/jobs",
        list_tenant_jobs,
        "Operators",
        answer=ItemPageAnswer,
        query=("state", "queue", "type", *NUMBERED_PAGE),
    ),
)
