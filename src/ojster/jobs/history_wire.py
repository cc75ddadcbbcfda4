"""The JSON of answers about the history of jobs."""

from __future__ import annotations

from typing import Literal, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ojster.core.calls import Single
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Count, Json, Timestamp
from ojster.jobs.history import Entry, Lineage


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


class PurgedHistoryAnswer(Single[int]):
    """The number of history entries that were deleted."""

    events_deleted: Count
    deleted: Literal[True] = True


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
        return cls(**msgspec.structs.asdict(lineage) | {"children": _tree(lineage.children)})

    def value(self) -> Lineage:
        return Lineage(**msgspec.structs.asdict(self) | {"children": _by_id(self.children)})


def _tree(children: dict[str, Json]) -> list[SuccessorBody]:
    return [SuccessorBody(id, _tree(more)) for id, more in children.items()]


def _by_id(children: list[SuccessorBody]) -> dict[str, Json]:
    return {child.job_id: _by_id(child.children) for child in children}
