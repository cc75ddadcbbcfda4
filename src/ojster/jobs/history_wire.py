"""The JSON of answers about schemas and history."""

from __future__ import annotations

from typing import Literal, Self

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Count, Json, PaginationBody, Timestamp
from ojster.jobs.explanation import Explanation
from ojster.jobs.history import Entry, Lineage
from ojster.jobs.reason import Reason
from ojster.jobs.schemas import Mode, Schema


class SchemaInfo(Struct):
    """A version of the schema of a job type.

    Spec: ojs-schema-registry 10
    """

    type: str
    job_type: str
    version: int | str
    uri: str
    mode: Mode
    schema: Raw
    created_at: Timestamp


class SchemaAnswer(SchemaInfo, kw_only=True):
    """A version of a schema, in the registry's format also in ``registered``.

    If it was registered or asked for by its URI, ``schema`` has that format, too.

    Spec: ojs-schema-registry 10, ojs-http-binding 15.3
    """

    registered: SchemaInfo


class SchemaVersionBody(Struct):
    """A version of a schema, in short."""

    version: int | str
    created_at: Timestamp
    is_latest: bool


class SchemaVersionsAnswer(Struct):
    """The versions of the schema of a job type, latest first."""

    type: str
    versions: list[SchemaVersionBody]


class SchemasAnswer(Struct):
    """A page of schemas."""

    schemas: list[SchemaInfo]
    pagination: PaginationBody


class DeletedSchemaAnswer(Struct):
    """A version of a schema that was deleted."""

    type: str
    version: int | str
    uri: str
    deleted: Literal[True] = True


def show_version(schema: Schema) -> int | str:
    """Return the JSON form of the version of a schema."""
    return int(schema.name) if schema.name.isdigit() else schema.name


def show_schema(schema: Schema) -> SchemaInfo:
    """Return the JSON form of a version of a schema."""
    return SchemaInfo(
        called(schema.type),
        called(schema.type),
        show_version(schema),
        schema.uri,
        schema.mode,
        Raw(schema.body),
        format_timestamp(schema.created_at),
    )


# History


class ReconstructedBody(Struct):
    """Says that a time was derived from other data."""

    reconstructed: bool = True


class HistoryEntryBody(Struct):
    """An entry in the history of a job.

    Spec: ojs-execution-history 4
    """

    id: str
    job_id: str
    event_type: str
    timestamp: Timestamp
    actor: dict[str, Json]
    data: dict[str, Json]
    metadata: ReconstructedBody | UnsetType = UNSET


class HistoryAnswer(Struct):
    """A page of the history of a job."""

    events: list[HistoryEntryBody]
    total: Count
    next_cursor: str | None


class PurgedHistoryAnswer(Struct):
    """The number of history entries that were deleted."""

    events_deleted: Count
    deleted: Literal[True] = True

    @classmethod
    def of(cls, number: int) -> Self:
        """Return the answer that shows a number of entries."""
        return cls(number)

    def value(self) -> int:
        """Return the number of entries."""
        return self.events_deleted


class ExplanationAnswer(Struct):
    """``Explanation``, as an answer."""

    job_id: str
    state: str
    reasons: list[Reason]

    @classmethod
    def of(cls, explanation: Explanation) -> Self:
        """Return the answer that shows an explanation."""
        return cls(explanation.job_id, explanation.state, explanation.reasons)

    def value(self) -> Explanation:
        """Return the explanation."""
        return Explanation(self.job_id, self.state, self.reasons)


def show_entry(entry: Entry, job_id: str, number: int) -> HistoryEntryBody:
    """Return the JSON form of an entry; ``number`` is its place in the history."""
    return HistoryEntryBody(
        f"evt_{job_id}_{number}",
        job_id,
        entry.type,
        format_timestamp(entry.at),
        dict(entry.actor),
        entry.data,
        ReconstructedBody() if entry.is_estimated else UNSET,
    )


def read_entry(shown: HistoryEntryBody) -> Entry:
    """Return the entry with this JSON form."""
    return Entry(
        shown.event_type, parse_timestamp(shown.timestamp), shown.data, shown.actor, shown.metadata is not UNSET
    )


class SuccessorBody(Struct):
    """A job after another in its workflow, and those after it."""

    job_id: str
    children: list[SuccessorBody]


class LineageAnswer(Struct):
    """The predecessors and successors of a job in its workflow."""

    job_id: str
    parent_id: str | None
    root_id: str | None
    workflow_id: str | None
    superseded_by: str | None
    parents: list[str]
    children: list[SuccessorBody]

    @classmethod
    def of(cls, lineage: Lineage) -> Self:
        """Return the answer that shows the lineage of a job."""
        return cls(**msgspec.structs.asdict(lineage) | {"children": _tree(lineage.children)})

    def value(self) -> Lineage:
        """Return the lineage."""
        return Lineage(**msgspec.structs.asdict(self) | {"children": _by_id(self.children)})


def _tree(children: dict[str, Json]) -> list[SuccessorBody]:
    return [SuccessorBody(id, _tree(more)) for id, more in children.items()]


def _by_id(children: list[SuccessorBody]) -> dict[str, Json]:
    return {child.job_id: _by_id(child.children) for child in children}
