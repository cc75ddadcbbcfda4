"""Uniqueness policies and fingerprints: which jobs are duplicates of each other.

Spec: ojs-unique-jobs
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Any, Final, Literal

import msgspec
import rfc8785

from ojster.core.durations import parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.states import STATE_NAMES, UNFINISHED, JobState

Conflict = Literal["reject", "replace", "replace_except_schedule", "ignore"]

_CONFLICTS: Final[dict[str, Conflict]] = {
    "reject": "reject",
    "replace": "replace",
    "replace_except_schedule": "replace_except_schedule",
    "ignore": "ignore",
    "use_existing": "ignore",
}
_DIMENSIONS: Final = ("type", "queue", "args", "meta")
_FIELDS: Final = frozenset({"keys", "args_keys", "meta_keys", "period", "states", "on_conflict"})
_SAFE_INTEGER: Final = 2**53 - 1


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
    on_conflict: Conflict = "reject"


def parse_unique_policy(given: Any) -> UniquePolicy:
    """Return the policy in a job's ``unique`` object.

    Raises
    ------
    InvalidRequest
        The policy breaks a rule of the specification.

    Spec: ojs-unique-jobs 2.2
    """
    if not isinstance(given, dict):
        raise InvalidRequest("unique must be an object.", field="unique")
    if unknown := sorted(given.keys() - _FIELDS):
        raise InvalidRequest(
            f"unique has no attribute {unknown[0]!r}; it can have {', '.join(sorted(_FIELDS))}.", field="unique"
        )
    keys = _strings(given, "keys") or ("type",)
    for key in keys:
        if key not in _DIMENSIONS:
            raise InvalidRequest(f"unique.keys: {key!r} is not one of {', '.join(_DIMENSIONS)}.", field="unique.keys")
    meta_keys = _strings(given, "meta_keys") or ()
    if "meta" in keys and not meta_keys:
        raise InvalidRequest("unique.meta_keys must name keys when 'meta' is in unique.keys.", field="unique.meta_keys")
    states = _strings(given, "states")
    for state in states or ():
        if state not in STATE_NAMES:
            raise InvalidRequest(
                f"unique.states: {state!r} is not one of {', '.join(JobState)}.", field="unique.states"
            )
    on_conflict = "reject" if given.get("on_conflict") is None else given["on_conflict"]
    if not isinstance(on_conflict, str) or on_conflict not in _CONFLICTS:
        raise InvalidRequest(
            f"unique.on_conflict must be one of {', '.join(_CONFLICTS)}, not {on_conflict!r:.80}.",
            field="unique.on_conflict",
        )
    period = given.get("period")
    return UniquePolicy(
        keys=keys,
        args_keys=_strings(given, "args_keys"),
        meta_keys=meta_keys,
        period=None if period is None else _period(period),
        states=UNFINISHED if states is None else frozenset(JobState(state) for state in states),
        on_conflict=_CONFLICTS[on_conflict],
    )


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


def _argument(args: list[Any], key: str) -> Any:
    for argument in args:
        if isinstance(argument, dict) and key in argument:
            return argument[key]
    if key.isdecimal() and int(key) < len(args):
        return args[int(key)]
    raise InvalidRequest(f"unique.args_keys: args has no key {key!r}.", field="unique.args_keys")


def _canonical(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, dict):
        return {unicodedata.normalize("NFC", key): _canonical(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_canonical(member) for member in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER:
        return {"\u0000integer": str(value)}
    return value


def _period(given: Any) -> int:
    try:
        return parse_duration(given if isinstance(given, str) else "")
    except InvalidRequest:
        raise InvalidRequest(
            f"unique.period must be an ISO 8601 duration such as 'PT1H', not {given!r:.40}.", field="unique.period"
        ) from None


def _strings(given: dict[str, Any], name: str) -> tuple[str, ...] | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise InvalidRequest(f"unique.{name} must be an array of strings.", field=f"unique.{name}")
    return tuple(value)
