"""Names of job types and queues.

Spec: ojs-core 5.1
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ojster.core.errors import Forbidden, InvalidRequest
from ojster.core.parsing import read_value

OWN_TYPES: Final = "ojster."
"""Job types of Ojster itself begin with it."""

WAIT_TYPE: Final = f"{OWN_TYPES}wait"
"""Type of the jobs of wait steps. They are never handed out to workers."""

DEFAULT_QUEUE: Final = "default"

MAX_TYPE_LENGTH: Final = 255

MAX_QUEUE_NAME_LENGTH: Final = 128

TYPE_PATTERN: Final = re.compile(r"[a-z][a-z0-9_\-]*(?:\.[a-z][a-z0-9_\-]*)*")

VERSION_PATTERN: Final = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}")

QUEUE_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9\-.]*")

RESERVED_QUEUE_PREFIX: Final = "ojster."
"""Prefix of the names of queues for Ojster's own work, such as deliveries of webhooks."""

INTERNAL_QUEUES_RANGE: Final = (RESERVED_QUEUE_PREFIX, "ojster/")
"""Range, end excluded, of the names of queues for Ojster's own work."""


def is_internal(queue: str) -> bool:
    """Return whether a queue, by its name without a tenant, is for Ojster's own work."""
    return queue.startswith(RESERVED_QUEUE_PREFIX)


def refuse_reserved(queue: str) -> None:
    """Raise ``Forbidden`` if a queue is for Ojster's own work: callers neither push to it nor fetch from it."""
    if queue.startswith(RESERVED_QUEUE_PREFIX):
        raise Forbidden(
            f"Queue {queue[:80]!r} is reserved: names that begin with {RESERVED_QUEUE_PREFIX!r} are for the server's "
            "own work. Choose another name."
        )


@lru_cache(maxsize=4096)
def read_type(raw: bytes) -> str:
    """Return the job type that the JSON ``raw`` names. Raises as ``check_type`` does, and if it is no string."""
    return check_type(string(raw, "type"))


def check_type(value: str) -> str:
    """Return ``value`` if it is a valid job type.

    Raises
    ------
    InvalidRequest
        It is not lower-case segments separated by dots, or is longer than 255 characters.
    """
    if len(value) > MAX_TYPE_LENGTH or not TYPE_PATTERN.fullmatch(value):
        raise InvalidRequest(
            f"The job type {value[:80]!r} is invalid: it must be segments of lower-case letters, digits, '_' and '-' "
            f"that begin with a letter, separated by dots, such as 'email.send', and at most {MAX_TYPE_LENGTH} "
            "characters long.",
            field="type",
        )
    return value


@lru_cache(maxsize=1024)
def check_queue_name(name: str) -> str:
    """Return ``name`` if it is a valid queue name.

    Raises
    ------
    InvalidRequest
        It is not valid.

    Spec: ojs-core 5.1
    """
    if len(name) > MAX_QUEUE_NAME_LENGTH or not QUEUE_PATTERN.fullmatch(name):
        raise InvalidRequest(
            f"The queue name {name[:80]!r} is invalid: it must be lower-case letters, digits, '-' and '.', begin with "
            f"a letter or a digit, and be at most {MAX_QUEUE_NAME_LENGTH} characters long.",
            field="queue",
        )
    return name


def string(raw: bytes, name: str) -> str:
    """Return the string that JSON describes, or raise ``InvalidRequest``."""
    if raw[:1] != b'"':
        raise InvalidRequest(f"The {name!r} attribute must be a string, not {kind(raw)}.", field=name)
    return str(read_value(raw, name))


def kind(raw: bytes) -> str:
    """Return the JSON type of a value, for error messages."""
    kinds = {b"{": "an object", b"[": "an array", b'"': "a string", b"t": "a boolean", b"f": "a boolean", b"n": "null"}
    return kinds.get(raw[:1], "a number")
