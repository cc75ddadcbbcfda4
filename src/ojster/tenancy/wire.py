"""The JSON of requests and answers about tenants and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.access import EVERYWHERE, Grant, Role, Token, read_grant
from ojster.core.calls import Arguments, Request, Whole
from ojster.core.declared_options import described_by
from ojster.core.durations import format_duration, parse_duration
from ojster.core.tenant import shown_tenant
from ojster.core.timestamps import format_optional, format_timestamp, parse_moment, parse_optional, parse_timestamp
from ojster.core.wire import (
    Count,
    Identifier,
    JobCountsBody,
    Json,
    NumberedPaginationBody,
    TenantWeight,
    ThroughputBody,
    Timestamp,
)
from ojster.jobs.rate_limit_wire import RateBody
from ojster.tenancy.tenant import Tenant


@described_by(Tenant)
class TenantLimitsBody(Request):
    """Limits of a tenant, over all its queues. Missing members stay unchanged; ``null`` removes a limit.

    Parameters
    ----------
    fairness_weight:
        Share of the workers, relative to the weights of other tenants.
    reason:
        Why, for people: it is in the event of the change.

    Spec: ojs-multi-tenancy 8.1
    """

    max_concurrency: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_enqueue_rate: dict[str, Json] | UnsetType | None = UNSET
    max_queue_depth: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_scheduled: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_file_bytes: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    fairness_weight: TenantWeight | UnsetType = UNSET
    reason: str | None = None


@described_by(Tenant)
class TenantBody(Request):
    """Limits and fairness weight of a tenant.

    Parameters
    ----------
    tenant_id:
        Its name; the same as in the path, if that has one.
    limits:
        Limits, over all its queues.
    fairness_weight:
        Share of the workers, relative to the weights of other tenants.
    priority_boost:
        Tenants with a greater boost are served before all others.
    expiration_delay:
        Retention of its finished jobs and workflows: an ISO 8601 duration, or ``never``; null: the server's default.

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

    role: Role
    tenant: str = EVERYWHERE


def show_grants(grants: Iterable[Grant]) -> list[GrantBody]:
    """Return the JSON form of grants."""
    return [
        GrantBody(grant.role, EVERYWHERE if grant.tenant is None else shown_tenant(grant.tenant)) for grant in grants
    ]


@described_by(Token)
class TokenBody(Arguments, forbid_unknown_fields=True):
    """A token to make.

    Parameters
    ----------
    grants:
        Its roles, each in a workspace and those inside it.
    expires_at:
        Time at which it expires, or a duration from now such as ``+P30D``; null: never.
    """

    name: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]*$")]
    grants: Annotated[list[GrantBody], Meta(min_length=1, max_length=100)]
    queues: Annotated[list[Identifier], Meta(max_length=100)] = msgspec.field(default_factory=list)
    expires_at: str | None = None

    @classmethod
    def of(cls, name: str, grants: Sequence[Grant], queues: Sequence[str], expires_at: int | None) -> Self:
        return cls(name, show_grants(grants), list(queues), format_optional(expires_at))

    def arguments(self, now: int) -> Mapping[str, Any]:
        return {
            "name": self.name,
            "grants": [read_grant(grant.role, grant.tenant) for grant in self.grants],
            "queues": self.queues,
            "expires_at": None if self.expires_at is None else parse_moment(self.expires_at, now),
        }


class TokenRotationBody(Arguments, forbid_unknown_fields=True):
    """A new secret for a token.

    Parameters
    ----------
    grace:
        How long the old secret stays valid, an ISO 8601 duration; one day by default.
    """

    grace: str | None = None

    @classmethod
    def of(cls, grace: int) -> Self:
        return cls(format_duration(grace))

    def arguments(self, now: int) -> Mapping[str, Any]:
        return {} if self.grace is None else {"grace": parse_duration(self.grace)}


@described_by(Token)
class TokenInfo(Struct):
    """A token, without its hashes.

    Parameters
    ----------
    is_session:
        Whether it was made for a browser that has logged in at an identity provider.
    secret:
        Its text, which is shown once, when it is made.
    """

    id: str
    name: str
    grants: list[GrantBody]
    queues: tuple[str, ...]
    created_at: Timestamp
    expires_at: Timestamp | None
    last_used_at: Timestamp | None
    is_session: bool = False
    secret: str | UnsetType = UNSET


class TokenAnswer(Struct):
    """A token, as the member ``token``."""

    token: TokenInfo

    @classmethod
    def of(cls, made: tuple[Token, str]) -> Self:
        return cls(show_token(*made))

    def value(self) -> tuple[Token, str]:
        return read_token(self.token), self.token.secret or ""


class RevokedTokenAnswer(Struct):
    """A revoked token."""

    token: TokenInfo
    revoked: Literal[True] = True

    @classmethod
    def of(cls, token: Token) -> Self:
        return cls(show_token(token))

    def value(self) -> Token:
        return read_token(self.token)


class TokensAnswer(Struct):
    """All tokens."""

    tokens: list[TokenInfo]

    @classmethod
    def of(cls, tokens: list[Token]) -> Self:
        return cls([show_token(token) for token in tokens])

    def value(self) -> list[Token]:
        return [read_token(shown) for shown in self.tokens]


def show_token(token: Token, secret: str | UnsetType = UNSET) -> TokenInfo:
    """Return the JSON form of a token, without hashes."""
    return TokenInfo(
        id=token.id,
        name=token.name,
        grants=show_grants(token.grants),
        queues=token.queues,
        created_at=format_timestamp(token.created_at),
        expires_at=format_optional(token.expires_at),
        last_used_at=format_optional(token.last_used_at),
        is_session=token.session_of is not None,
        secret=secret,
    )


def read_token(shown: TokenInfo) -> Token:
    """Return the token with this JSON form. Its hash is unknown and left empty."""
    expires_at, last_used_at = (parse_optional(text) for text in (shown.expires_at, shown.last_used_at))
    grants = tuple(read_grant(grant.role, grant.tenant) for grant in shown.grants)
    created_at = parse_timestamp(shown.created_at)
    return Token(shown.id, shown.name, b"", grants, created_at, shown.queues, expires_at, last_used_at)


@described_by(Tenant)
class TenantLimitsInfo(Struct, omit_defaults=True):
    """The limits of a tenant; a missing member means no limit."""

    max_concurrency: Count | None = None
    max_queue_depth: Count | None = None
    max_scheduled: Count | None = None
    max_enqueue_rate: RateBody | None = None
    max_file_bytes: Count | None = None


class TenantCountsBody(JobCountsBody, kw_only=True):
    """Numbers of jobs of a tenant by state, in all, and of attempts that completed and failed in the last day."""

    total: Count | UnsetType = UNSET
    completed_24h: Count
    failed_24h: Count


@described_by(TenantBody)
class TenantInfo(Whole):
    """A tenant with its limits, its jobs and its work.

    Spec: ojs-multi-tenancy 10
    """

    tenant_id: str
    configured: bool
    limits: TenantLimitsInfo
    fairness_weight: float
    priority_boost: int
    quota: Literal["hard", "soft"]
    public: bool
    expiration_delay: str | None
    jobs: TenantCountsBody
    throughput: ThroughputBody
    noise: tuple[str, ...]
    created_at: Timestamp | None
    updated_at: Timestamp | None
    queues: dict[str, dict[str, Count]] | UnsetType = UNSET


class TenantsAnswer(Struct):
    """A page of the tenants."""

    items: list[TenantInfo]
    tenants: list[TenantInfo]
    pagination: NumberedPaginationBody

    @classmethod
    def of(cls, tenants: list[TenantInfo], pagination: NumberedPaginationBody) -> Self:
        return cls(tenants, tenants, pagination)

    def value(self) -> list[TenantInfo]:
        return self.tenants


class LimitUseBody(Struct):
    """A limit, and how much of it is used."""

    limit: Count
    current: Count


class TenantFairnessBody(Struct):
    """The weight of a tenant, and its share of the work."""

    weight: float
    effective_share: float
    actual_share: float


class TenantStatisticsAnswer(Whole):
    """The statistics of a tenant."""

    tenant_id: str
    total_jobs: Count
    jobs: TenantCountsBody
    throughput: ThroughputBody
    limits: dict[str, LimitUseBody]
    fairness: TenantFairnessBody
    noise: tuple[str, ...]


class DeletedTenantAnswer(Struct):
    """The tenant whose configuration was deleted."""

    tenant_id: str
    deleted: Literal[True] = True


class SessionBody(Arguments):
    """The token with which a browser logs in: of Ojster, or of the OpenID Connect provider."""

    token: Annotated[str, Meta(min_length=1, max_length=4_000)]


class SessionAnswer(Struct):
    """Who the caller of a server is.

    Parameters
    ----------
    needs_token:
        Whether callers need a token at all.
    is_known:
        Whether the caller has a valid one, or needs none.
    who:
        The name of its token.
    operations:
        What it may do: in the workspace that the request names, in its only one, or in all.
    tenants:
        The workspaces to which its token is limited; ``None``: all.
    is_global:
        Whether it may see what concerns all workspaces and all queues.
    queues:
        The queues to which its token is limited, such as ``shop.*``; empty: all.
    provider:
        The host of the identity provider where a browser can log in, by way of ``/session/login``; ``None``: none.
    """

    needs_token: bool
    is_known: bool
    who: str | None
    operations: list[str]
    tenants: list[str] | None
    is_global: bool
    queues: list[str]
    provider: str | None = None


SESSION: Final = msgspec.json.Decoder(SessionBody)

TENANT: Final = msgspec.json.Decoder(TenantBody)
