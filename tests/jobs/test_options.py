"""The options of a job: each form in which they may be given, their bounds, and what the job shows of them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ojster.core.durations import HOUR, LONGEST_SECONDS, SECOND
from ojster.core.errors import InvalidPayload, InvalidRequest, OjsterError
from ojster.core.job_flags import HAS_GRACE, RESULT_LIMITS, STALLS
from ojster.core.json_objects import read_members
from ojster.jobs.new_job import NewJob, read_job
from ojster.jobs.options import DEFAULT_OPTIONS, Moment, ParsedOptions
from ojster.jobs.options_wire import options_of, queue_of
from ojster.jobs.retry import RetryPolicy
from ojster.jobs.uniqueness import UniquePolicy

NOW = 1_800_000_000_000_000
CENTURY_S = LONGEST_SECONDS


def options(**given: Any) -> ParsedOptions:
    return options_of(msgspec.Raw(msgspec.json.encode(given)), {})


def read(body: dict[str, Any] | bytes) -> NewJob:
    raw = body if isinstance(body, bytes) else msgspec.json.encode({"type": "a", "args": []} | body)
    return read_job(read_members(raw), NOW, largest=1_000_000)


def shown(**given: Any) -> dict[str, Any]:
    """Return what a job with these options shows."""
    envelope: dict[str, Any] = json.loads(read({"options": given}).envelope)
    return envelope


def without_fragment(found: ParsedOptions) -> ParsedOptions:
    return msgspec.structs.replace(found, fragment=b"")


READ: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"queue": "mail"}, {"queue": "mail"}),
    ({"priority": -100}, {"priority": -100}),
    ({"priority": 100}, {"priority": 100}),
    ({"timeout": 5}, {"timeout": 5 * SECOND}),
    ({"timeout_ms": 5}, {"timeout": 5_000}),
    ({"timeout": 9, "timeout_ms": 5}, {"timeout": 5_000}),
    ({"timeout": 1, "timeout_ms": 0}, {}),
    ({"timeout": 0}, {}),
    ({"timeout": CENTURY_S}, {"timeout": CENTURY_S * SECOND}),
    ({"total_timeout": 5}, {"total_timeout": 5 * SECOND}),
    ({"total_timeout_ms": 5}, {"total_timeout": 5_000}),
    ({"enqueue_ttl": 5}, {"enqueue_ttl": 5 * SECOND}),
    ({"enqueue_ttl_ms": 5}, {"enqueue_ttl": 5_000}),
    ({"visibility_timeout": 5}, {"lease": 5 * SECOND}),
    ({"visibility_timeout_ms": 5}, {"lease": 5_000}),
    ({"visibility_timeout": "PT1.5S"}, {"lease": 1_500_000}),
    ({"visibility_timeout": "90s"}, {"lease": 90 * SECOND}),
    ({"visibility_timeout": "90s", "visibility_timeout_ms": 7}, {"lease": 7_000}),
    ({"scheduled_at": "+PT1H"}, {"scheduled_at": Moment(HOUR, relative=True)}),
    ({"delay_until": "+PT1H"}, {"scheduled_at": Moment(HOUR, relative=True)}),
    ({"delay_until": "+PT1H", "scheduled_at": "+PT1S"}, {"scheduled_at": Moment(SECOND, relative=True)}),
    ({"scheduled_at": "1970-01-01T00:00:05Z"}, {"scheduled_at": Moment(5 * SECOND)}),
    ({"expires_at": "+PT1H"}, {"expires_at": Moment(HOUR, relative=True)}),
    ({"expires_at": "1970-01-01T00:00:05Z"}, {"expires_at": Moment(5 * SECOND)}),
    ({"pending": True}, {"pending": True}),
    ({"pending": False}, {}),
    ({"tags": ["x"]}, {}),
    ({"retry": {"max_attempts": 7}}, {"retry": RetryPolicy(max_attempts=7)}),
    ({"retry_policy": {"max_attempts": 7}}, {"retry": RetryPolicy(max_attempts=7)}),
    ({"retry_policy": {"max_attempts": 7}, "retry": {"max_attempts": 8}}, {"retry": RetryPolicy(max_attempts=8)}),
    ({"retry_policy": None, "retry": {"max_attempts": 8}}, {"retry": RetryPolicy(max_attempts=8)}),
    ({"retry_policy": None}, {}),
    ({"max_attempts": 7}, {"retry": RetryPolicy(max_attempts=7)}),
    ({"max_attempts": 7, "retry": None}, {"retry": RetryPolicy(max_attempts=7)}),
    ({"max_attempts": 7, "retry": {"jitter": False}}, {"retry": RetryPolicy(max_attempts=7, jitter=False)}),
    ({"max_attempts": 7, "retry": {"max_attempts": 8}}, {"retry": RetryPolicy(max_attempts=8)}),
    ({"max_attempts": None, "retry": {"jitter": False}}, {"retry": RetryPolicy(jitter=False)}),
    ({"unique": {"keys": ["type", "args"]}}, {"unique": UniquePolicy(keys=("type", "args"))}),
    ({"grace_period": 0}, {"flags": HAS_GRACE}),
    ({"grace_period": 5}, {"flags": HAS_GRACE}),
    ({"heartbeat_timeout": 5}, {"lease": 5 * SECOND, "flags": STALLS}),
    ({"heartbeat_timeout": 5, "visibility_timeout": 3}, {"lease": 3 * SECOND, "flags": STALLS}),
    ({"heartbeat_timeout": 5, "visibility_timeout": "PT1M"}, {"lease": 5 * SECOND, "flags": STALLS}),
    ({"result_ttl": -1}, {"flags": RESULT_LIMITS}),
    ({"result_ttl": 0, "result_size_limit": 9}, {"flags": RESULT_LIMITS}),
    ({"result_ttl": None, "result_size_limit": None, "grace_period": None, "heartbeat_timeout": None}, {}),
    ({"rate_limit": {"max_per_second": 1}}, {"queue_rate": 1}),
    ({"rate_limit": {"max_per_second": 10**9}}, {"queue_rate": 10**9}),
    ({"rate_limit": {"max_per_second": None}}, {}),
    ({"queue": None, "priority": None, "timeout": None, "tags": None, "pending": None, "unique": None}, {}),
    ({"unknown": 1}, {}),
    ({"metadata": {"a": 1}}, {}),
]


@pytest.mark.parametrize(("given", "expected"), READ, ids=[str(n) for n in range(len(READ))])
def test_each_option_is_read_in_each_of_its_forms(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert without_fragment(options(**given)) == ParsedOptions(**expected)


@pytest.mark.parametrize("raw", [None, b"{}", b"null"])
def test_without_options_all_are_the_default(raw: bytes | None) -> None:
    assert options_of(None if raw is None else msgspec.Raw(raw), {}) == DEFAULT_OPTIONS == ParsedOptions()


def test_many_options_are_read_as_few_are() -> None:
    tags = ["t" * 100] * 20
    many = options(tags=tags, timeout=5)
    assert (many.timeout, many.fragment) == (5 * SECOND, b',"timeout":5,"tags":' + msgspec.json.encode(tags))


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"queue": 5}, "options.queue", "The 'queue' option must be a string."),
    ({"queue": "A"}, "queue", "The queue name 'A' is invalid"),
    ({"priority": 101}, "options.priority", "The 'priority' option must be an integer from -100 to 100, not 101."),
    ({"priority": -101}, "options.priority", "not -101."),
    ({"priority": True}, "options.priority", "not True."),
    ({"priority": 1.0}, "options.priority", "not 1.0."),
    ({"timeout": CENTURY_S + 1}, "options.timeout", f"'timeout' option must be an integer from 0 to {CENTURY_S}, not"),
    ({"timeout": -1}, "options.timeout", "not -1."),
    ({"timeout": True}, "options.timeout", "not True."),
    ({"timeout_ms": 1.5}, "options.timeout_ms", f"must be an integer from 0 to {1_000 * CENTURY_S}, not 1.5."),
    ({"total_timeout_ms": -1}, "options.total_timeout_ms", "not -1."),
    ({"enqueue_ttl": "5"}, "options.enqueue_ttl", "not '5'."),
    ({"enqueue_ttl": 0}, "options.enqueue_ttl", "must be an integer from 1 to"),
    ({"enqueue_ttl_ms": 0}, "options.enqueue_ttl_ms", "must be an integer from 1 to"),
    ({"total_timeout": 0}, "options.total_timeout", "must be an integer from 1 to"),
    ({"total_timeout_ms": 0}, "options.total_timeout_ms", "must be an integer from 1 to"),
    ({"visibility_timeout": "soon"}, "options.visibility_timeout", "visibility_timeout: 'soon' is not"),
    ({"visibility_timeout_ms": -1}, "options.visibility_timeout_ms", "not -1."),
    ({"scheduled_at": 5}, "options.scheduled_at", "The 'scheduled_at' option must be an RFC 3339 time stamp."),
    ({"scheduled_at": "soon"}, "options.scheduled_at", "scheduled_at: 'soon' is not an RFC 3339 time stamp"),
    ({"scheduled_at": "+1 s"}, "options.scheduled_at", "scheduled_at: '1 s' is not an ISO 8601 duration"),
    ({"delay_until": "soon"}, "options.delay_until", "delay_until: 'soon'"),
    ({"expires_at": "soon"}, "options.expires_at", "expires_at: 'soon'"),
    ({"tags": "x"}, "options.tags", "The 'tags' option must be an array of strings."),
    ({"tags": {"x": 1}}, "options.tags", "The 'tags' option must be an array of strings."),
    ({"tags": ["x", 1]}, "options.tags", "The 'tags' option must be an array of strings."),
    ({"pending": 1}, "options.pending", "The 'pending' option must be true or false."),
    ({"grace_period": -1}, "options.grace_period", "The 'grace_period' option must be an integer from 0 to"),
    ({"grace_period": 1.5}, "options.grace_period", "not 1.5."),
    ({"heartbeat_timeout": 0}, "options.heartbeat_timeout", "must be an integer from 1 to"),
    ({"heartbeat_timeout": "5"}, "options.heartbeat_timeout", "not '5'."),
    ({"result_ttl": -2}, "options.result_ttl", "must be an integer from -1 to"),
    ({"result_ttl": True}, "options.result_ttl", "not True."),
    ({"result_size_limit": 0}, "options.result_size_limit", "must be an integer from 1 to"),
    ({"rate_limit": {"concurrency": 1}}, "options.rate_limit.key", "rate_limit.key is missing"),
    ({"rate_limit": {"key": None, "rate": {"limit": 1, "period": "PT1S"}}}, "options.rate_limit.key", "is missing"),
    ({"rate_limit": []}, "options.rate_limit", "The 'rate_limit' option must be an object."),
    ({"rate_limit": {"max_per_second": 0}}, "options.rate_limit.max_per_second", "must be a positive integer."),
    ({"rate_limit": {"max_per_second": 10**9 + 1}}, "options.rate_limit.max_per_second", "must be a positive"),
    ({"rate_limit": {"max_per_second": True}}, "options.rate_limit.max_per_second", "must be a positive integer."),
    ({"retry": 5}, "retry", "retry must be an object."),
    ({"retry": 5, "max_attempts": 7}, "retry", "retry must be an object."),
    ({"max_attempts": -1}, "retry.max_attempts", "retry.max_attempts must be an integer from 0 to 1000000, not -1."),
    ({"unique": 5}, "unique", "unique must be an object."),
    ({"metadata": 5}, "options.metadata", "The 'metadata' option must be a JSON object, not a number."),
]


@pytest.mark.parametrize(("given", "field", "reason"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_an_option_that_makes_no_sense_is_refused_with_its_name(given: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read({"options": given})
    assert refused.value.details["field"] == field
    assert reason in refused.value.message


def test_a_rate_of_the_whole_queue_beside_a_key_brings_a_warning() -> None:
    (warning,) = read({"options": {"rate_limit": {"key": "k", "max_per_second": 5}}}).warnings
    assert warning.startswith("rate_limit.max_per_second limits the whole queue")
    assert read({"options": {"rate_limit": {"max_per_second": 5}}}).warnings == ()


@pytest.mark.parametrize(("raw", "kind"), [(b"[]", "an array"), (b'"x"', "a string"), (b"5", "a number")])
def test_options_that_are_no_object_are_refused(raw: bytes, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"The 'options' attribute must be a JSON object, not {kind}") as refused:
        options_of(msgspec.Raw(raw), {})
    assert refused.value.details == {"field": "options"}


@pytest.mark.parametrize("name", ["retry", "unique", "rate_limit"])
def test_a_policy_that_says_something_twice_is_refused(name: str) -> None:
    raw = b'{"type":"a","args":[],"options":{"%b":{"x":1,"x":2}}}' % name.encode()
    with pytest.raises(InvalidPayload, match=f"The '{name}' option has the member 'x' twice"):
        read(raw)


def test_a_job_shows_its_options_as_they_were_given() -> None:
    given = {
        "timeout": 5,
        "timeout_ms": 7_000,
        "total_timeout": 50,
        "total_timeout_ms": 60_000,
        "enqueue_ttl": 6,
        "enqueue_ttl_ms": 8_000,
        "visibility_timeout": 9,
        "visibility_timeout_ms": 10_000,
        "retry": {"max_attempts": 7, "x": 1},
        "unique": {"keys": ["type"]},
        "tags": ["x"],
        "grace_period": 5,
        "heartbeat_timeout": 6,
        "result_ttl": 7,
        "result_size_limit": 8,
        "rate_limit": {"max_per_second": 3},
        "scheduled_at": "2030-01-01T00:00:00+01:00",
        "expires_at": "2031-01-01T00:00:00+01:00",
    }
    envelope = shown(**given)
    assert {name: envelope[name] for name in given} == given
    assert "options" not in envelope
    assert {"queue", "priority", "pending"} & envelope.keys() == set()


def test_a_job_shows_no_option_that_was_not_given() -> None:
    assert shown(queue="q", priority=3, pending=True).keys() == {"specversion", "id", "type", "args", "meta"}
    assert shown(timeout=None, retry=None, tags=None).keys() == {"specversion", "id", "type", "args", "meta"}


def test_a_job_shows_unknown_options_apart() -> None:
    assert shown(timeout=5, colour="red", size=None)["options"] == {"colour": "red", "size": None}


def test_a_job_shows_an_option_under_its_own_name() -> None:
    assert shown(delay_until="2030-01-01T00:00:00Z")["scheduled_at"] == "2030-01-01T00:00:00Z"
    assert "delay_until" not in shown(delay_until="2030-01-01T00:00:00Z")
    assert shown(visibility_timeout="90s")["visibility_timeout_ms"] == 90_000
    assert shown(retry_policy={"max_attempts": 7})["retry"] == {"max_attempts": 7}
    assert shown(max_attempts=7)["retry"] == {"max_attempts": 7}


def test_a_job_shows_a_relative_time_as_a_moment() -> None:
    envelope = shown(scheduled_at="+PT1S", expires_at="+PT2S")
    assert envelope["scheduled_at"] == "2027-01-15T08:00:01.000000Z"
    assert envelope["expires_at"] == "2027-01-15T08:00:02.000000Z"
    assert "expires_at" not in shown(scheduled_at="+PT1S")
    assert "scheduled_at" not in shown(expires_at="+PT1S")


def test_options_at_the_top_count_but_two_of_them_mean_something_else_there() -> None:
    job = read({"timeout": 5, "queue": "q", "max_attempts": 7, "metadata": {"a": 1}})
    assert (job.timeout, job.queue, job.max_attempts) == (5 * SECOND, "q", 3)
    envelope = json.loads(job.envelope)
    assert (envelope["timeout"], envelope["metadata"], envelope["meta"]) == (5, {"a": 1}, {})
    assert "queue" not in envelope


def test_metadata_among_the_options_is_added_to_the_metadata() -> None:
    both = read({"meta": {"a": 1}, "options": {"metadata": {"a": 2, "b": 3}}})
    assert json.loads(both.envelope)["meta"] == {"a": 1, "b": 3}
    alone = read({"options": {"metadata": {"b": 3}}})
    assert json.loads(alone.envelope)["meta"] == {"b": 3}
    none = read({"meta": {"a": 1}, "options": {"metadata": None}})
    assert json.loads(none.envelope)["meta"] == {"a": 1}


def test_the_queue_of_a_request_is_known_without_reading_it_whole() -> None:
    members = read_members(b'{"type":"a","queue":"top","options":{"priority":1}}')
    assert queue_of(members) == "top"
    assert members.keys() == {"type", "queue", "options"}
    assert queue_of(read_members(b'{"queue":"top","options":{"queue":"inner"}}')) == "inner"
    assert queue_of({}) == "default"


def test_limits_of_time_become_moments_after_which_a_job_no_longer_starts() -> None:
    assert read({"options": {"enqueue_ttl": 5}}).expires_at == NOW + 5 * SECOND
    assert read({"options": {"total_timeout": 6}}).expires_at == NOW + 6 * SECOND
    assert (
        read({"options": {"enqueue_ttl": 5, "total_timeout": 6, "expires_at": "+PT7S"}}).expires_at == NOW + 5_000_000
    )
    assert read({"options": {"enqueue_ttl": 5, "expires_at": "+PT4S"}}).expires_at == NOW + 4 * SECOND
    assert read({"options": {}}).expires_at is None


def test_a_job_as_a_whole_may_not_be_shorter_than_an_attempt() -> None:
    assert read({"options": {"timeout": 5, "total_timeout": 5}}).timeout == 5 * SECOND
    with pytest.raises(OjsterError) as refused:
        read({"options": {"timeout": 5, "total_timeout_ms": 4_999}})
    assert refused.value.message == "total_timeout (4.999 s) must not be shorter than timeout (5 s)."
    assert refused.value.details == {"field": "options.total_timeout"}
