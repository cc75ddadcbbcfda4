"""Collections: items with unique names, and lookups that find them.

An item is data, an artifact (data with a file), or a promise of an item that a job will provide. Every workflow has a
collection of its own, which its jobs call ``internal``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import InvalidRequest, PayloadTooLarge
from ojster.core.parsing import read_value
from ojster.core.references import lookups_in
from ojster.core.refusals import size_details
from ojster.core.tenant import qualify
from ojster.files.file import OCTET_STREAM, FileRef, NewFile
from ojster.jobs.messages import Holder

INTERNAL: Final = "internal"
"""Name by which the jobs of a workflow refer to its own collection."""

ARTIFACTS: Final = "artifacts"
"""Name of the collection of a job's artifacts."""

LARGEST_DATA: Final = 65_536
"""Maximum size of the data of an item as JSON, in bytes."""

LONGEST_ITEM_NAME: Final = 255
MAX_LOOKUP_ITEMS: Final = 1_000
"""Maximum number of items found by a lookup."""

_OF_WORKFLOW: Final = "/workflow/"
_OF_JOB: Final = "/job/"
_PROMISES_OF_WORKFLOW: Final = "/promises/"
_FILES_OF_WORKFLOW: Final = "/files/"

Kind = Literal["data", "artifact", "promise"]

_COLLECTION: Final = re.compile(r"[A-Za-z][A-Za-z0-9+._\-]{0,127}")
_decode: Final = msgspec.json.decode


def check_collection_name(name: str) -> str:
    """Validate the name of a named collection and return it.

    Raises
    ------
    InvalidRequest
        The name is invalid or reserved.
    """
    if name in (INTERNAL, ARTIFACTS) or not _COLLECTION.fullmatch(name):
        raise InvalidRequest(
            f"The collection name {name[:80]!r} is invalid: it must begin with a letter, contain only letters, digits, "
            f"'+', '.', '_' and '-', be at most 128 characters long, and not be {INTERNAL!r} or {ARTIFACTS!r}.",
            field="collection",
        )
    return name


def check_item_name(name: str) -> str:
    """Validate the name of an item and return it.

    Raises
    ------
    InvalidRequest
        The name is invalid.
    """
    if not 0 < len(name) <= LONGEST_ITEM_NAME or "/" in name or not name.isprintable():
        raise InvalidRequest(
            f"The item name {name[:80]!r} is invalid: it must have 1 to {LONGEST_ITEM_NAME} printable characters "
            "and no '/'.",
            field="name",
        )
    return name


def check_data(raw: bytes | msgspec.Raw) -> bytes:
    """Validate the data of an item, any JSON value, and return it.

    Raises
    ------
    InvalidRequest
        It is not valid JSON.
    PayloadTooLarge
        It is larger than ``LARGEST_DATA`` bytes.
    """
    data = bytes(raw)
    read_value(data, "data")
    if len(data) > LARGEST_DATA:
        message = f"The data of an item takes {len(data)} bytes; at most {LARGEST_DATA} are allowed."
        raise PayloadTooLarge(message, **size_details(LARGEST_DATA, len(data), "data"))
    return data


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """A present or removed item of a collection. Times are RFC 3339.

    Parameters
    ----------
    kind:
        ``data``; ``artifact``: data and a file; or ``promise``: a job will provide it. The name of a promise may have
        references in braces to what is not known before the job succeeds: ``build-{job.result.version}``.
    job_id:
        Id of the job that provided it or will provide it.
    removed_at:
        Time at which it was removed or replaced; ``None``: it is present.
    """

    id: int
    collection: str
    name: str
    kind: Kind
    data: msgspec.Raw
    created_at: str
    category: str | None = None
    job_id: str | None = None
    created_by: str | None = None
    removed_at: str | None = None
    removed_by: str | None = None
    file: FileRef | None = None

    def shown(self) -> bytes:
        """Return the JSON that replaces a lookup of the item in a job's arguments."""
        members: dict[str, Any] = {"name": self.name, "category": self.category, "data": self.data}
        return msgspec.json.encode(members if self.file is None else members | {"file": self.file})


class Matching(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Conditions on items, such as the artifacts of a job. Omitted conditions match all items.

    Parameters
    ----------
    name, name_startswith, name_endswith, name_contains:
        The name, or a part of it.
    category:
        The category.
    data:
        Members that the data must have, with these values.
    data_startswith, data_endswith, data_contains:
        Members of the data that must be strings with these parts.
    """

    name: str | None = None
    name_startswith: str | None = None
    name_endswith: str | None = None
    name_contains: str | None = None
    category: str | None = None
    data: dict[str, Any] = {}
    data_startswith: dict[str, str] = {}
    data_endswith: dict[str, str] = {}
    data_contains: dict[str, str] = {}

    def matches(self, name: str, category: str | None = None, data: bytes | msgspec.Raw | None = None) -> bool:
        """Return whether an item matches. Unknown data (``None``) matches."""
        if self.name is not None and name != self.name:
            return False
        if not name.startswith(self.name_startswith or "") or not name.endswith(self.name_endswith or ""):
            return False
        if self.name_contains is not None and self.name_contains not in name:
            return False
        if self.category is not None and category != self.category:
            return False
        return data is None or not self.looks_into_data or self._matches_data(_decode(data))

    @property
    def looks_into_data(self) -> bool:
        """Whether it has conditions on the data of items."""
        return bool(self.data or self.data_startswith or self.data_endswith or self.data_contains)

    def _matches_data(self, members: Any) -> bool:
        if not isinstance(members, dict):
            return False
        if any(name not in members or members[name] != value for name, value in self.data.items()):
            return False
        conditions: tuple[tuple[dict[str, str], Callable[[str, str], bool]], ...] = (
            (self.data_startswith, str.startswith),
            (self.data_endswith, str.endswith),
            (self.data_contains, str.__contains__),
        )
        return all(
            isinstance(value := members.get(name), str) and holds(value, part)
            for parts, holds in conditions
            for name, part in parts.items()
        )

    def may_match(self, pattern: str, category: str | None) -> bool:
        """Return whether an item may match if parts of its name, in braces, are still unknown."""
        start, brace, _ = pattern.partition("{")
        if not brace:
            return self.matches(pattern, category)
        if self.category is not None and category != self.category:
            return False
        if self.name is not None:
            return self.name.startswith(start)
        wanted = self.name_startswith or ""
        return wanted.startswith(start) or start.startswith(wanted)


class _Filter(Matching, frozen=True, kw_only=True):
    """The JSON form of a lookup for several items: a collection, and conditions."""

    collection: str


class Lookup(_Filter, frozen=True, kw_only=True):
    """A lookup of items in a collection.

    Parameters
    ----------
    single:
        Whether it looks up one item by name, which must exist.
    """

    single: bool = False


_read_filter: Final = msgspec.json.Decoder(_Filter).decode

DATA_QUERY: Final = ("data", "data_startswith", "data_endswith", "data_contains")
"""HTTP query parameters that are conditions on the data of items: JSON objects."""

ITEM_QUERY: Final = ("name", "name_startswith", "name_endswith", "name_contains", "category", *DATA_QUERY, "history")
"""HTTP query parameters that filter the items of a collection."""


def read_lookup(raw: bytes | msgspec.Raw) -> tuple[tuple[Lookup, ...], bool]:
    """Return the lookups in the value of ``$lookup``, and whether it looks up a single item.

    The value is ``COLLECTION/NAME`` (a single item), a filter object, or an array of both.

    Raises
    ------
    InvalidRequest
        It is malformed, or its conditions on the name exclude each other.
    """
    value = bytes(raw).lstrip()
    try:
        match value[:1]:
            case b'"':
                return (_read_single(_decode(value, type=str)),), True
            case b"{":
                return (_read_many(value),), False
            case b"[":
                lookups: list[Lookup] = []
                for raw_lookup in _decode(value, type=list[msgspec.Raw]):
                    inner, _ = read_lookup(raw_lookup)
                    lookups += inner
                return tuple(lookups), False
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"A lookup is malformed: {error}.", field="$lookup") from None
    raise InvalidRequest("A lookup must be 'COLLECTION/NAME', an object, or an array of both.", field="$lookup")


def _read_single(text: str) -> Lookup:
    collection, slash, name = text.partition("/")
    if not slash:
        raise InvalidRequest(f"The lookup {text[:80]!r} must be 'COLLECTION/NAME'.", field="$lookup")
    return Lookup(check_item_name(name), collection=_check_source(collection), single=True)


def _read_many(raw: bytes) -> Lookup:
    conditions = _read_filter(raw)
    matchers = [name for name in ("name", "name_startswith") if getattr(conditions, name) is not None]
    if len(matchers) > 1 or (
        conditions.name is not None and (conditions.name_endswith, conditions.name_contains) != (None, None)
    ):
        raise InvalidRequest("A lookup takes 'name' alone, or conditions such as 'name_startswith'.", field="name")
    return Lookup(**{**msgspec.structs.asdict(conditions), "collection": _check_source(conditions.collection)})


def _check_source(collection: str) -> str:
    return collection if collection == INTERNAL else check_collection_name(collection)


def check_lookups(args: bytes | msgspec.Raw) -> bool:
    """Return whether the arguments of a job outside of workflows contain lookups.

    Raises
    ------
    InvalidRequest
        A lookup is malformed, or refers to the collection of a workflow.
    """
    raw_lookups = list(lookups_in(args))
    for raw in raw_lookups:
        for lookup in read_lookup(raw)[0]:
            if lookup.collection == INTERNAL:
                raise InvalidRequest(f"Only steps of workflows have a collection {INTERNAL!r}.", field="args")
    return bool(raw_lookups)


class Where(msgspec.Struct, frozen=True):
    """The address of a collection: a name, a workflow, or a job (for its artifacts).

    With a job and a name, it is the collection with that name in the job's workspace. ``holder`` is the attempt in
    which a worker changes it: for a workflow, that of one of its jobs.
    """

    name: str | None = None
    workflow_id: str | None = None
    job_id: str | None = None
    holder: Holder | None = None


class NewItem(msgspec.Struct, frozen=True):
    """An item to add to a collection.

    Parameters
    ----------
    replace:
        Whether to replace an item with the same name. By default such an item is a conflict.
    file_id:
        Id of the file of an artifact.
    filename, content_type:
        Name and type of the file in this collection. The defaults are those of the upload.
    """

    name: str
    data: bytes
    category: str | None = None
    replace: bool = False
    file_id: str | None = None
    filename: str | None = None
    content_type: str | None = None

    def with_file(self, file: FileRef | None) -> NewItem:
        """Return the item with a file, its name and its type; unchanged if ``file`` is ``None``."""
        if file is None:
            return self
        return msgspec.structs.replace(self, file_id=file.id, filename=file.filename, content_type=file.content_type)

    def check(self) -> NewItem:
        """Validate the item and return it.

        Raises
        ------
        InvalidRequest
            The name, the data, or the name or type of the file is invalid.
        PayloadTooLarge
            The data is too large.
        """
        check_item_name(self.name)
        check_data(self.data)
        if self.file_id is None and (self.filename is not None or self.content_type is not None):
            name = "content_type" if self.filename is None else "filename"
            raise InvalidRequest(f"{name!r} has no effect without 'file'. Name a file, or leave it out.", field=name)
        NewFile(content_type=self.content_type or OCTET_STREAM, filename=self.filename).check()
        return self


class PromisedItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An item that a step promises to add to its workflow's collection when it succeeds.

    Parameters
    ----------
    data:
        Data of the item, which may contain references to the job (``job.result``). The default is the job's result.
    artifact:
        Filter that selects the job's artifact to add. By default the item is data.
    """

    name: str
    category: str | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    artifact: Matching | None = None


_read_provided: Final = msgspec.json.Decoder(list[str | PromisedItem]).decode


def read_provided(raw: bytes | msgspec.Raw) -> list[PromisedItem]:
    """Return the items in a step's ``provides``: an array of names or objects.

    Raises
    ------
    InvalidRequest
        It is malformed, or contains a name twice.
    """
    try:
        provided = [PromisedItem(entry) if isinstance(entry, str) else entry for entry in _read_provided(raw)]
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"'provides' is malformed: {error}.", field="provides") from None
    for item in provided:
        check_item_name(item.name)
        if item.data is not msgspec.UNSET:
            check_data(item.data)
    if len({item.name for item in provided}) < len(provided):
        raise InvalidRequest("'provides' contains a name twice. Give each item its own name.", field="provides")
    return provided


def key_of(tenant: str, collection: str, workflow: int | None) -> str:
    """Return the storage key of a collection: a tenant's named one, or ``internal`` of the workflow with a ``seq``.

    Raises
    ------
    InvalidRequest
        The collection is ``internal``, and there is no workflow.
    """
    if collection != INTERNAL:
        return qualify(tenant, collection)
    if workflow is None:
        raise InvalidRequest(f"Only jobs of workflows have a collection {INTERNAL!r}.", field="collection")
    return key_of_workflow(workflow)


def key_of_workflow(workflow: int) -> str:
    """Return the storage key of the collection of a workflow, given its ``seq``."""
    return f"{_OF_WORKFLOW}{workflow}"


def key_of_promises(workflow: int) -> str:
    """Return the storage key of the promises of a workflow with references in their names, given its ``seq``."""
    return f"{_PROMISES_OF_WORKFLOW}{workflow}"


def key_of_kept_files(workflow: int) -> str:
    """Return the storage key of the files that a fork has kept of the first run, given the ``seq`` of the fork."""
    return f"{_FILES_OF_WORKFLOW}{workflow}"


def key_of_job(seq: int) -> str:
    """Return the storage key of the artifacts of a job, given its ``seq``."""
    return f"{_OF_JOB}{seq}"


def is_of_job(key: str) -> bool:
    """Return whether a storage key belongs to the artifacts of a job."""
    return key.startswith(_OF_JOB)


def is_internal(key: str) -> bool:
    """Return whether a storage key belongs to the collection of a workflow."""
    return key.startswith((_OF_WORKFLOW, _PROMISES_OF_WORKFLOW, _FILES_OF_WORKFLOW))
