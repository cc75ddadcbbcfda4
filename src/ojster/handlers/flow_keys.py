"""Keys of what a flow asks for: its place in the program."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.agents import attributes
from ojster.core.job_flags import REACTIONS
from ojster.core.values import to_builtin
from ojster.fleet import ml_resources
from ojster.jobs.expiration import ATTRIBUTE as EXPIRATION
from ojster.workflows.flow import MAX_KEY_LENGTH, RESERVED

_LONG_KEY: Final = 400
"""How much is left of a key that is too long, in characters: its end."""


class FlowKeys:
    """The keys that one run of a function gives: the path of the task that asks, a name, and how often it has come.

    The path has the names of the coroutines of the tasks around, so that it is the same in whatever order tasks go on.
    """

    def __init__(self) -> None:
        self._paths: dict[asyncio.Task[Any], str] = {}
        self._numbers: Counter[str] = Counter()

    def note_task(self, task: asyncio.Task[Any], creator: asyncio.Task[Any] | None) -> None:
        """Note a new task, and which one creates it."""
        around = "" if creator is None else self._paths.get(creator, "")
        coroutine: Any = task.get_coro()
        name = getattr(coroutine, "__qualname__", "task")
        if creator is None:
            self._paths[task] = around
            return
        self._paths[task] = self._numbered(around + name.rpartition(".")[2], "/")

    def _numbered(self, name: str, end: str = "") -> str:
        self._numbers[name + end] += 1
        number = self._numbers[name + end]
        return name + ("" if number == 1 else f"#{number}") + end

    def path_of(self, task: asyncio.Task[Any]) -> str:
        """Return the path of a task: the names of the tasks around it and its own."""
        return self._paths.get(task, "")

    def key_of(self, name: str, chosen: str | None) -> str:
        """Return the key of what the running task asks for: its path, the name, and how often it has come."""
        if (name if chosen is None else chosen).startswith(RESERVED):
            raise ValueError(f"Names and keys do not begin with {RESERVED!r}: {name if chosen is None else chosen!r}.")
        return self._here(name) if chosen is None else chosen

    def mark_of(self, id: str) -> str:
        """Return the key of a mark in the running task: no name gives the same."""
        return self._here(f"{RESERVED}patch {id}")

    def _here(self, name: str) -> str:
        task = asyncio.current_task()
        path = "" if task is None else self._paths.get(task, "")
        return shortened(self._numbered(f"{path}{name}"))


def shortened(key: str) -> str:
    """Return a key, or if it is too long a digest of it and its end."""
    return key if len(key) <= MAX_KEY_LENGTH else f"{digest_of(key.encode())}…{key[-_LONG_KEY:]}"


def digest_of(value: bytes) -> str:
    """Return a short digest, by which records and long keys are compared."""
    return hashlib.blake2b(value, digest_size=8).hexdigest()


_encode: Final = msgspec.json.Encoder(enc_hook=to_builtin, order="deterministic").encode


def input_digest(value: Any) -> str | None:
    """Return a digest of what something is asked for with; ``None`` if it has no JSON."""
    try:
        return digest_of(_encode(value))
    except (TypeError, ValueError):
        return None


def without_options(value: Any) -> Any:
    """Return declared steps without the options of their jobs, which may change without changing what they do."""
    if isinstance(value, Mapping):
        return {
            name: inner if name in _DATA else without_options(inner)
            for name, inner in value.items()
            if name not in _OPTIONS and not name.startswith(_OPTIONS_FROM)
        }
    return [without_options(inner) for inner in value] if isinstance(value, list) else value


_OPTIONS: Final = ("options", "meta", "version", ml_resources.REQUIRES, REACTIONS, EXPIRATION)
"""Members of a job that are, or have, options of it; see ``JobOptions.beside``."""

_OPTIONS_FROM: Final = (ml_resources.PREFIX, attributes.PREFIX)
"""What the names of further ones begin with."""

_DATA: Final = ("over", "params")
"""Members of steps with values of the application, whose members may have any names."""
