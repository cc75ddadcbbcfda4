"""Calls about tenants."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import MAX_SAFE_INTEGER, Members
from ojster.core.parsing import refuse_misspelt
from ojster.core.rate_limit import MAX_LIMIT
from ojster.core.states import JobState
from ojster.core.tenant import NOBODY, check_tenant, shown_tenant
from ojster.core.timestamps import format_timestamp
from ojster.jobs.expiration import read_expiration_delay, shown_expiration_delay
from ojster.jobs.rate_limit_wire import parse_rate
from ojster.jobs.scope import CapabilityService
from ojster.queues.overview import throughput
from ojster.queues.wire import show_rate
from ojster.tenancy import tenants
from ojster.tenancy.calls import TenantCalls
from ojster.tenancy.tenants import TenantChange, TenantOverview
from ojster.tenancy.wire import (
    LimitUseBody,
    TenantBody,
    TenantCountsBody,
    TenantFairnessBody,
    TenantInfo,
    TenantLimitsBody,
    TenantLimitsInfo,
    TenantStatisticsAnswer,
)

_DEFAULT_WEIGHT: Final = TenantBody().fairness_weight
_LIMITS: Final = ("max_concurrency", "max_queue_depth", "max_scheduled", "max_file_bytes")


class TenantService(CapabilityService, TenantCalls):
    """Calls about tenants."""

    async def all(self) -> list[TenantInfo]:
        """Return the tenants that are configured or have jobs, by name."""
        self.scope.require_all_tenants("Listing tenants")
        return [show_tenant(tenant) for tenant in await self.scope.look(tenants.list_tenants, None)]

    async def find(self, tenant_id: str) -> TenantInfo:
        """Return a tenant, with its jobs by queue.

        Raises
        ------
        NotFound
            The tenant is not configured and has no jobs.
        """
        overview = await self._find(tenant_id)
        shown = show_tenant(overview)
        shown.queues = overview.queues
        return shown

    async def statistics(self, tenant_id: str) -> TenantStatisticsAnswer:
        """Return the statistics of a tenant. Raises as ``find``."""
        existing = await self._find(tenant_id)
        tenant = existing.tenant
        current = {
            "max_concurrency": existing.count("active"),
            "max_queue_depth": existing.depth,
            "max_scheduled": existing.count("scheduled"),
            "max_file_bytes": existing.file_bytes,
        }
        return TenantStatisticsAnswer(
            tenant_id=shown_tenant(tenant.id),
            total_jobs=existing.count(),
            jobs=TenantCountsBody(
                **{state.value: existing.count(state.value) for state in JobState},
                completed_24h=existing.day.completed,
                failed_24h=existing.day.failed,
            ),
            throughput=throughput(existing.recent),
            limits={
                name: LimitUseBody(limit, current[name])
                for name in _LIMITS
                if (limit := getattr(tenant, name)) is not None
            },
            fairness=TenantFairnessBody(
                tenant.weight, round(existing.effective_share, 4), round(existing.actual_share, 4)
            ),
            noise=existing.noise,
        )

    async def put(self, tenant_id: str, body: TenantBody) -> TenantInfo:
        """Create or replace the configuration of a tenant. Raises as ``replace``."""
        return (await self.replace(tenant_id, body))[0]

    async def replace(self, tenant_id: str, body: TenantBody) -> tuple[TenantInfo, bool]:
        """Create or replace the configuration of a tenant; return it, and whether it is new.

        Raises
        ------
        InvalidRequest
            The name or a limit is invalid.
        """
        is_new = await self._put(_change(check_tenant(tenant_id), body))
        return show_tenant(await self._find(tenant_id)), is_new

    async def limit(self, tenant_id: str, body: TenantLimitsBody) -> TenantInfo:
        """Change limits of a tenant: those that ``body`` sets.

        Raises
        ------
        InvalidRequest
            The name or a limit is invalid, or there is none.
        """
        tenant = check_tenant(tenant_id)
        members = _limits(body, tenant)
        if body.fairness_weight is not UNSET:
            members["weight"] = body.fairness_weight
        if not members:
            raise InvalidRequest(f"No limit is set. Set {', '.join(map(repr, _LIMITS))} or 'max_enqueue_rate'.")
        await self._put(TenantChange(tenant, members, False, body.reason))
        return show_tenant(await self._find(tenant_id))

    async def delete(self, tenant_id: str) -> None:
        """Delete the configuration of a tenant.

        Raises
        ------
        NotFound
            The tenant has no configuration.
        """
        self.scope.require_all_tenants("Deleting the configuration of a tenant")
        self.scope.need_all_queues("Deleting the configuration of a tenant")
        await self.scope.do(tenants.delete_tenants, check_tenant(tenant_id))

    async def _find(self, tenant_id: str) -> TenantOverview:
        self.scope.require_all_tenants("Showing a tenant")
        return await self.scope.look(tenants.show_tenants, check_tenant(tenant_id))

    async def _put(self, change: TenantChange) -> bool:
        self.scope.require_all_tenants("Configuring a tenant")
        self.scope.need_all_queues("Configuring a tenant")
        return await self.scope.do(tenants.put_tenants, change)


def read_tenants(raw: bytes) -> list[TenantChange]:
    """Parse a JSON object that maps tenant ids to bodies of ``put_tenant``.

    Raises
    ------
    InvalidRequest
        The JSON, a tenant id or a body is malformed, or has a member that looks misspelt.
    """
    try:
        bodies = msgspec.json.decode(raw, type=dict[str, TenantBody])
        for members in msgspec.json.decode(raw, type=dict[str, Members]).values():
            refuse_misspelt(members, TenantBody)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The configuration of tenants is malformed: {error}.") from None
    return [_change(check_tenant(name), body) for name, body in bodies.items()]


def _change(tenant: str, body: TenantBody) -> TenantChange:
    if body.tenant_id is not None and check_tenant(body.tenant_id) != tenant:
        raise InvalidRequest(
            f"The tenant is {shown_tenant(tenant)!r}, and the body names {body.tenant_id!r:.80}. Use one name.",
            field="tenant_id",
        )
    weight = body.limits.fairness_weight
    if weight is not UNSET and body.fairness_weight not in (_DEFAULT_WEIGHT, weight):
        raise InvalidRequest(
            f"'fairness_weight' is {body.fairness_weight:g}, and {weight:g} in 'limits'. Send one of them.",
            field="fairness_weight",
        )
    others: dict[str, Any] = {
        "weight": body.fairness_weight if weight is UNSET else weight,
        "boost": body.priority_boost,
        "quota": body.quota,
        "public": body.public,
    }
    if body.expiration_delay is not None:
        others["retention"] = read_expiration_delay(msgspec.json.encode(body.expiration_delay))
    return TenantChange(tenant, _limits(body.limits, tenant) | others, reason=body.limits.reason)


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


def show_tenant(overview: TenantOverview) -> TenantInfo:
    """Return the JSON form of a tenant, without its queues."""
    tenant = overview.tenant
    counts = {state.value: number for state in JobState if (number := overview.count(state.value))}
    return TenantInfo(
        tenant_id=shown_tenant(tenant.id),
        configured=overview.is_configured,
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
            total=overview.count(), **counts, completed_24h=overview.day.completed, failed_24h=overview.day.failed
        ),
        throughput=throughput(overview.recent),
        noise=overview.noise,
        created_at=format_timestamp(tenant.created_at) if overview.is_configured else None,
        updated_at=format_timestamp(tenant.updated_at) if overview.is_configured else None,
    )
