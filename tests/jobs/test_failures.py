"""The error of a failed attempt: how it is reported, what is kept of it, and how much."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidRequest
from ojster.jobs.failure import Failure, append_failure, parse_failure

READ: list[tuple[dict[str, Any], Failure]] = [
    ({}, Failure("handler_error", "")),
    ({"message": "no"}, Failure("handler_error", "no")),
    ({"code": "DISCARD", "message": "no"}, Failure("DISCARD", "no", "DISCARD")),
    ({"code": ""}, Failure("handler_error", "")),
    ({"type": "E", "code": "C"}, Failure("E", "", "C")),
    ({"type": "", "code": "C"}, Failure("C", "", "C")),
    ({"details": {"error_class": "D"}, "code": "C"}, Failure("D", "", "C", details={"error_class": "D"})),
    ({"details": {"error_class": "D"}, "type": "E"}, Failure("E", "", details={"error_class": "D"})),
    ({"details": {"error_class": 5}}, Failure("handler_error", "", details={"error_class": 5})),
    ({"details": {}}, Failure("handler_error", "", details={})),
    ({"retryable": False}, Failure("handler_error", "", retryable=False)),
    ({"retryable": True}, Failure("handler_error", "", retryable=True)),
    ({"backtrace": ["a", "b"]}, Failure("handler_error", "", backtrace=("a", "b"))),
    ({"backtrace": "a\nb"}, Failure("handler_error", "", backtrace=("a", "b"))),
    ({"backtrace": []}, Failure("handler_error", "")),
    (
        {"rate_limit_until": "2030-01-01T00:00:00Z"},
        Failure("handler_error", "", rate_limit_until="2030-01-01T00:00:00Z"),
    ),
    ({"facts": {"x": 1}, "unknown": 1}, Failure("handler_error", "")),
]


@pytest.mark.parametrize(("given", "expected"), READ, ids=[str(n) for n in range(len(READ))])
def test_an_error_is_read_in_each_of_its_forms(given: dict[str, Any], expected: Failure) -> None:
    assert parse_failure(given) == expected


REFUSED: list[tuple[Any, str, str]] = [
    ("no", "error", "The 'error' attribute must be an object with 'code' and 'message'."),
    ({"type": 5}, "error.type", "error.type must be a string."),
    ({"code": None}, "error.code", "error.code must be a string."),
    ({"message": ["no"]}, "error.message", "error.message must be a string."),
    ({"details": []}, "error.details", "error.details must be an object."),
    ({"retryable": "no"}, "error.retryable", "error.retryable must be true or false."),
    ({"backtrace": 5}, "error.backtrace", "error.backtrace must be an array of strings."),
    ({"backtrace": ["a", 5]}, "error.backtrace", "error.backtrace must be an array of strings."),
    ({"backtrace": {"a": 1}}, "error.backtrace", "error.backtrace must be an array of strings."),
    ({"rate_limit_until": 5}, "error.rate_limit_until", "error.rate_limit_until must be an RFC 3339 time stamp."),
]


@pytest.mark.parametrize(("given", "field", "reason"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_an_error_that_makes_no_sense_is_refused_with_its_name(given: Any, field: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_failure(given)
    assert (refused.value.details, refused.value.message) == ({"field": field}, reason)


def test_an_error_that_names_no_moment_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'soon' is not an RFC 3339 time stamp"):
        parse_failure({"rate_limit_until": "soon"})


def test_a_failure_is_kept_with_its_attempt_and_its_time() -> None:
    at = "2027-01-15T08:00:00.000000Z"
    plain = {"attempt": 2, "type": "E", "code": "C", "message": "no", "occurred_at": at, "timestamp": at}
    assert Failure("E", "no", "C").to_history(2, 1_800_000_000_000_000) == plain
    more = Failure("E", "no", "C", False, {"k": 1}, ("frame",), at, {"limit_seconds": 5})
    assert more.to_history(2, 1_800_000_000_000_000) == plain | {
        "limit_seconds": 5, "details": {"k": 1}, "backtrace": ["frame"],
    }  # fmt: skip


def test_what_is_not_utf_8_is_escaped() -> None:
    kept = Failure("E\udc80", "\udc81", "C\udc82", backtrace=("\udc83",)).to_history(1, 0)
    assert (kept["type"], kept["message"], kept["code"]) == ("E\\udc80", "\\udc81", "C\\udc82")
    assert kept["backtrace"] == ["\\udc83"]


def test_a_message_is_cut_after_ten_thousand_characters() -> None:
    assert len(Failure("E", "x" * 10_000).to_history(1, 0)["message"]) == 10_000
    assert len(Failure("E", "x" * 10_001).to_history(1, 0)["message"]) == 10_000


def test_the_last_frames_of_a_backtrace_are_kept() -> None:
    def kept(*frames: str) -> list[str]:
        found: list[str] = Failure("E", "", backtrace=frames).to_history(1, 0)["backtrace"]
        return found

    numbers = [str(n) for n in range(60)]
    assert kept(*numbers) == numbers[10:]
    assert kept("x", "a" * 4_000, "b" * 6_000) == ["a" * 4_000, "b" * 6_000]
    assert kept("a" * 4_001, "b" * 6_000) == ["a" * 3_999 + "…", "b" * 6_000]
    assert kept("first", "a" * 10_001, "last") == ["a" * 9_995 + "…", "last"]


def test_the_last_twenty_five_errors_are_kept() -> None:
    errors = None
    for attempt in range(1, 28):
        errors = append_failure(errors, Failure("E", str(attempt)), attempt, attempt)
    assert errors is not None
    assert [one["attempt"] for one in msgspec.json.decode(errors)] == list(range(3, 28))
