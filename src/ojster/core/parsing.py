"""Checks of values and members in a request, with errors that name them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum, EnumType
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.ids import canonical_job_id
from ojster.core.json_objects import MAX_VALUE_DEPTH, Members, check_depth, raw_list
from ojster.core.printable import unstorable


def read_value(raw: bytes | msgspec.Raw, name: str, deepest: int = MAX_VALUE_DEPTH) -> Any:
    """Return the value of an attribute with valid JSON syntax.

    Raises
    ------
    InvalidRequest
        It has a number out of range, such as ``1e999``, or a lone surrogate, or is nested deeper than
        ``deepest`` levels.
    """
    check_depth(bytes(raw), f"The {name!r} attribute", deepest)
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The {name!r} attribute cannot be read: {error}.", field=name) from None


PageLimit = Annotated[int, msgspec.Meta(ge=1, lt=10**9)]
"""Size of a page. Larger ones than an endpoint allows count as its largest."""

PageOffset = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]
"""Number of entries before a page."""


LogNumber = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
"""Number of an entry of a log, such as a line or an event; 0 is before the first."""


def check_bounds(name: str, value: Any, kind: Any) -> None:
    """Check a value against the bounds of its type: endpoints check what they read, and callers in the process do not.

    Raises
    ------
    InvalidRequest
        It is out of bounds.
    """
    is_struct = isinstance(value, msgspec.Struct)
    if is_struct:
        kind = type(value)
    try:
        # The members of a struct are as unchecked as itself, and are looked at only in the form of a request.
        msgspec.convert(msgspec.to_builtins(value, builtin_types=_BYTES), kind, builtin_types=_BYTES)
    except UnicodeEncodeError as error:
        raise unstorable(error.object, error.object[error.start]) from None
    except (msgspec.ValidationError, TypeError) as error:
        which = repr(name) if is_struct else f"{name!r} is {value!r:.60}"
        raise InvalidRequest(f"{which}: {error}.{choices_of(kind)}", field=name) from None


_BYTES: Final = (bytes,)


def choices_of(kind: Any) -> str:
    """Return a sentence that names the texts that a type allows; an empty one if it does not list them."""
    return f" Use one of {', '.join(choices)}." if (choices := _choices(kind)) else ""


def _choices(kind: Any) -> list[str]:
    """Return the texts that a type allows, if it names them."""
    if isinstance(kind, EnumType):
        return [str(member.value) for member in list[Enum](kind)]
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [choice for part in get_args(kind) for choice in _choices(part)]


class Bounded(msgspec.Struct, frozen=True):
    """A request with bounds in the types of its members, in which they hold however it is made.

    Raises
    ------
    InvalidRequest
        A member is out of bounds.
    """

    def __post_init__(self) -> None:
        for attribute, name, kind in _bounds_of(type(self)):
            check_bounds(name, getattr(self, attribute), kind)


@cache
def _bounds_of(kind: type[msgspec.Struct]) -> list[tuple[str, str, Any]]:
    """Return the members of a request that have bounds: attribute, name, and type."""
    return [
        (field.name, field.encode_name, field.type) for field in msgspec.structs.fields(kind) if has_bounds(field.type)
    ]


def has_bounds(kind: Any) -> bool:
    """Return whether a type, or something in it, is bounded, or one of a few values."""
    if isinstance(kind, EnumType) or get_origin(kind) is Literal:
        return True
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return any(has_bounds(field.type) for field in msgspec.structs.fields(kind))
    is_bounded = any(isinstance(meta, msgspec.Meta) for meta in getattr(kind, "__metadata__", ()))
    return is_bounded or any(map(has_bounds, get_args(kind)))


def matches_any(text: str, patterns: Iterable[str]) -> bool:
    """Return whether a text is one of the patterns, or begins as one that ends in ``*``."""
    return any(text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern for pattern in patterns)


def meant_by(name: str, known: Collection[str]) -> str | None:
    """Return the known name that an unknown one looks like; ``None`` if it looks like none."""
    return next(iter(difflib.get_close_matches(name, known, 1, 0.85)), None)


def misspellings(names: Collection[str], known: Collection[str], where: str) -> list[str]:
    """Return a warning for each unknown name that looks like a known one, such as ``prioriy``."""
    return [
        _warning(where, name, meant)
        for name in sorted(names)
        if name not in known and (meant := meant_by(name, known)) is not None
    ]


def _warning(where: str, name: str, meant: str) -> str:
    return f"{where} {name[:60]!r} is unknown and has no effect; did you mean {meant!r}?"


def misspelt_members(members: Mapping[str, msgspec.Raw], kind: object) -> list[str]:
    """Return a warning for each member that the type of a request does not have and that looks like one that it has.

    Objects in the request, and in its lists, are looked into, too.
    """
    return [
        _warning(f"{_within(place)}The member", name, meant)
        for place, name, known in _unknown(members, kind, ())
        if (meant := meant_by(name, known)) is not None
    ]


def unknown_members(members: Mapping[str, msgspec.Raw], kind: object) -> list[str]:
    """Return a warning for each member that the type of a request does not have, also of objects in it."""
    return [
        f"{_within(place)}The member {name[:60]!r} is unknown and has no effect. Use {', '.join(sorted(known))}."
        for place, name, known in _unknown(members, kind, ())
    ]


def _within(place: tuple[str, ...]) -> str:
    return "".join(f"{part}: " for part in place)


def _unknown(
    members: Mapping[str, msgspec.Raw], kind: object, place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, frozenset[str]]]:
    """Yield for each member that the type does not have where it is, its name, and those that the type has there."""
    known = _members_of(kind)
    for name in sorted(members.keys() - known) if known else ():
        yield place, name, known
    for name, field in _with_objects(kind).items():
        raw = bytes(members.get(name, b""))
        if field.body is not None and raw[:1] == b"{":
            yield from _unknown(_decode_members(raw), field.body, (*place, name))
        elif field.named is not None and raw[:1] == b"{":
            for key, value in _decode_members(raw).items():
                if bytes(value)[:1] == b"{":
                    yield from _unknown(_decode_members(value), field.named, (*place, name, key[:60]))
        elif field.bodies is not None and raw[:1] == b"[":
            objects = _objects_in(raw)
            names = set[str]().union(*objects)  # reports of workers come by the hundred, and seldom have other members
            if names <= _members_of(field.bodies) and names.isdisjoint(_with_objects(field.bodies)):
                continue
            for index, inner in enumerate(objects):
                yield from _unknown(inner, field.bodies, (*place, f"{name}[{index}]"))


def _objects_in(raw: bytes) -> list[Members]:
    """Return the objects of a list; none if it has other elements, which the type of the request refuses."""
    try:
        return _decode_objects(raw)
    except msgspec.ValidationError:
        return []


_decode_members: Final = msgspec.json.Decoder(Members).decode
_decode_objects: Final = msgspec.json.Decoder(list[Members]).decode


@cache
def _with_objects(kind: object) -> Mapping[str, _Field]:
    """Return the members of a type of request that are objects, or lists of objects, or objects by name."""
    return {name: field for name, field in _fields_of(kind).items() if any(field[1:])}


def refuse_misspelt(members: Mapping[str, msgspec.Raw], kind: object, *, inside: bool = True) -> None:
    """Refuse members that the type of a request does not have and that look like one that it has.

    Other unknown members are accepted: they may be of a later version of the specification.

    Parameters
    ----------
    inside:
        Whether those of objects in the request are refused, too.

    Raises
    ------
    InvalidRequest
        A member looks misspelt.
    """
    for place, name, known in _unknown(members, kind, ()):
        if (inside or not place) and (meant := meant_by(name, known)) is not None:
            raise InvalidRequest(
                f"Unknown member {name[:60]!r}; did you mean {meant!r}?", field=".".join((*place, name))
            )


def without_nulls(raw: bytes | msgspec.Raw, kind: object) -> bytes:
    """Return the JSON of a request without the members that are ``null`` where their type has no ``null``.

    Spec: ojs-json-format 14.2
    """
    fields = _fields_of(kind)
    if not fields or bytes(raw)[:1] != b"{":
        return bytes(raw)
    members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    kept: dict[str, msgspec.Raw] = {}
    for name, value in members.items():
        field = fields.get(name)
        if field is None or field.takes_null or bytes(value) != b"null":
            kept[name] = value if field is None else msgspec.Raw(_without_nulls_inside(value, field))
    return msgspec.json.encode(kept)


def _without_nulls_inside(raw: msgspec.Raw, field: _Field) -> bytes:
    if field.body is not None:
        return without_nulls(raw, field.body)
    if field.bodies is None or bytes(raw)[:1] != b"[":
        return bytes(raw)
    return msgspec.json.encode([msgspec.Raw(without_nulls(element, field.bodies)) for element in raw_list(raw)])


_JOB_IDS: Final = frozenset({"job_id", "job_ids", "ids", "active_jobs", "active_job_ids", "attempts"})
"""Members of requests that are ids of jobs: one, a list, or the keys of an object."""


def use_canonical_job_ids(body: Any) -> None:
    """Change the ids of jobs in a decoded request, and in the objects in it, to lower case, as they are stored.

    Spec: ojs-core 13.6
    """
    kind: Any = type(body)
    for name, nested in _with_job_ids(kind):
        value = getattr(body, name)
        if nested:
            for inner in value or ():
                use_canonical_job_ids(inner)
        elif (canonical := _canonical(value)) is not value:
            msgspec.structs.force_setattr(body, name, canonical)


def _canonical(value: Any) -> Any:
    match value:
        case str():
            return value if value.islower() else canonical_job_id(value)
        case list():
            return value if all(map(str.islower, value)) else list(map(canonical_job_id, value))
        case dict():
            return {canonical_job_id(id): number for id, number in value.items()}
    return value


@cache
def _with_job_ids(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Return the members of a type of request that are ids of jobs, or lists of objects with such (true)."""
    fields = _fields_of(kind)
    nested = {name for name, field in fields.items() if isinstance(field.bodies, type) and _with_job_ids(field.bodies)}
    return tuple((name, name in nested) for name in fields if name in _JOB_IDS or name in nested)


class _Field(NamedTuple):
    """A member of a request: whether it may be ``null``, and the type of the objects in it: alone, in a list, named."""

    takes_null: bool
    body: object = None
    bodies: object = None
    named: object = None


@cache
def _fields_of(kind: object) -> Mapping[str, _Field]:
    """Return the members of a type of request; none if it may have any."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {}
    fields = {}
    described = msgspec.inspect.type_info(kind)
    assert isinstance(described, msgspec.inspect.StructType)
    for field in described.fields:
        type_ = field.type
        types = type_.types if isinstance(type_, msgspec.inspect.UnionType) else (type_,)
        body = next((kind.cls for kind in types if isinstance(kind, msgspec.inspect.StructType)), None)
        items = next((kind.item_type for kind in types if isinstance(kind, msgspec.inspect.ListType)), None)
        bodies = items.cls if isinstance(items, msgspec.inspect.StructType) else None
        values = next((kind.value_type for kind in types if isinstance(kind, msgspec.inspect.DictType)), None)
        named = values.cls if isinstance(values, msgspec.inspect.StructType) else None
        is_null = (msgspec.inspect.NoneType, msgspec.inspect.RawType, msgspec.inspect.AnyType)
        fields[field.encode_name] = _Field(any(isinstance(kind, is_null) for kind in types), body, bodies, named)
    return fields


@cache
def _members_of(kind: object) -> frozenset[str]:
    """Return the names of the members of a type of request; none if it may have any."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return frozenset(field.encode_name for field in msgspec.structs.fields(kind))
    return frozenset()


def refuse_unknown(name: str, value: str | None, known: Collection[str]) -> None:
    """Raise ``InvalidRequest`` if a value is not ``None`` and none of those that are known.

    Parameters
    ----------
    name:
        What the value is, for the error message.
    """
    if value is not None and value not in known:
        raise InvalidRequest(f"Unknown {name} {value[:40]!r}. Use one of {', '.join(sorted(known))}.", field=name)
