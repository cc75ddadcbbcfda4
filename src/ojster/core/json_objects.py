"""JSON objects as they are received: members that are not decoded, checked for depth and repeated names."""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidPayload

MAX_NESTING_DEPTH: Final = 100
"""Maximum depth of a request, in levels: some JSON parsers read no more."""

MAX_VALUE_DEPTH: Final = 64
"""Maximum depth of a value that is kept, such as the arguments of a job or a result, in levels.

An answer adds objects and lists of its own around a value: up to 36 levels for the steps of nested containers. With
this limit, no answer passes ``MAX_NESTING_DEPTH``, and no job keeps clients from reading the others in an answer.
"""

Members = dict[str, msgspec.Raw]
"""The members of a JSON object, each as its raw bytes."""

_decode_members: Final[Callable[[bytes | msgspec.Raw], Members]] = msgspec.json.Decoder(Members).decode

raw_list: Final[Callable[[bytes | msgspec.Raw], list[msgspec.Raw]]] = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""Read a JSON array whose elements stay JSON."""


def read_members(body: bytes | msgspec.Raw, what: str = "The request body") -> Members:
    """Return the members of the JSON object in ``body``, each as its raw bytes.

    Raises
    ------
    InvalidPayload
        The body is empty, is not UTF-8 or JSON, is not an object, is nested too deeply, or has a member twice or a lone
        surrogate.
    """
    raw = bytes(body)
    try:
        raw.decode()
        members = _decode_members(raw)
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"{what} is not UTF-8: byte {error.start} is invalid.") from None
    except RecursionError:
        raise too_deep(what, MAX_NESTING_DEPTH) from None
    except msgspec.ValidationError:
        raise InvalidPayload(f"{what} must be a JSON object.") from None
    except msgspec.DecodeError as error:
        if not raw.strip():
            raise InvalidPayload(f"{what} is empty; it must be a JSON object.") from None
        if b"\\u" in raw:  # half a surrogate pair is reported as if the data ended
            with contextlib.suppress(json.JSONDecodeError, RecursionError):
                _check_names_and_surrogates(raw, what)
        raise InvalidPayload(f"{what} is not valid JSON: {error}.") from None
    check_depth(raw, what, MAX_NESTING_DEPTH)
    if b"\\ud" in raw or b"\\uD" in raw or not _holds_each_name_once(raw, members):
        _check_names_and_surrogates(raw, what)
    return members


def without_nulls(members: Members) -> Members:
    """Return members without those that are ``null``, which count as absent.

    Spec: ojs-json-format 14.2
    """
    return {name: raw for name, raw in members.items() if bytes(raw) != b"null"}


def stored_members(stored: bytes | msgspec.Raw) -> Members:
    """Return the members of a JSON object that was checked before it was stored, as ``read_members`` does."""
    return _decode_members(stored)


def read_answer_members(body: bytes) -> Members:
    """Return the members of a JSON object that a server sent: of any depth, because one value must not hide the others.

    Raises
    ------
    InvalidPayload
        The body is not JSON, or not an object.
    """
    try:
        return _decode_members(body)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidPayload(f"The answer is not a JSON object: {error}.") from None


def check_depth(raw: bytes, what: str, deepest: int = MAX_VALUE_DEPTH) -> None:
    """Reject valid JSON that is nested deeper than ``deepest`` levels.

    Raises
    ------
    InvalidPayload
        It is.
    """
    if len(raw) <= 2 * deepest or opening_brackets(raw) <= deepest:  # each level takes two bytes
        return
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(plain.translate(None, _NO_BRACKETS).split(b'"')[::2])  # the text between the strings
    if max(accumulate(array("b", brackets.translate(_STEPS))), default=0) > deepest:
        raise too_deep(what, deepest)


def opening_brackets(raw: bytes) -> int:
    """Return a number of levels that JSON is certainly not nested deeper than: how many brackets it opens."""
    return raw.count(b"[") + raw.count(b"{")


_NO_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))

_STEPS: Final = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")
"""Change of depth for each bracket: 1, or -1 as a signed byte."""


def too_deep(what: str, deepest: int) -> InvalidPayload:
    """Return the refusal of JSON that is nested deeper than ``deepest`` levels."""
    return InvalidPayload(
        f"{what} is nested deeper than {deepest} levels. Pass deep structures as a string of JSON, or as a file."
    )


def _holds_each_name_once(raw: bytes, members: Members) -> bool:
    """Whether each top-level name certainly occurs once. Decoding keeps the last of a repeated name.

    The check must cost next to nothing.

    Compact JSON consists of the decoded names and values, and of quotes, colons, commas and braces, so its length is
    known. Other JSON passes if it has no escapes and the text of each name occurs once anywhere.
    """
    count = len(members)
    if len(raw) == 4 * count + 1 + len("".join(members).encode()) + sum(map(len, members.values())):
        return True
    if count > _FEW_NAMES or b"\\" in raw:
        return False
    for name in members:  # noqa: SIM110  (a generator would take twice as long)
        if raw.count(b'"%b"' % name.encode()) != 1:
            return False
    return True


_FEW_NAMES: Final = 24


def check_names(raw: bytes | msgspec.Raw, what: str) -> None:
    """Reject a JSON object inside a parsed body if it has a member twice.

    Raises
    ------
    InvalidPayload
        A member occurs twice.
    """
    if not _holds_each_name_once(bytes(raw), _decode_members(raw)):
        _check_names_and_surrogates(bytes(raw), what)


class _Object(dict[str, Any]):
    repeated: str | None = None


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    members = _Object(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        members.repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return members


def _no_number(text: str) -> int:
    return 0


def _check_names_and_surrogates(raw: bytes, what: str) -> None:
    """Run the slow, exact check, for the few bodies that may have a name twice or a lone surrogate."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"{what} is not encoded in UTF-8: {error}.") from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_no_number, parse_float=_no_number)
    except RecursionError:
        raise too_deep(what, MAX_NESTING_DEPTH) from None
    if isinstance(value, _Object) and value.repeated is not None:
        raise InvalidPayload(f"{what} has the member {value.repeated!r} twice.", field=value.repeated)
    if b"\\u" not in raw:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidPayload(
            f"{what} has an unpaired surrogate (\\u{ord(error.object[error.start]):04x}), which is not a character."
        ) from None


def with_plain_numbers(value: Any) -> Any:
    """Return a value in which each whole number is an integer."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: with_plain_numbers(member) for name, member in value.items()}
        case list():
            return [with_plain_numbers(member) for member in value]
    return value


_encode_in_order: Final = msgspec.json.Encoder(order="deterministic").encode

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON parser reads exactly."""


def canonical_json(value: Any) -> bytes:
    """Return JSON that is the same for values that are equal as JSON: 1 and 1.0 are, 1 and true are not."""
    return _encode_in_order(with_plain_numbers(value))


def is_same_json(value: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON."""
    return canonical_json(value) == canonical_json(other)
