"""The JSON of requests and answers about errors and pages, and its common types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.core.durations import LONGEST_MILLIS
from ojster.core.property_values import Changes

Count = Annotated[int, Meta(ge=0)]

Milliseconds = Annotated[int, Meta(ge=0, le=LONGEST_MILLIS)]

Identifier = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]

Timestamp = Annotated[str, Meta(description="RFC 3339, in UTC")]

Json = Any
"""Any JSON value, decoded: no other value can be there."""

Atomicity = Literal["atomic", "partial"]

FairnessStrategy = Literal["strict", "round-robin", "weighted", "least-loaded"]

Weight = Annotated[int, Meta(ge=1, le=1_000_000)] | Annotated[float, Meta(ge=0.001, le=1_000_000)]

Tokens = Annotated[int, Meta(ge=0, le=10**12)]

TenantWeight = Annotated[float, Meta(gt=0, le=1_000_000)]


class FromWorker(Struct):
    """A request of a worker. Its unknown members have no effect; the answer warns of those that look misspelt.

    Spec: ojs-json-format 14.3
    """

    def idle(self) -> list[str]:
        """Return a warning for each known member that has no effect beside the others."""
        return []


def idle_in(name: str, reports: Sequence[FromWorker]) -> list[str]:
    """Return the warnings of the reports in the list ``name``, each with its place."""
    return [f"{name}[{index}]: {warning}" for index, report in enumerate(reports) for warning in report.idle()]


class ErrorBody(Struct):
    """Why a request was rejected.

    Spec: ojs-http-binding 16
    """

    code: str
    message: str
    retryable: bool
    request_id: str
    details: dict[str, Json] | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    docs_url: str | UnsetType = UNSET
    max_batch_size: Count | UnsetType = UNSET


class ErrorAnswer(Struct):
    """The body of every error."""

    error: ErrorBody


class PaginationBody(Struct):
    """The position of a page in a list.

    Parameters
    ----------
    is_complete:
        ``false``: so many jobs were examined as one call may; ``total`` counts the matches among them, and the next
        page goes on with older ones, also if this one has none. Left out otherwise.
    examined:
        How many jobs were examined, if not all were.

    Spec: ojs-http-binding 17
    """

    total: Count
    limit: Count
    offset: Count
    has_more: bool
    next_cursor: str | UnsetType = UNSET
    is_complete: bool | UnsetType = UNSET
    examined: Count | UnsetType = UNSET


class NumberedPaginationBody(Struct):
    """The position of a page in an admin list.

    Spec: ojs-admin-api 7.1
    """

    total: Count
    page: Annotated[int, Meta(ge=1)]
    per_page: Annotated[int, Meta(ge=1)]


class JobCountsBody(Struct, kw_only=True):
    """Numbers of jobs by state."""

    scheduled: Count | UnsetType = UNSET
    available: Count | UnsetType = UNSET
    pending: Count | UnsetType = UNSET
    active: Count | UnsetType = UNSET
    completed: Count | UnsetType = UNSET
    retryable: Count | UnsetType = UNSET
    cancelled: Count | UnsetType = UNSET
    discarded: Count | UnsetType = UNSET


class ThroughputBody(Struct):
    """Jobs per minute, averaged over the last minutes."""

    processed_per_minute: float
    failed_per_minute: float
    enqueued_per_minute: float


class DeletedAnswer(Struct):
    """The name of what was deleted."""

    name: str
    deleted: Literal[True] = True


MAX_JOB_TYPES: Final = 1_000
"""Maximum number of job types that a worker can name."""

JobTypes = Annotated[
    list[str], Meta(max_length=MAX_JOB_TYPES, description="Job types that the worker has handlers for; others stay.")
]


class ChangesBody(Struct):
    """Changes of the properties of a workflow, applied all or none.

    ``expected`` gives the version that each property must have, by name; 0: the property must not exist.
    """

    set: dict[str, Raw] = {}
    delete: list[str] = []
    expected: dict[str, Count] = {}


def changes_body(changes: Changes | None) -> ChangesBody | None:
    """Return the JSON form of changes of properties."""
    return None if changes is None else ChangesBody(changes.set, list(changes.delete), changes.expected)
