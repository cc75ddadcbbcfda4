"""Registered schemas for the arguments of jobs.

Spec: ojs-schema-registry
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from ojster.core.errors import Duplicate, InvalidRequest, NotFound, OjsterError
from ojster.core.json_objects import Members
from ojster.core.json_schema import Check, Version, breaking_changes, compile_schema, parse_version
from ojster.core.parsing import read_value
from ojster.core.refusals import SchemaViolation
from ojster.core.tenant import NOBODY, called, qualify, split
from ojster.jobs.names import string
from ojster.jobs.new_job import NewJob
from ojster.storage.call import for_each
from ojster.storage.memory import Remembered
from ojster.storage.transaction import Transaction


class Mode(StrEnum):
    """Handling of a job with arguments that violate the schema: reject it, accept it with a warning, or accept it."""

    STRICT = "strict"
    WARN = "warn"
    OFF = "off"


class Schema(msgspec.Struct, frozen=True):
    """A version of the schema for a job type's arguments.

    ``name`` is the version as given, and ``body`` is JSON. ``given_uri`` is the URI under which it was registered;
    ``None``: the URI of its type and version.
    """

    type: str
    version: Version
    name: str
    mode: Mode
    body: bytes
    created_at: int = 0
    given_uri: str | None = None

    @property
    def uri(self) -> str:
        """The URI by which jobs name the schema, without its tenant.

        Spec: ojs-core 5.2
        """
        return self.given_uri or f"urn:ojs:schema:{called(self.type)}:v{self.name}"


_COLUMNS: Final = "type, major, minor, patch, name, mode, body, created_at, uri"

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[!-~]+")

MAX_URI_LENGTH: Final = 500


def check_uri(uri: str) -> str:
    """Return the URI of a schema.

    Raises
    ------
    InvalidRequest
        It is not a URI.
    """
    if len(uri) > MAX_URI_LENGTH or not _URI.fullmatch(uri):
        raise InvalidRequest(
            f"'schema' must be a URI such as 'urn:ojs:schema:email.send:v1', not {uri[:80]!r}.", field="schema"
        )
    return uri


def _schema(row: Sequence[Any]) -> Schema:
    type, major, minor, patch, name, mode, body, created_at, uri = row
    return Schema(type, (major, minor, patch), name, Mode(mode), body, created_at, uri)


@for_each
def register_schemas(tx: Transaction, schema: Schema) -> Schema | OjsterError:
    """Register valid schemas; return each schema, or the reason why it was refused.

    An existing version cannot be changed. A version that breaks what the version before it allowed must have a greater
    major number.

    Spec: ojs-schema-registry 8.4
    """
    known = _versions(tx, schema.type)
    if schema.given_uri is not None and find_by_uri(tx, [(split(schema.type)[0], schema.given_uri)])[0] is not None:
        message = f"A schema with the URI {schema.given_uri} already exists. Register it under another URI."
        return Duplicate(message, uri=schema.given_uri)
    if any(earlier.version == schema.version for earlier in known):
        return Duplicate(
            f"Version {schema.name} of the schema of {schema.type} already exists. Register a new version.",
            job_type=schema.type,
            version=schema.name,
        )
    before = next((older for older in known if older.version < schema.version), None)
    if before is not None and before.version[0] == schema.version[0]:
        broken = breaking_changes(msgspec.json.decode(before.body), msgspec.json.decode(schema.body))
        if broken:
            return SchemaViolation(
                f"Version {schema.name} breaks what {before.name} allowed; give it the major version "
                f"{schema.version[0] + 1}.",
                breaking_changes=broken,
                field="version",
            )
    tx.execute(
        f"INSERT INTO schemas ({_COLUMNS}) VALUES (:type, :major, :minor, :patch, :name, :mode, :body, :now, :uri)",
        dict(zip(("major", "minor", "patch"), schema.version, strict=True))
        | {"type": schema.type, "name": schema.name, "mode": schema.mode.value, "body": schema.body}
        | {"now": tx.now, "uri": schema.given_uri},
    )
    tx.effects.configured = True
    tx.emit_about("schema.registered", schema.type, job_type=schema.type, version=schema.name)
    return msgspec.structs.replace(schema, created_at=tx.now)


def _versions(tx: Transaction, type: str) -> list[Schema]:
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM schemas WHERE type = :type ORDER BY major DESC, minor DESC, patch DESC",
        {"type": type},
    )
    return [_schema(row) for row in rows]


@for_each
def list_schemas(tx: Transaction, type: str | None) -> list[Schema]:
    """Return the schemas of each job type, or (``None``) of all, the latest version first."""
    if type is not None:
        return _versions(tx, type)
    rows = tx.execute(f"SELECT {_COLUMNS} FROM schemas ORDER BY type, major DESC, minor DESC, patch DESC")
    return [_schema(row) for row in rows]


def find_by_uri(tx: Transaction, named: Sequence[tuple[str, str]]) -> list[Schema | None]:
    """Return the schema of a tenant with a URI, for each pair of both."""
    (schemas,) = list_schemas(tx, [None])
    by_uri = {(split(schema.type)[0], schema.uri): schema for schema in schemas}
    return [by_uri.get(pair) for pair in named]


@for_each
def delete_schemas(tx: Transaction, version_of_type: tuple[str, Version]) -> Schema | OjsterError:
    """Delete versions of schemas; return each deleted schema, or ``NotFound``."""
    type, version = version_of_type
    schema = next((version_schema for version_schema in _versions(tx, type) if version_schema.version == version), None)
    if schema is None:
        return no_schema(type, ".".join(map(str, version)))
    tx.execute(
        "DELETE FROM schemas WHERE type = :type AND major = :major AND minor = :minor AND patch = :patch",
        dict(zip(("major", "minor", "patch"), version, strict=True)) | {"type": type},
    )
    tx.effects.configured = True
    return schema


def no_schema(type: str, version: str | None = None) -> NotFound:
    """Return the error for a schema that does not exist."""
    named = f"version {version} of a schema of {type}" if version else f"schema of {type}"
    return NotFound(f"There is no {named}.", resource_type="schema", resource_id=type)


class Catalogue:
    """Schemas as compiled checks, for one process. A schema is compiled on first use.

    Attributes
    ----------
    by_type:
        The schemas of each job type, the latest version first.
    """

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self.by_type: dict[str, list[Schema]] = {}
        self._by_uri: dict[tuple[str, str], Schema] = {}
        for schema in schemas:
            self.by_type.setdefault(schema.type, []).append(schema)
            self._by_uri[split(schema.type)[0], schema.uri] = schema
        self._checks: dict[Schema, Check] = {}

    def schema_with_uri(self, tenant: str, uri: str) -> Schema | None:
        """Return the schema of a tenant with a URI, or else the one for all tenants, if there is one."""
        return self._by_uri.get((tenant, uri)) or self._by_uri.get((NOBODY, uri))

    def schema_of(self, type: str, version: Any) -> Schema | None:
        """Return the schema for a job: the one of its version, or the latest if it has no version.

        ``None``: the type has no schema, or none of this version.

        Raises
        ------
        InvalidRequest
            The type has schemas, and the version is malformed.
        """
        known = self.by_type.get(type)
        if not known:
            return None
        if version is None:
            return known[0]
        wanted = parse_version(version)
        return next((schema for schema in known if schema.version == wanted), None)

    def violations(self, schema: Schema, args: Any) -> list[str]:
        """Return the violations of a schema by the arguments of a job; empty if its mode is ``OFF``."""
        if schema.mode is Mode.OFF:
            return []
        if schema not in self._checks:
            self._checks[schema] = compile_schema(msgspec.json.decode(schema.body))
        return self._checks[schema](args)


def _read_catalogue(tx: Transaction) -> Catalogue:
    (schemas,) = list_schemas(tx, [None])
    return Catalogue(schemas)


registered: Final = Remembered[Catalogue](_read_catalogue)
"""The registered schemas."""


def schema_uri(members: Members) -> str | None:
    """Return the URI of the schema that an enqueue request names, if any.

    Raises
    ------
    InvalidRequest
        ``schema`` is not a URI.
    """
    uri = bytes(members.get("schema", b"null"))
    return None if uri == b"null" else check_uri(string(uri, "schema"))


def check_args(catalogue: Catalogue, job: NewJob, args: msgspec.Raw, uri: str | None = None) -> tuple[str, ...]:
    """Return warnings for the arguments of a job that violate a schema in mode ``warn``.

    Parameters
    ----------
    uri:
        The URI of the schema that the job names; ``None``: the schema of its type and version.

    Raises
    ------
    SchemaViolation
        The arguments violate a strict schema.

    Spec: ojs-core 5.2, ojs-schema-registry 7
    """
    if uri is not None:
        schema = catalogue.schema_with_uri(job.tenant, uri)
        if schema is None:
            return (f"The arguments were not validated: no schema is registered under {uri}.",)
    else:
        version = None if job.version is None else read_value(job.version, "version")
        schema = catalogue.schema_of(qualify(job.tenant, job.type), version) or catalogue.schema_of(job.type, version)
    if schema is None:
        return ()
    wrong = catalogue.violations(schema, read_value(args, "args"))
    if wrong and schema.mode is Mode.STRICT:
        raise SchemaViolation(
            f"Job arguments do not match the schema of {job.type}@{schema.name}.", validation_errors=wrong
        )
    return tuple(f"Schema validation warning: {problem}" for problem in wrong)
