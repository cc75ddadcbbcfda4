"""The JSON of requests and answers about job types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.calls import Arguments, Single
from ojster.core.json_objects import Members
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Json, PaginationBody, Timestamp
from ojster.jobs.job_types import JobTypeDefaults
from ojster.jobs.options_wire import OptionsBody
from ojster.jobs.signatures import Signature


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
        return cls(show_job_type(defaults), defaults.warnings or UNSET)

    def value(self) -> JobTypeDefaults:
        defaults = read_job_type(self.job_type)
        return defaults if self.warnings is UNSET else msgspec.structs.replace(defaults, warnings=self.warnings)


class JobTypesAnswer(Struct):
    """The job types that have defaults."""

    job_types: list[JobTypeInfo]
    pagination: PaginationBody

    @classmethod
    def of(cls, defaults: list[JobTypeDefaults], pagination: PaginationBody) -> Self:
        return cls([show_job_type(shown_type) for shown_type in defaults], pagination)

    def value(self) -> list[JobTypeDefaults]:
        return [read_job_type(shown) for shown in self.job_types]


class DeletedJobTypeAnswer(Struct):
    """The job type whose defaults were deleted."""

    type: str
    deleted: bool = True


class SignatureBody(Struct):
    """The arguments of a job type, as the handler of a worker takes them."""

    type: str
    schema: Annotated[dict[str, Json], Meta(description="A JSON Schema of the array of arguments.")]
    is_flow: Annotated[bool, Meta(description="Whether it starts as a flow, and not as a job.")] = False


class SignaturesBody(Arguments):
    """The signatures of a worker's handlers."""

    signatures: list[SignatureBody]

    @classmethod
    def of(cls, signatures: Sequence[Signature]) -> Self:
        """Return the request that announces signatures."""
        return cls([SignatureBody(known.type, known.schema, known.is_flow) for known in signatures])

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the arguments in the body."""
        return {"signatures": [Signature(shown.type, shown.schema, shown.is_flow) for shown in self.signatures]}


class AnnouncedAnswer(Single[int]):
    """The number of signatures that were announced."""

    announced: int


class SignatureInfo(SignatureBody, kw_only=True):
    """The arguments of a job type, and when a worker announced them last."""

    announced_at: Timestamp


class SignaturesAnswer(Struct):
    """The signatures that workers have announced, by job type."""

    signatures: list[SignatureInfo]

    @classmethod
    def of(cls, signatures: list[Signature]) -> Self:
        """Return the answer that shows signatures."""
        shown = [
            SignatureInfo(known.type, known.schema, known.is_flow, announced_at=format_timestamp(known.announced_at))
            for known in signatures
        ]
        return cls(shown)

    def value(self) -> list[Signature]:
        """Return the signatures."""
        return [
            Signature(shown.type, shown.schema, shown.is_flow, parse_timestamp(shown.announced_at))
            for shown in self.signatures
        ]


JOB_TYPE: Final = msgspec.json.Decoder(JobTypeBody)


def show_job_type(defaults: JobTypeDefaults) -> JobTypeInfo:
    """Return the defaults of a job type as JSON members."""
    return JobTypeInfo(defaults.type, msgspec.json.decode(defaults.body), format_timestamp(defaults.updated_at))


def read_job_type(shown: JobTypeInfo) -> JobTypeDefaults:
    """Return the defaults in an answer."""
    members: Members = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in shown.defaults.items()}
    return JobTypeDefaults(shown.type, msgspec.json.encode(members), parse_timestamp(shown.updated_at))
