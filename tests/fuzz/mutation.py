"""Changes of valid inputs: of lines of JSON by their structure, of everything else by bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

MAX_BYTES: Final = 65_536
"""Maximum size of an input."""

_RAW: Final = {"\ue000inf": b"1e999", "\ue000big": b"1" + b"0" * 5_000, "\ue000zero": b"-0.0", "\ue000tiny": b"1e-999"}
"""Numbers that Python does not write: what stands for them, and how they are written."""

_TEXTS: Final = (
    *_RAW,
    "",
    "\x00",
    "a\x00b",
    "\ud800",
    "\u0661",
    "é" * 40,
    "x" * 129,
    "x" * 300,
    "x" * 2_000,
    "*",
    ".",
    "..",
    "a/b",
    "a.b",
    "A B",
    "_default",
    "acme:web",
    "ojster.internal",
    "a@1.0",
    "P100Y",
    "PT0S",
    "+P100Y",
    "1000000h",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "1969-12-31T23:59:59Z",
    "steps.a.result",
    "params",
    "item",
    "{job.result}",
    "(a+)+$",
    "true",
    "never",
    "019a0000-0000-7000-8000-000000000000",
    "https://203.0.113.1/x",
)
_NUMBERS: Final = (
    0,
    1,
    -1,
    2,
    100,
    101,
    255,
    2**31,
    2**53,
    2**63,
    2**64,
    -(2**63) - 1,
    10**13,
    0.5,
    -1.5,
    1e308,
    10**30,
)
_OTHERS: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"a": 1},
    ["a", "a"],
    [None],
    {"$ref": "params.a"},
    {"": None},
)

Path = tuple[str | int, ...]


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Return a changed input: one to four changes, half of them by structure where a line is JSON.

    Parameters
    ----------
    others:
        Other inputs, parts of which are used.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        lines = data.split(b"\n")
        place = rng.randrange(len(lines))
        value = _decoded(lines[place]) if rng.random() < 0.8 else None
        if value is None:
            data = _of_bytes(data, others, rng)
        else:
            lines[place] = encode(_of_value(value, others, rng))
            data = b"\n".join(lines)
        if len(data) > MAX_BYTES:
            break
    return data[:MAX_BYTES]


def mutate_value(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one to three changes by structure."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = _of_value(json.loads(json.dumps(value)), (), rng)
    return value


def encode(value: Any) -> bytes:
    """Return a value as JSON, with the numbers that Python does not write."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    for stand_in, raw in _RAW.items():
        text = text.replace(b'"%b"' % stand_in.encode(), raw)
    return text.replace(b"\xed\xa0\x80", b"\\ud800")


def _decoded(line: bytes) -> Any:
    """Return an object or an array in JSON; ``None`` if the line is neither."""
    if line.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


# By structure


def _paths(value: Any, here: Path = ()) -> list[Path]:
    found = [here]
    if isinstance(value, dict):
        for name, member in value.items():
            found += _paths(member, (*here, name))
    elif isinstance(value, list):
        for index, member in enumerate(value[:50]):
            found += _paths(member, (*here, index))
    return found


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _of_value(value: Any, others: Sequence[bytes], rng: random.Random) -> Any:
    paths = _paths(value)
    path = rng.choice(paths)
    if not path:
        return value if rng.random() < 0.9 else rng.choice(_OTHERS)
    change = rng.choice(_CHANGES)
    change(_at(value, path[:-1]), path[-1], value, others, rng)
    return value


def _replace(around: Any, step: Any, root: Any, others: Sequence[bytes], rng: random.Random) -> None:
    around[step] = rng.choice(rng.choice((_TEXTS, _TEXTS, _NUMBERS, _OTHERS)))


def _remove(around: Any, step: Any, root: Any, others: Sequence[bytes], rng: random.Random) -> None:
    del around[step]


def _rename(around: Any, step: Any, root: Any, others: Sequence[bytes], rng: random.Random) -> None:
    if isinstance(around, dict):
        names = [path[-1] for path in _paths(root) if path and isinstance(path[-1], str)]
        around[rng.choice([*names, *_TEXTS])] = around.pop(step)


def _repeat(around: Any, step: Any, root: Any, others: Sequence[bytes], rng: random.Random) -> None:
    if isinstance(around, list):
        around[step:step] = [around[step]] * rng.choice((1, 3, 25, 300))
    else:
        around[step] = [around[step]] * rng.choice((1, 3, 25))


def _wrap(around: Any, step: Any, root: Any, others: Sequence[bytes], rng: random.Random) -> None:
    """Put a value into itself, some levels deep: nested schemas, steps and filters."""
    inner = json.loads(json.dumps(around[step]))
    names = [path[-1] for path in _paths(inner) if path] or [rng.choice(("a", 0))]
    name = rng.choice(names)
    for _ in range(rng.choice((1, 2, 5, 20, 45))):
        inner = {**inner, name: inner} if isinstance(inner, dict) and isinstance(name, str) else [inner]
        if len(json.dumps(inner)) > MAX_BYTES // 4:
            break
    around[step] = inner


def _nest(around: Any, step: Any, root: Any, others: Sequence[bytes], rng: random.Random) -> None:
    """Put an object into its own member, many times: the same keywords at each level."""
    if not isinstance(around, dict):
        return
    inside = json.loads(json.dumps(around))
    is_list = isinstance(around[step], list)
    for _ in range(rng.choice((2, 8, 20, 30))):
        inside = {**around, step: [inside] if is_list else inside}
        if len(json.dumps(inside)) > MAX_BYTES // 4:
            break
    around[step] = [inside] if is_list else inside


def _swap(around: Any, step: Any, root: Any, others: Sequence[bytes], rng: random.Random) -> None:
    path = rng.choice(_paths(root))
    around[step] = json.loads(json.dumps(_at(root, path)))


def _borrow(around: Any, step: Any, root: Any, others: Sequence[bytes], rng: random.Random) -> None:
    """Take a member or an element of another input."""
    lines = rng.choice(others).split(b"\n") if others else [b"{}"]
    other = _decoded(rng.choice(lines))
    path = rng.choice(_paths(other)) if other is not None else ()
    if other is None or not path:
        return
    if isinstance(around, dict) and isinstance(path[-1], str):
        around[path[-1]] = _at(other, path)
    else:
        around[step] = _at(other, path)


def _edit(around: Any, step: Any, root: Any, others: Sequence[bytes], rng: random.Random) -> None:
    """Change the text of a string, which may be an expression of its own."""
    if isinstance(around[step], str):
        raw = around[step].encode("utf-8", "replace")
        around[step] = _of_bytes(raw, (), rng)[:20_000].decode(errors="replace")
    else:
        _replace(around, step, root, others, rng)


_Change = Callable[[Any, Any, Any, Sequence[bytes], random.Random], None]
_CHANGES: Final[tuple[_Change, ...]] = (
    _replace,
    _replace,
    _replace,
    _remove,
    _rename,
    _repeat,
    _wrap,
    _nest,
    _swap,
    _borrow,
    _borrow,
    _edit,
    _edit,
)


# By bytes

_BYTES: Final = (
    b"\x00",
    b"\xff",
    b"\n",
    b"\r\n",
    b" ",
    b'"',
    b"\\",
    b"{",
    b"[",
    b"]",
    b"(",
    b"/",
    b"%00",
    b"%2F",
    b":",
    b"\xc3\xa9",
)


def _of_bytes(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    place = rng.randint(0, len(data))
    end = min(len(data), place + rng.choice((1, 1, 2, 4, 16, 64)))
    match rng.randrange(7):
        case 0:
            return data[:place] + data[end:]
        case 1:
            return data[:place] + rng.choice(_BYTES) + data[place:]
        case 2:
            return data[:place] + data[place:end] * rng.choice((2, 3, 50, 1_000)) + data[end:]
        case 3:
            return data[:place] + bytes((rng.randrange(256),)) + data[place + 1 :]
        case 4:
            return data[:place] + rng.choice(_TEXTS).encode("utf-8", "replace") + data[end:]
        case 5 if others:
            other = rng.choice(others)
            return data[:place] + other[rng.randint(0, len(other)) :]
        case _:
            return data[:end] + data[place:]
