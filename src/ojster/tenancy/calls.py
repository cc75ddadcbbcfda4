"""Calls about tenants and tokens, as a service, a server and its client have them.

Spec: ojs-multi-tenancy 10, ojs-security 6, 7, 12.3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.core.access import Grant, Token
from ojster.core.calls import Call, Calls, Deletion, Handled, NumberedListing
from ojster.core.durations import DAY
from ojster.tenancy.wire import (
    DeletedTenantAnswer,
    RevokedTokenAnswer,
    TenantBody,
    TenantInfo,
    TenantLimitsBody,
    TenantsAnswer,
    TenantStatisticsAnswer,
    TokenAnswer,
    TokenBody,
    TokenRotationBody,
    TokensAnswer,
)

DEFAULT_GRACE: Final = DAY
"""Default time that a token's previous secret stays valid after a rotation, in microseconds: one day.

Spec: ojs-security 12.5
"""

_TAG: Final = "Operators"
_ALL: Final = "/admin/tokens"
_TENANT: Final = "/admin/tenants/{id}"


class TokenCalls(Calls):
    """Calls about tokens."""

    @Call("POST", _ALL, "create_token", _TAG, TokenAnswer, body=TokenBody, status=201)
    async def create(
        self, name: str, grants: Sequence[Grant], queues: Sequence[str] = (), expires_at: int | None = None
    ) -> tuple[Token, str]:
        """Create a token. Only this answer contains the secret that callers send."""

    @Call("GET", _ALL, "list_tokens", _TAG, TokensAnswer)
    async def all(self) -> list[Token]:
        """List the tokens, oldest first, with their grants and the time of last use, accurate to the hour."""

    @Call("POST", f"{_ALL}/{{id}}/rotate", "rotate_token", _TAG, TokenAnswer, body=TokenRotationBody, may_be_empty=True)
    async def rotate(self, token_id: str, grace: int = DEFAULT_GRACE) -> tuple[Token, str]:
        """Give a token a new secret, shown only in this answer. The old one stays valid for ``grace``
        (default one day).
        """

    @Call("DELETE", f"{_ALL}/{{id}}", "revoke_token", _TAG, RevokedTokenAnswer)
    async def revoke(self, token_id: str) -> Token:
        """Revoke a token: it is refused from now on."""


class TenantCalls(Calls):
    """Calls about tenants, their limits and their statistics."""

    @NumberedListing("GET", "/admin/tenants", "list_tenants", _TAG, TenantsAnswer)
    async def all(self) -> list[TenantInfo]:
        """List the tenants that are configured or have jobs, by name, with limits, job counts, throughput and noise."""

    @Call("GET", _TENANT, "show_tenant", _TAG, TenantInfo)
    async def find(self, tenant_id: str) -> TenantInfo:
        """Show a tenant with its limits and its job counts in each queue."""

    @Call("GET", f"{_TENANT}/stats", "show_tenant_stats", _TAG, TenantStatisticsAnswer)
    async def statistics(self, tenant_id: str) -> TenantStatisticsAnswer:
        """Show the statistics of a tenant: jobs, throughput, usage of its limits, and its share."""

    @Handled("PUT", _TENANT, "put_tenant", _TAG, TenantInfo, body=TenantBody, more=(201,))
    async def put(self, tenant_id: str, body: TenantBody) -> TenantInfo:
        """Create or replace the configuration of a tenant. Omitted limits do not apply."""

    @Call("PUT", f"{_TENANT}/limits", "limit_tenant", _TAG, TenantInfo, body=TenantLimitsBody)
    async def limit(self, tenant_id: str, body: TenantLimitsBody) -> TenantInfo:
        """Change limits of a tenant, with a ``reason``. ``null`` removes a limit; omitted members keep their values."""

    @Deletion("DELETE", _TENANT, "delete_tenant", _TAG, DeletedTenantAnswer)
    async def delete(self, tenant_id: str) -> None:
        """Delete the configuration of a tenant. Its jobs remain."""
