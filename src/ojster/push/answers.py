"""What the answer of a function says about the job that it got.

A function that ran decides what becomes of its job, as a worker does. If it never ran, the job is handed back, and its
attempt does not count; it is the endpoint that has a problem then, and gets fewer jobs.

Spec: ojs-serverless 2.3, 7
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ojster.core.durations import SECOND
from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import check_depth, read_members
from ojster.jobs.failure import Failure, parse_failure

MAX_SHOWN_CHARS: Final = 1_000
"""Maximum length of the part of an answer that the error of a job shows, in characters."""

NEVER_THERE: Final = (401, 403, 404)
"""Statuses of functions that do not exist, or that refuse the server, until an operator changes something."""


class Completed(msgspec.Struct, frozen=True):
    """The function has done the job. ``result``: as JSON."""

    result: bytes | None = None


class Accepted(msgspec.Struct, frozen=True):
    """The function goes on after its answer, and reports later, as a worker does."""


class Failed(msgspec.Struct, frozen=True):
    """The attempt has failed. ``is_trouble``: it was the delivery that failed, not the function that said so."""

    failure: Failure
    is_trouble: bool = False


class NeverRan(msgspec.Struct, frozen=True):
    """The function has not run: the job waits.

    Parameters
    ----------
    wish:
        Pause that the endpoint asks for, in microseconds; ``None``: none.
    is_final:
        Whether it will not run until an operator changes something.
    """

    error: str
    wish: int | None = None
    is_final: bool = False


Outcome = Completed | Accepted | Failed | NeverRan


class _Answer(msgspec.Struct):
    status: Literal["completed", "failed"]
    result: msgspec.Raw | UnsetType = UNSET
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Answer).decode


class _Error(msgspec.Struct):
    error: dict[str, Any]


_decode_error: Final = msgspec.json.Decoder(_Error).decode


def read_answer(status: int, headers: Mapping[str, str], body: bytes, *, now: int, is_cut: bool = False) -> Outcome:
    """Return what an answer says. ``is_cut``: whether the body is longer, ``now`` in microseconds since the epoch."""
    if status in NEVER_THERE:
        return NeverRan(f"it answered {status}", is_final=True)
    wish = read_retry_after(headers.get("retry-after"), now)
    if status == 429 or (status == 503 and wish is not None):
        return NeverRan(f"it answered {status}", wish)
    if is_cut:
        return Failed(delivery_failure("response_too_large", "The answer is too large.", status, retryable=False))
    if status == 204:
        return Completed()
    if status == 202:
        return Accepted()
    if 200 <= status < 300:
        return _read_body(status, body)
    is_final = 400 <= status < 500 and status != 408
    try:
        read_members(body, "The answer")
        failure = parse_failure(_decode_error(body).error)
    except (msgspec.DecodeError, InvalidRequest):
        message = f"The function answered {status}."
        failure = delivery_failure("status", message, status, body, retryable=not is_final)
    return Failed(msgspec.structs.replace(failure, retryable=not is_final), is_trouble=not is_final)


def _read_body(status: int, body: bytes) -> Outcome:
    try:
        read_members(body, "The answer")  # what workers report is checked so, too
        answer = _decode(body)
        if answer.status == "failed":
            error = {"code": "handler_error", "message": "The function has failed."}
            return Failed(parse_failure(error if answer.error is None else answer.error))
        if isinstance(answer.result, UnsetType):
            return Completed()
        result = bytes(answer.result)
        check_depth(result, "The result")
        return Completed(result)
    except (msgspec.DecodeError, InvalidRequest) as error:
        message = f"The function answered {status} with an invalid body: {error}"
        return Failed(delivery_failure("invalid_response", message, status, body), is_trouble=True)


def delivery_failure(
    kind: str, message: str, status: int | None = None, body: bytes = b"", *, retryable: bool = True
) -> Failure:
    """Return the failure of a delivery, as against one that the function reports.

    Spec: ojs-serverless 7.2
    """
    details: dict[str, Any] = {"error_class": "delivery_error", "error_type": kind}
    if status is not None:
        details["status_code"] = status
    if shown := body.decode("utf-8", "replace")[:MAX_SHOWN_CHARS]:
        details["response_body"] = shown
    return Failure("DeliveryError", message, code="delivery_error", retryable=retryable, details=details)


def read_retry_after(value: str | None, now: int) -> int | None:
    """Return the pause that a header ``Retry-After`` asks for, in microseconds; ``None``: none, or it is malformed."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return int(value.strip()[:10]) * SECOND
    try:
        at = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0, int(at * SECOND) - now)
