"""What is in a collection, and how is it found? Items with unique names, and lookups. (seed 003: collections)

A collection holds items by name: data, or promises of what a job will bring. Every workflow has one of its own, which
its jobs call ``internal``.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import InvalidRequest, PayloadTooLarge
from ojster.core.parsing import read_value
from ojster.core.references import lookups_in
from ojster.core.tenant import qualify
from ojster.files.file import OCTETS, FileRef, NewFile

INTERNAL: Final = "internal"
"""What the jobs of a workflow call its own collection."""

ARTIFACTS: Final = "artifacts"
"""What the collection is called of what a job has brought about."""

LARGEST_DATA: Final = 65_536
"""How many bytes the data of an item may have as JSON."""

LONGEST_NAME: Final = 255
MOST_FOUND: Final = 1_000
"""How many items a lookup may find."""

_OF_WORKFLOW: Final = "/workflow/"
_OF_JOB: Final = "/job/"

Kind = Literal["data", "artifact", "promise"]

_COLLECTION: Final = re.compile(r"[A-Za-z][A-Za-z0-9+._\-]{0,127}")
_decode: Final = msgspec.json.decode


def check_collection_name(name: str) -> str:
    """Return the name of a collection that is no workflow's.

    Raises
    ------
    InvalidRequest
        It is none.
    """
    if name in (INTERNAL, ARTIFACTS) or not _COLLECTION.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} is no name of a collection: it begins with a letter, has letters, digits, '+', '.', '_' "
            f"and '-', at most 128, and is not {INTERNAL!r} or {ARTIFACTS!r}.",
            field="collection",
        )
    return name


def check_item_name(name: str) -> str:
    """Return the name of an item.

    Raises
    ------
    InvalidRequest
        It is none.
    """
    if not 0 < len(name) <= LONGEST_NAME or "/" in name or not name.isprintable():
        raise InvalidRequest(
            f"{name[:80]!r} is no name of an item: it has 1 to {LONGEST_NAME} printable characters, and no '/'.",
            field="name",
        )
    return name


def check_data(raw: bytes | msgspec.Raw) -> bytes:
    """Return the data of an item, any JSON value.

    Raises
    ------
    InvalidRequest, PayloadTooLarge
        It is no JSON, or too large.
    """
    data = bytes(raw)
    read_value(data, "data")
    if len(data) > LARGEST_DATA:
        message = f"The data of an item takes {len(data)} bytes; at most {LARGEST_DATA} are allowed."
        raise PayloadTooLarge(message, limit=LARGEST_DATA)
    return data


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is, or was, in a collection. Times are RFC 3339.

    Parameters
    ----------
    kind:
        ``data``; ``artifact``: data, and a file; or ``promise``: the job, or the step of that path, will bring it.
    job_id:
        Which job has put it there, or is to.
    removed_at:
        When it was removed, or another took its place; ``None``: it is there.
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
        """Return what the arguments of a job have of it."""
        found: dict[str, Any] = {"name": self.name, "category": self.category, "data": self.data}
        return msgspec.json.encode(found if self.file is None else found | {"file": self.file})


class Matching(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What artifacts of a job must be like: how they are called, of which category, and with which data."""

    name: str | None = None
    name_startswith: str | None = None
    name_endswith: str | None = None
    name_contains: str | None = None
    category: str | None = None
    data: dict[str, Any] = {}

    @property
    def lookup(self) -> Lookup:
        """The lookup that finds them, in whatever collection they are."""
        return Lookup("", **msgspec.structs.asdict(self))


class _Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a lookup says of several items."""

    collection: str
    name: str | None = None
    name_startswith: str | None = None
    name_endswith: str | None = None
    name_contains: str | None = None
    category: str | None = None
    data: dict[str, Any] = {}


class Lookup(_Filter, frozen=True):
    """Which items are meant. What is left out matches all.

    Parameters
    ----------
    single:
        Whether it is one item that must be there, by its name.
    data:
        Members that the data must have, with these values.
    """

    single: bool = False

    def matches(self, name: str, category: str | None = None, data: bytes | msgspec.Raw | None = None) -> bool:
        """Whether an item is among them; one of whose data nothing is known yet may be."""
        if self.name is not None and name != self.name:
            return False
        if not name.startswith(self.name_startswith or "") or not name.endswith(self.name_endswith or ""):
            return False
        if self.name_contains is not None and self.name_contains not in name:
            return False
        if self.category is not None and category != self.category:
            return False
        if not self.data or data is None:
            return True
        found = _decode(data)
        return isinstance(found, dict) and all(
            name in found and found[name] == value for name, value in self.data.items()
        )

    def may_match(self, pattern: str, category: str | None) -> bool:
        """Whether an item may be among them of whose name parts, in braces, are not known yet."""
        start, brace, _ = pattern.partition("{")
        if not brace:
            return self.matches(pattern, category)
        if self.category is not None and category != self.category:
            return False
        if self.name is not None:
            return self.name.startswith(start)
        wanted = self.name_startswith or ""
        return wanted.startswith(start) or start.startswith(wanted)


_read_filter: Final = msgspec.json.Decoder(_Filter).decode

ITEM_QUERY: Final = ("name", "name_startswith", "name_endswith", "name_contains", "category", "data", "history")
"""By what items of a collection are asked for over HTTP."""

Lookups = tuple[Lookup, ...]


def read_lookup(raw: bytes | msgspec.Raw) -> tuple[Lookups, bool]:
    """Return what ``$lookup`` says, and whether it is a single item: ``COLLECTION/NAME``, a filter, or a list of both.

    Raises
    ------
    InvalidRequest
        It is malformed, or two of its members say different things of the same.
    """
    value = bytes(raw).lstrip()
    try:
        match value[:1]:
            case b'"':
                return (_read_single(_decode(value, type=str)),), True
            case b"{":
                return (_read_many(value),), False
            case b"[":
                found: list[Lookup] = []
                for one in _decode(value, type=list[msgspec.Raw]):
                    inner, _ = read_lookup(one)
                    found += inner
                return tuple(found), False
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"A lookup is malformed: {error}.", field="$lookup") from None
    raise InvalidRequest("A lookup is 'COLLECTION/NAME', an object, or an array of both.", field="$lookup")


def _read_single(text: str) -> Lookup:
    collection, slash, name = text.partition("/")
    if not slash:
        raise InvalidRequest(f"The lookup {text[:80]!r} must be 'COLLECTION/NAME'.", field="$lookup")
    return Lookup(_check_source(collection), check_item_name(name), single=True)


def _read_many(raw: bytes) -> Lookup:
    given = _read_filter(raw)
    matchers = [name for name in ("name", "name_startswith") if getattr(given, name) is not None]
    if len(matchers) > 1 or (given.name is not None and (given.name_endswith, given.name_contains) != (None, None)):
        raise InvalidRequest("A lookup says 'name', or what the name begins with, ends with or contains.", field="name")
    return Lookup(**{**msgspec.structs.asdict(given), "collection": _check_source(given.collection)})


def _check_source(collection: str) -> str:
    return collection if collection == INTERNAL else check_collection_name(collection)


def check_lookups(args: bytes | msgspec.Raw) -> bool:
    """Tell whether lookups stand in the arguments of a job that is no step of a workflow.

    Raises
    ------
    InvalidRequest
        One is malformed, or leads to the collection of a workflow.
    """
    found = list(lookups_in(args))
    for raw in found:
        for one in read_lookup(raw)[0]:
            if one.collection == INTERNAL:
                raise InvalidRequest(f"Only steps of workflows have a collection {INTERNAL!r}.", field="args")
    return bool(found)


class Where(msgspec.Struct, frozen=True):
    """Which collection: a named one, that of a workflow, or what a job has brought about.

    With a job and a name, it is the collection that the job's workspace calls so.
    """

    name: str | None = None
    workflow_id: str | None = None
    job_id: str | None = None


class NewItem(msgspec.Struct, frozen=True):
    """Something that is to be put into a collection.

    Parameters
    ----------
    replace:
        Whether it takes the place of an item of the same name; else such a one is a conflict.
    file_id:
        The file of an artifact.
    filename, content_type:
        How that is called here, and what it is; by default as it was uploaded.
    """

    name: str
    data: bytes
    category: str | None = None
    replace: bool = False
    file_id: str | None = None
    filename: str | None = None
    content_type: str | None = None

    def with_file(self, file: FileRef | None) -> NewItem:
        """Return it with the file of another item, called as that calls it; without one, as it is."""
        if file is None:
            return self
        return msgspec.structs.replace(self, file_id=file.id, filename=file.filename, content_type=file.content_type)

    def check(self) -> NewItem:
        """Return it, if it may be.

        Raises
        ------
        InvalidRequest, PayloadTooLarge
            The name, the data, or what the file is called are none.
        """
        check_item_name(self.name)
        check_data(self.data)
        NewFile(content_type=self.content_type or OCTETS, filename=self.filename).check()
        return self


class Provided(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a step promises to put into its workflow's collection when it has succeeded.

    Parameters
    ----------
    data:
        Its data, in which references may lead to the job (``job.result``); without, the result of the job.
    artifact:
        The artifact of the job that it is, by what it must be like; without, it is data.
    """

    name: str
    category: str | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    artifact: Matching | None = None


_read_provided: Final = msgspec.json.Decoder(list[str | Provided]).decode


def read_provided(raw: bytes | msgspec.Raw) -> list[Provided]:
    """Return what a step says that it ``provides``: names, or objects.

    Raises
    ------
    InvalidRequest
        It is malformed.
    """
    try:
        given = [Provided(one) if isinstance(one, str) else one for one in _read_provided(raw)]
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"'provides' is malformed: {error}.", field="provides") from None
    for one in given:
        check_item_name(one.name)
        if one.data is not msgspec.UNSET:
            check_data(one.data)
    if len({one.name for one in given}) < len(given):
        raise InvalidRequest("'provides' has a name twice.", field="provides")
    return given


def key_of(tenant: str, collection: str, workflow: int | None) -> str:
    """Return under which name the items of a tenant's collection are kept; of a workflow's own: by its number.

    Raises
    ------
    InvalidRequest
        There is no workflow whose collection it could be.
    """
    if collection != INTERNAL:
        return qualify(tenant, collection)
    if workflow is None:
        raise InvalidRequest(f"Only jobs of workflows have a collection {INTERNAL!r}.", field="collection")
    return key_of_workflow(workflow)


def key_of_workflow(workflow: int) -> str:
    """Return under which name the items of a workflow's own collection are kept."""
    return f"{_OF_WORKFLOW}{workflow}"


def key_of_job(seq: int) -> str:
    """Return under which name the artifacts of a job are kept."""
    return f"{_OF_JOB}{seq}"


def is_of_job(key: str) -> bool:
    """Whether a collection is what a job has brought about."""
    return key.startswith(_OF_JOB)


def is_internal(key: str) -> bool:
    """Whether a collection is a workflow's own."""
    return key.startswith(_OF_WORKFLOW)
