"""The JSON of answers about schemas."""

from __future__ import annotations

from typing import Literal, Self

import msgspec
from msgspec import Raw, Struct

from ojster.core.calls import Whole
from ojster.core.json_schema import parse_version
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import PaginationBody, Timestamp
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

    @classmethod
    def of(cls, schema: Schema) -> Self:
        shown = show_schema(schema)
        return cls(**msgspec.structs.asdict(shown), registered=shown)

    @classmethod
    def by_uri(cls, schema: Schema) -> Self:
        """Return the answer that shows a schema to those who know it by its URI."""
        answer = cls.of(schema)
        answer.schema = Raw(msgspec.json.encode(answer.registered))
        return answer

    def value(self) -> Schema:
        return read_schema(self.registered)


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

    @classmethod
    def of(cls, schemas: list[Schema], pagination: PaginationBody) -> Self:
        return cls([show_schema(schema) for schema in schemas], pagination)

    def value(self) -> list[Schema]:
        return [read_schema(shown) for shown in self.schemas]


class DeletedSchemaAnswer(Whole):
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


def read_schema(shown: SchemaInfo) -> Schema:
    """Return the schema in an answer."""
    version = str(shown.version)
    created_at = parse_timestamp(shown.created_at)
    schema = Schema(shown.type, parse_version(version), version, shown.mode, bytes(shown.schema), created_at)
    return schema if schema.uri == shown.uri else msgspec.structs.replace(schema, given_uri=shown.uri)
