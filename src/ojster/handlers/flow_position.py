"""Where a flow waits: what its tasks await, the lines of its code, and the version of that code.

It is noted when the flow leaves its worker, for people who look at it, and costs nothing before.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import linecache
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ojster.handlers.arguments import HandlerTypes
from ojster.handlers.flow_keys import FlowKeys
from ojster.handlers.flow_loop import FlowLoop
from ojster.handlers.signature_schema import signature_schema
from ojster.workflows.flow import MAX_WAITS, RESERVED, FlowPosition, FlowRecord, FlowWait

MAX_EXAMINED: Final = 1_000
"""Maximum number of tasks of a flow that are examined for what they await."""

MAX_SCHEMA_BYTES: Final = 8_192
"""Maximum size of the JSON Schema of a message that is noted, in bytes."""

MAX_LINE_CHARS: Final = 200
"""Length to which a line of code is cut, in characters."""

_LIBRARIES: Final = tuple(str(Path(file).parent) for file in (asyncio.__file__, str(Path(__file__).parent)))
"""Where code is that is not the user's: asyncio, and this package."""

_encode: Final = msgspec.json.Encoder().encode


def position_of(
    code: CodeType,
    loop: FlowLoop,
    keys: FlowKeys,
    waiting: Mapping[str, asyncio.Future[Any]],
    records: Mapping[str, FlowRecord],
    expected: Mapping[str, Any],
) -> FlowPosition:
    """Return where a flow waits.

    Parameters
    ----------
    code:
        The code of its function.
    waiting, records:
        The futures that its tasks await, and what they have asked for, by key.
    expected:
        By key: the type of an awaited message, or the handler of an awaited update.
    """
    awaited = {future: key for key, future in waiting.items()}
    sleeps, limits = loop.timers()
    waits: list[FlowWait] = []
    updates: list[FlowWait] = []
    for task in islice(loop.tasks, MAX_EXAMINED):
        future = getattr(task, "_fut_waiter", None)
        key = awaited.get(future)  # type: ignore[arg-type]  # None is no key
        if key is not None:
            record, form = records[key], _form_of(expected.get(key))
            if record.name.startswith(RESERVED):
                name = record.name.removeprefix(RESERVED)
                updates.append(FlowWait("update", name, record.asked_at, key, form=form))
            else:
                wait = FlowWait(record.kind, record.name, record.asked_at, key, limits.get(task), form=form)  # type: ignore[arg-type]
                waits.append(_placed(wait, task, loop))
        elif future in sleeps:
            since, until = sleeps[future]
            key = f"{RESERVED}sleep/{keys.path_of(task)}@{since}"
            waits.append(_placed(FlowWait("sleep", "sleep", since, key, until), task, loop))
        if len(waits) >= MAX_WAITS:
            break
    return FlowPosition(tuple(waits + updates[:MAX_WAITS]), code_version(code))


def _placed(wait: FlowWait, task: asyncio.Task[Any], loop: FlowLoop) -> FlowWait:
    """Return what a task awaits with the line of code: its own, or that of the task which has created it."""
    around: asyncio.Task[Any] | None = task
    while around is not None:
        if (place := _place_of(around)) is not None:
            code, number = place
            text = linecache.getline(code.co_filename, number).strip()[:MAX_LINE_CHARS]
            return msgspec.structs.replace(wait, file=code.co_filename, line=number, function=code.co_name, code=text)
        around = loop.tasks.get(around)
    return wait


def _place_of(task: asyncio.Task[Any]) -> tuple[CodeType, int] | None:
    """Return the innermost line of the user's code in which a task waits."""
    place: tuple[CodeType, int] | None = None
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)) is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            place = (frame.f_code, frame.f_lineno)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return place


def _form_of(expected: Any) -> Raw | UnsetType:
    try:
        return UNSET if expected is None else _schema_of(expected)
    except TypeError:  # a type that has no hash
        return UNSET


@lru_cache(256)
def _schema_of(expected: Any) -> Raw | UnsetType:
    """Return the JSON Schema of a type, or of the arguments of an update's handler; ``UNSET`` if there is none."""
    types = getattr(expected, "types", None)
    try:
        schema = signature_schema(types) if isinstance(types, HandlerTypes) else _flat(_type_schema(expected))
        encoded = _encode(schema)
    except Exception:  # a type that msgspec does not know, or an annotation that names nothing
        return UNSET
    return Raw(encoded) if schema is not None and len(encoded) <= MAX_SCHEMA_BYTES else UNSET


def _type_schema(expected: Any) -> dict[str, Any]:
    of_model = getattr(expected, "model_json_schema", None)  # pydantic
    schema: dict[str, Any] = msgspec.json.schema(expected) if of_model is None else of_model()
    return schema


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that begins with its members, and not with a reference to them."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    inner = schema.get("$defs", {}).get(name)
    return schema if inner is None else {**inner, "$defs": schema["$defs"]}


@lru_cache(1_024)
def code_version(code: CodeType) -> str:
    """Return a short digest of the source of a flow's function: another one means that its code has changed."""
    try:
        source = inspect.getsource(code).encode()
    except (OSError, TypeError):  # there is no file
        source = code.co_code
    return hashlib.blake2b(source, digest_size=6).hexdigest()
