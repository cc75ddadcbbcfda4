"""Endpoints for tenants, their limits and their statistics.

Spec: ojs-multi-tenancy 10
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import MAX_SAFE_INTEGER
from ojster.core.states import JobState
from ojster.core.tenant import NOBODY, check_tenant, shown_tenant
from ojster.core.timestamps import format_timestamp
from ojster.jobs.answer_wire import ItemPageAnswer
from ojster.jobs.expiration import read_expiration_delay, shown_expiration_delay
from ojster.jobs.filters import filter_of
from ojster.jobs.job_json import to_json
from ojster.jobs.queries import Page
from ojster.jobs.rate_limit_wire import MAX_LIMIT, parse_rate
from ojster.jobs.scope import Caller
from ojster.queues.overview import throughput
from ojster.queues.wire import show_rate
from ojster.server.answer import Answer, encode
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, NUMBERED_PAGE, Route
from ojster.tenancy import tenants
from ojster.tenancy.tenants import TenantChange, TenantOverview
from ojster.tenancy.wire import (
    TENANT,
    TENANT_LIMITS,
    DeletedTenantAnswer,
    LimitUseBody,
    TenantBody,
    TenantCountsBody,
    TenantFairnessBody,
    TenantInfo,
    TenantLimitsBody,
    TenantLimitsInfo,
    TenantsAnswer,
    TenantStatisticsAnswer,
)

_LIMITS: Final = ("max_concurrency", "max_queue_depth", "max_scheduled", "max_file_bytes")


async def list_tenants(request: HttpRequest) -> Answer:
    """List the tenants that are configured or have jobs, by name, with limits, job counts, throughput and noise."""
    page = numbered_page(request.query)
    found = await request.service.scope.look(tenants.list_tenants, None)
    items = [_summary(one) for one in found[page.offset : page.offset + page.size]]
    return Answer(encode(TenantsAnswer(items, items, numbered_pagination(page, len(found)))))


async def show_tenant(request: HttpRequest) -> Answer:
    """Show a tenant with its limits and its job counts in each queue."""
    found = await _find(request)
    shown = _summary(found)
    shown.queues = found.queues
    return Answer(encode(shown))


async def show_tenant_stats(request: HttpRequest) -> Answer:
    """Show the statistics of a tenant: jobs, throughput, usage of its limits, and its share."""
    found = await _find(request)
    tenant = found.tenant
    current = {
        "max_concurrency": found.count("active"),
        "max_queue_depth": found.depth,
        "max_scheduled": found.count("scheduled"),
        "max_file_bytes": found.file_bytes,
    }
    shown = TenantStatisticsAnswer(
        tenant_id=shown_tenant(tenant.id),
        total_jobs=found.count(),
        jobs=TenantCountsBody(
            **{state.value: found.count(state.value) for state in JobState},
            completed_24h=found.day.completed,
            failed_24h=found.day.failed,
        ),
        throughput=throughput(found.recent),
        limits={
            name: LimitUseBody(limit, current[name]) for name in _LIMITS if (limit := getattr(tenant, name)) is not None
        },
        fairness=TenantFairnessBody(tenant.weight, round(found.effective_share, 4), round(found.actual_share, 4)),
        noise=found.noise,
    )
    return Answer(encode(shown))


async def list_tenant_jobs(request: HttpRequest) -> Answer:
    """List the jobs of a tenant, newest first, optionally by ``state``, ``queue`` and ``type``."""
    page, tenant = numbered_page(request.query), _id(request)
    chosen = filter_of({name: request.query.get(name) for name in ("state", "queue", "type")})
    found = await request.service.as_(Caller(tenant)).jobs.select(chosen, Page(page.size, page.offset))
    items = b",".join([to_json(job) for job in found.jobs])
    return Answer(b'{"items":[%b],"pagination":%b}' % (items, encode(numbered_pagination(page, found.total))))


async def put_tenant(request: HttpRequest) -> Answer:
    """Create or replace the configuration of a tenant. Omitted limits do not apply."""
    change = _change(_id(request), await request.read(TENANT))
    is_new = await request.service.scope.do(tenants.put_tenants, change)
    return Answer(encode(_summary(await _find(request))), 201 if is_new else 200)


async def limit_tenant(request: HttpRequest) -> Answer:
    """Change limits of a tenant, with a ``reason``. ``null`` removes a limit; omitted members keep their values."""
    tenant = _id(request)
    body = await request.read(TENANT_LIMITS)
    members = _limits(body, tenant)
    if body.fairness_weight is not UNSET:
        members["weight"] = body.fairness_weight
    if not members:
        raise InvalidRequest(f"No limit is set. Set {', '.join(map(repr, _LIMITS))} or 'max_enqueue_rate'.")
    await request.service.scope.do(tenants.put_tenants, TenantChange(tenant, members, False, body.reason))
    return Answer(encode(_summary(await _find(request))))


async def delete_tenant(request: HttpRequest) -> Answer:
    """Delete the configuration of a tenant. Its jobs remain."""
    tenant = _id(request)
    await request.service.scope.do(tenants.delete_tenants, tenant)
    return Answer(encode(DeletedTenantAnswer(shown_tenant(tenant))))


def _id(request: HttpRequest) -> str:
    return check_tenant(request.path["id"])


async def _find(request: HttpRequest) -> TenantOverview:
    return await request.service.scope.look(tenants.show_tenants, _id(request))


def read_tenants(raw: bytes) -> list[TenantChange]:
    """Parse a JSON object that maps tenant ids to bodies of ``put_tenant``.

    Raises
    ------
    InvalidRequest
        The JSON, a tenant id or a body is malformed.
    """
    try:
        bodies = msgspec.json.decode(raw, type=dict[str, TenantBody])
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The configuration of tenants is malformed: {error}.") from None
    return [_change(check_tenant(name), body) for name, body in bodies.items()]


def _change(tenant: str, body: TenantBody) -> TenantChange:
    others: dict[str, Any] = {
        "weight": body.fairness_weight,
        "boost": body.priority_boost,
        "quota": body.quota,
        "public": body.public,
    }
    if body.expiration_delay is not None:
        others["retention"] = read_expiration_delay(msgspec.json.encode(body.expiration_delay))
    return TenantChange(tenant, _limits(body.limits, tenant) | others)


def _limits(body: TenantLimitsBody, tenant: str) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name in _LIMITS:
        if (value := getattr(body, name)) is not UNSET:
            most = MAX_SAFE_INTEGER if name == "max_file_bytes" else MAX_LIMIT
            if value is not None and value > most:
                raise InvalidRequest(f"{name!r} is {value}. Use at most {most}.", field=name)
            members[name] = value
    if (rate := body.max_enqueue_rate) is not UNSET:
        members["max_enqueue_rate"] = None if rate is None else parse_rate(rate, "max_enqueue_rate")
    if tenant == NOBODY and any(value is not None for value in members.values()):
        raise InvalidRequest("Jobs without a tenant cannot have tenant limits. Limit their queues instead.")
    return members


def _summary(found: TenantOverview) -> TenantInfo:
    tenant = found.tenant
    counts = {state.value: number for state in JobState if (number := found.count(state.value))}
    return TenantInfo(
        tenant_id=shown_tenant(tenant.id),
        configured=found.is_configured,
        limits=TenantLimitsInfo(
            tenant.max_concurrency,
            tenant.max_queue_depth,
            tenant.max_scheduled,
            show_rate(tenant.max_enqueue_rate),
            tenant.max_file_bytes,
        ),
        fairness_weight=tenant.weight,
        priority_boost=tenant.boost,
        quota=tenant.quota,
        public=tenant.public,
        expiration_delay=None if tenant.retention is None else shown_expiration_delay(tenant.retention),
        jobs=TenantCountsBody(
            total=found.count(), **counts, completed_24h=found.day.completed, failed_24h=found.day.failed
        ),
        throughput=throughput(found.recent),
        noise=found.noise,
        created_at=format_timestamp(tenant.created_at) if found.is_configured else None,
        updated_at=format_timestamp(tenant.updated_at) if found.is_configured else None,
    )


_TENANTS: Final = f"{BASE}/admin/tenants"
_TAG: Final = "Operators"

ROUTES: Final = (
    Route("GET", _TENANTS, list_tenants, _TAG, answer=TenantsAnswer, query=NUMBERED_PAGE),
    Route("GET", f"{_TENANTS}/{{id}}", show_tenant, _TAG, answer=TenantInfo),
    Route("GET", f"{_TENANTS}/{{id}}/stats", show_tenant_stats, _TAG, answer=TenantStatisticsAnswer),
    Route(
        "GET",
        f"{_TENANTS}/{{id}}/jobs",
        list_tenant_jobs,
        _TAG,
        answer=ItemPageAnswer,
        query=("state", "queue", "type", *NUMBERED_PAGE),
    ),
    Route("PUT", f"{_TENANTS}/{{id}}", put_tenant, _TAG, TenantBody, TenantInfo, more=(201,)),
    Route("PUT", f"{_TENANTS}/{{id}}/limits", limit_tenant, _TAG, TenantLimitsBody, TenantInfo),
    Route("DELETE", f"{_TENANTS}/{{id}}", delete_tenant, _TAG, answer=DeletedTenantAnswer),
)
