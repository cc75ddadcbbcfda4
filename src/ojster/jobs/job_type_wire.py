"""The JSON of requests and answers about job types."""

from __future__ import annotations

from typing import Final, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ojster.core.json_objects import Members
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Json, PaginationBody, Timestamp
from ojster.jobs.job_types import JobTypeDefaults
from ojster.jobs.options_wire import OptionsBody


class JobTypeBody(Struct):
    """Defaults of a job type: members of an enqueue request, such as ``options``, ``meta`` and ``event_reactions``."""

    options: OptionsBody | None = None
    meta: dict[str, Json] = {}


class JobTypeInfo(Struct):
    """The defaults of a job type."""

    type: str
    defaults: dict[str, Json]
    updated_at: Timestamp


class JobTypeAnswer(Struct):
    """The answer to a request about one job type; ``warnings`` name members that have no effect."""

    job_type: JobTypeInfo
    warnings: tuple[str, ...] | UnsetType = UNSET

    @classmethod
    def of(cls, defaults: JobTypeDefaults) -> Self:
        """Return the answer that shows defaults."""
        return cls(show_job_type(defaults), defaults.warnings or UNSET)

    def value(self) -> JobTypeDefaults:
        """Return the defaults."""
        defaults = read_job_type(self.job_type)
        return defaults if self.warnings is UNSET else msgspec.structs.replace(defaults, warnings=self.warnings)


class JobTypesAnswer(Struct):
    """The job types that have defaults."""

    job_types: list[JobTypeInfo]
    pagination: PaginationBody

    @classmethod
    def of(cls, defaults: list[JobTypeDefaults], pagination: PaginationBody) -> Self:
        """Return the answer that shows a page."""
        return cls([show_job_type(shown_type) for shown_type in defaults], pagination)

    def value(self) -> list[JobTypeDefaults]:
        """Return the defaults of the page."""
        return [read_job_type(shown) for shown in self.job_types]


class DeletedJobTypeAnswer(Struct):
    """The job type whose defaults were deleted."""

    type: str
    deleted: bool = True


JOB_TYPE: Final = msgspec.json.Decoder(JobTypeBody)


def show_job_type(defaults: JobTypeDefaults) -> JobTypeInfo:
    """Return the defaults of a job type as JSON members."""
    return JobTypeInfo(defaults.type, msgspec.json.decode(defaults.body), format_timestamp(defaults.updated_at))


def read_job_type(shown: JobTypeInfo) -> JobTypeDefaults:
    """Return the defaults in an answer."""
    members: Members = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in shown.defaults.items()}
    return JobTypeDefaults(shown.type, msgspec.json.encode(members), parse_timestamp(shown.updated_at))
