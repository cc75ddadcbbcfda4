"""Uniqueness policies and fingerprints: which jobs are duplicates of each other.

Spec: ojs-unique-jobs
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Any, Final, Literal

import msgspec
import rfc8785

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import MAX_SAFE_INTEGER
from ojster.core.states import UNFINISHED, JobState

OnConflict = Literal["reject", "replace", "replace_except_schedule", "ignore"]


class UniquePolicy(msgspec.Struct, frozen=True):
    """Which jobs are duplicates of each other, and what happens to a duplicate.

    ``period`` is in microseconds; ``None``: while the other job is in one of ``states``.

    Spec: ojs-unique-jobs 2
    """

    keys: tuple[str, ...] = ("type",)
    args_keys: tuple[str, ...] | None = None
    meta_keys: tuple[str, ...] = ()
    period: int | None = None
    states: frozenset[JobState] = UNFINISHED
    on_conflict: OnConflict = "reject"


def fingerprint(policy: UniquePolicy, *, type: str, queue: str, args: list[Any], meta: dict[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of the canonical JSON (RFC 8785, NFC) of the job's unique attributes.

    RFC 8785 cannot represent integers beyond 2**53 - 1, and rounding would make different identifiers equal, so they
    are included as decimal digits. ``args_keys`` names keys of the objects in ``args`` (the first match counts), or
    positions ("0").

    Raises
    ------
    InvalidRequest
        ``args_keys`` or ``meta_keys`` names a missing key.
    """
    chosen: dict[str, Any] = {"type": type}
    if "queue" in policy.keys:
        chosen["queue"] = queue
    if "args" in policy.keys:
        chosen["args"] = args if policy.args_keys is None else {key: _argument(args, key) for key in policy.args_keys}
    if "meta" in policy.keys:
        for key in policy.meta_keys:
            if key not in meta:
                raise InvalidRequest(f"unique.meta_keys: meta has no key {key!r}.", field="unique.meta_keys")
        chosen["meta"] = {key: meta[key] for key in policy.meta_keys}
    return hashlib.sha256(rfc8785.dumps(_canonical(chosen))).hexdigest()


_LONGEST_POSITION: Final = 9
"""Maximum number of digits of a position; Python refuses to read very long numbers."""


def _argument(args: list[Any], key: str) -> Any:
    for argument in args:
        if isinstance(argument, dict) and key in argument:
            return argument[key]
    if key.isdecimal() and len(key) <= _LONGEST_POSITION and int(key) < len(args):
        return args[int(key)]
    raise InvalidRequest(f"unique.args_keys: args has no key {key!r}.", field="unique.args_keys")


def _canonical(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, dict):
        return {unicodedata.normalize("NFC", key): _canonical(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_canonical(member) for member in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_SAFE_INTEGER:
        return {"\u0000integer": str(value)}
    return value
