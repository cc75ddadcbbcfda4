"""The JSON of requests and answers about tenants and tokens."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.wire import (
    Identifier,
    TenantWeight,
)


class TenantLimitsBody(Struct):
    """Limits of a tenant, over all its queues.

    Spec: ojs-multi-tenancy 8.1
    """

    max_concurrency: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_enqueue_rate: dict[str, Any] | UnsetType | None = UNSET
    max_queue_depth: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_scheduled: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    fairness_weight: TenantWeight | UnsetType = UNSET
    reason: str | None = None


class TenantBody(Struct):
    """Limits and fairness weight of a tenant.

    Spec: ojs-multi-tenancy 8.1
    """

    tenant_id: str | None = None
    limits: TenantLimitsBody = msgspec.field(default_factory=TenantLimitsBody)
    fairness_weight: TenantWeight = 1.0
    priority_boost: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    quota: Literal["hard", "soft"] = "hard"
    public: bool = False
    expiration_delay: str | None = None


class GrantBody(Struct, forbid_unknown_fields=True):
    """A role in a workspace and in those inside it; ``*`` means all workspaces."""

    role: Literal["viewer", "producer", "worker", "contributor", "owner"]
    tenant: str = "*"


class TokenBody(Struct, forbid_unknown_fields=True):
    """A token: its name, grants, queues (none means all) and expiry; ``+P30D`` is relative to now."""

    name: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]*$")]
    grants: Annotated[list[GrantBody], Meta(min_length=1, max_length=100)]
    queues: Annotated[list[Identifier], Meta(max_length=100)] = []
    expires_at: str | None = None


class TokenRotationBody(Struct, forbid_unknown_fields=True):
    """``grace``: how long the old secret stays valid, as an ISO 8601 duration; default one day."""

    grace: str | None = None


TOKEN: Final = msgspec.json.Decoder(TokenBody)


TOKEN_ROTATION: Final = msgspec.json.Decoder(TokenRotationBody)


TENANT: Final = msgspec.json.Decoder(TenantBody)


TENANT_LIMITS: Final = msgspec.json.Decoder(TenantLimitsBody)
