"""The JSON of requests and answers about push endpoints.

Spec: ojs-serverless 2.1, 9.3
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.calls import Request, SinglePage, Whole
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.core.wire import PaginationBody, Timestamp
from ojster.jobs.rate_limit_wire import RateBody
from ojster.push.endpoint import PushEndpoint
from ojster.queues.wire import show_rate

MAX_TIMEOUT_MS: Final = 3_600_000
"""Longest timeout of a call, in milliseconds: as long as any function service lets a request run."""


class PushConfigBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How jobs are sent to a function. ``rate`` is a maximum number of deliveries."""

    max_concurrency: Annotated[int, Meta(ge=1, le=1000)] = 10
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)] = 30_000
    rate: RateBody | None = None
    signing_secret: Annotated[str, Meta(min_length=16, max_length=255)] | None = None


class PushEndpointBody(Request, forbid_unknown_fields=True):
    """A function that runs jobs of these queues; without ``job_types`` all, otherwise only those."""

    endpoint: Annotated[str, Meta(max_length=2000)]
    job_types: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    queues: Annotated[tuple[str, ...], Meta(min_length=1, max_length=100)] = ("default",)
    config: PushConfigBody = PushConfigBody()


class ShownPushConfig(Struct):
    """How jobs are sent to a function. ``signing_secret`` is shown when it is made and when it changes."""

    max_concurrency: int
    timeout_ms: int
    rate: RateBody | None = None
    signing_secret: str | UnsetType = UNSET


PushState = Literal["active", "paused", "suspended", "disabled"]


class PushEndpointInfo(Whole, kw_only=True):
    """A push endpoint.

    ``state``: ``suspended`` if the function could not take jobs and gets one when the pause is over (until
    ``suspended_until``); ``disabled`` if a server has turned it off because it will not take any. ``reason`` says why,
    and ``troubled_since`` since when its function takes no jobs.
    """

    id: str
    endpoint: str
    job_types: tuple[str, ...]
    queues: tuple[str, ...]
    config: ShownPushConfig
    worker_id: str
    state: PushState
    created_at: Timestamp
    reason: str | UnsetType = UNSET
    troubled_since: Timestamp | UnsetType = UNSET
    suspended_until: Timestamp | UnsetType = UNSET


class PushEndpointsAnswer(SinglePage[list[PushEndpointInfo]]):
    """The push endpoints, by id."""

    endpoints: list[PushEndpointInfo]
    pagination: PaginationBody


class DeletedPushEndpointAnswer(Struct):
    """A push endpoint that was deleted."""

    id: str
    deleted: Literal[True] = True


class PushEndpointAnswer(Struct):
    """One push endpoint."""

    push_endpoint: PushEndpointInfo

    @classmethod
    def of(cls, shown: PushEndpointInfo) -> Self:
        """Return the answer that shows an endpoint."""
        return cls(shown)

    def value(self) -> PushEndpointInfo:
        """Return the endpoint."""
        return self.push_endpoint


def show_endpoint(endpoint: PushEndpoint, *, with_secret: bool = False) -> PushEndpointInfo:
    """Return the JSON form of a push endpoint; ``with_secret``: with what signs its deliveries."""
    shown = PushEndpointInfo(
        id=called(endpoint.id),
        endpoint=endpoint.url,
        job_types=endpoint.job_types,
        queues=endpoint.queues,
        config=ShownPushConfig(endpoint.concurrency, endpoint.timeout // 1000, show_rate(endpoint.rate)),
        worker_id=endpoint.worker_name,
        state=_state(endpoint),
        created_at=format_timestamp(endpoint.created_at),
    )
    if with_secret:
        shown.config.signing_secret = endpoint.secret
    if (reason := endpoint.reason or endpoint.trouble) is not None:
        shown.reason = reason
    if endpoint.troubled_since:
        shown.troubled_since = format_timestamp(endpoint.troubled_since)
    if endpoint.trips:
        shown.suspended_until = format_timestamp(endpoint.suspended_until)
    return shown


def _state(endpoint: PushEndpoint) -> PushState:
    if not endpoint.active:
        return "paused" if endpoint.reason is None else "disabled"
    return "suspended" if endpoint.trips else "active"
