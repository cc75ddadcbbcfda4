"""Enqueue requests: parsing, preserved attributes and rejected values."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.errors import InvalidPayload, InvalidPolicy, InvalidRequest, OjsterError, PayloadTooLarge, Unsupported
from ojster.core.json_objects import read_members
from ojster.jobs.new_job import NewJob, read_job

NOW = 1_800_000_000_000_000


def read(body: bytes | dict[str, Any], largest: int = 1_048_576) -> NewJob:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return read_job(read_members(raw), NOW, largest=largest)


def kept(body: bytes | dict[str, Any]) -> dict[str, Any]:
    envelope: dict[str, Any] = json.loads(read(body).envelope)
    return envelope


def test_a_minimal_job_gets_the_defaults() -> None:
    job = read({"type": "email.send", "args": []})
    assert (job.queue, job.priority, job.max_attempts, job.pending) == ("default", 0, 3, False)
    assert not job.id_is_given


def test_unknown_attributes_are_kept() -> None:
    body = {"type": "a", "args": [], "x_custom": {"a": [1, None]}, "x_number": 42}
    assert kept(body)["x_custom"] == {"a": [1, None]}
    assert kept(body)["x_number"] == 42


def test_unknown_options_are_kept() -> None:
    assert kept({"type": "a", "args": [], "options": {"colour": {"k": 1}}})["options"] == {"colour": {"k": 1}}


def test_an_id_in_upper_case_is_the_same_id() -> None:
    body = {"type": "a", "args": [], "id": "019461A8-1A2B-7C3D-8E4F-5A6B7C8D9E0F"}
    assert read(body).id == kept(body)["id"] == "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"


def test_what_the_server_sets_cannot_be_forged() -> None:
    body = {"type": "a", "args": [], "state": "completed", "attempt": 7, "result": 1, "created_at": "x", "error": {}}
    assert not {"state", "attempt", "result", "created_at", "error"} & kept(body).keys()


def test_options_may_stand_at_the_top_and_options_win() -> None:
    job = read({"type": "a", "args": [], "queue": "top", "priority": 1, "options": {"queue": "inner"}})
    assert (job.queue, job.priority) == ("inner", 1)


def test_arguments_are_kept_to_the_letter() -> None:
    args = b'[1e400, 123456789012345678901234567890, 0.1000, "\\u0000\\u00e9\xc3\xa9", {"b":1, "a":2}]'
    job = read(b'{"type":"a","args":' + args + b"}")
    assert b'"args":' + args in job.envelope


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
        max_leaves=20,
    )
)
def test_whatever_json_is_sent_comes_back(value: Any) -> None:
    raw = json.dumps({"type": "a", "args": [value], "meta": {"v": value}}).encode()
    try:
        envelope = kept(raw)
    except InvalidPayload as refusal:
        assert "surrogate" in refusal.message
        return
    assert envelope["args"] == [value]
    assert envelope["meta"] == {"v": value}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"   ", "empty"),
        (b"{ invalid json }", "not valid JSON"),
        (b'{"type":"a","args":[}', "not valid JSON"),
        (b'{"type":"a","args":[]} x', "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"type":"a","args":["\xff"]}', "not UTF-8"),
        (b'\xff\xfe{"type":"a"}', "not UTF-8"),
        (b'{"type":"a","args":[NaN]}', "not valid JSON"),
        (b'{"type":"a","args":[Infinity]}', "not valid JSON"),
        (b'{"type":"a","args":[01]}', "not valid JSON"),
        (b'{"type":"a","args":["\x01"]}', "not valid JSON"),
        (b'{"type":"a","args":["\\ud800"]}', "surrogate"),
        (b'{"type":"a","args":[],"meta":{"\\udfff":1}}', "surrogate"),
        (b'{"type":"a","args":[],"type":"b"}', "'type' twice"),
        (b'{"type":"a","args":[],"t\\u0079pe":"b"}', "'type' twice"),
        (b'{"type":"a","args":[],"options":{"queue":"a","queue":"b"}}', "'queue' twice"),
        (b'{"type":"a","args":[],"meta":{"k":"a","\\u006b":"b"}}', "'k' twice"),
        (b'{"type":"a","args":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested deeper"),
        (b'{"type":"a","args":' + b"[" * 101 + b"]" * 101 + b"}", "nested deeper"),
        (b'{"type":"a","args":[' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"]}", "nested deeper"),
    ],
)
def test_a_body_that_is_no_good_json_is_refused_with_the_reason(body: bytes, words: str) -> None:
    with pytest.raises(InvalidPayload, match=words):
        read(body)


def test_many_brackets_that_are_not_nested_are_fine() -> None:
    read({"type": "a", "args": [[] for _ in range(500)]})
    read({"type": "a", "args": ["[" * 500]})


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert kept(b'{"type":"a","args":["\\ud83d\\ude00"]}')["args"] == ["\U0001f600"]


def test_a_name_that_is_also_a_value_is_not_taken_for_a_repetition() -> None:
    assert kept(b'{"type":"a","args":["type","args",{"type":1}]}')["args"] == ["type", "args", {"type": 1}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"args": []}, "type"),
        ({"type": "a"}, "args"),
        ({"type": "a", "args": None}, "args"),
        ({"type": "a", "args": {}}, "args"),
        ({"type": "a", "args": "x"}, "args"),
        ({"type": "a", "args": 42}, "args"),
        ({"type": "a", "args": True}, "args"),
        ({"type": 1, "args": []}, "type"),
        ({"type": "", "args": []}, "type"),
        ({"type": "Email.Send", "args": []}, "type"),
        ({"type": "email send", "args": []}, "type"),
        ({"type": "1email", "args": []}, "type"),
        ({"type": "email..send", "args": []}, "type"),
        ({"type": ".a", "args": []}, "type"),
        ({"type": "a.", "args": []}, "type"),
        ({"type": "a\n", "args": []}, "type"),
        ({"type": "a" * 256, "args": []}, "type"),
        ({"type": "a", "args": [], "id": ""}, "id"),
        ({"type": "a", "args": [], "id": "550e8400-e29b-41d4-a716-446655440000"}, "id"),
        ({"type": "a", "args": [], "id": 5}, "id"),
        ({"type": "a", "args": [], "meta": []}, "meta"),
        ({"type": "a", "args": [], "meta": "x"}, "meta"),
        ({"type": "a", "args": [], "options": []}, "options"),
        ({"type": "a", "args": [], "options": {"queue": "Default"}}, "queue"),
        ({"type": "a", "args": [], "options": {"queue": "-x"}}, "queue"),
        ({"type": "a", "args": [], "options": {"queue": "q" * 129}}, "queue"),
        ({"type": "a", "args": [], "options": {"queue": 5}}, "queue"),
        ({"type": "a", "args": [], "options": {"priority": 101}}, "priority"),
        ({"type": "a", "args": [], "options": {"priority": 1.5}}, "priority"),
        ({"type": "a", "args": [], "options": {"priority": True}}, "priority"),
        ({"type": "a", "args": [], "options": {"timeout_ms": -1}}, "timeout_ms"),
        ({"type": "a", "args": [], "options": {"timeout_ms": "1"}}, "timeout_ms"),
        ({"type": "a", "args": [], "options": {"timeout": 10**30}}, "timeout"),
        ({"type": "a", "args": [], "options": {"scheduled_at": "tomorrow"}}, "scheduled_at"),
        ({"type": "a", "args": [], "options": {"scheduled_at": "2026-01-01T00:00:00"}}, "scheduled_at"),
        ({"type": "a", "args": [], "options": {"expires_at": 5}}, "expires_at"),
        ({"type": "a", "args": [], "options": {"tags": "x"}}, "tags"),
        ({"type": "a", "args": [], "options": {"tags": [1]}}, "tags"),
        ({"type": "a", "args": [], "options": {"pending": 1}}, "pending"),
        ({"type": "a", "args": [], "options": {"rate_limit": {"max_per_second": 0}}}, "rate_limit"),
        ({"type": "a", "args": [], "options": {"unique": {"keys": ["x"]}}}, "unique"),
    ],
)
def test_a_malformed_attribute_is_refused_and_named(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(body)
    assert field in refusal.value.details["field"]
    assert refusal.value.status == 400


def test_a_bad_retry_policy_is_refused_as_such() -> None:
    with pytest.raises(InvalidPolicy) as refusal:
        read({"type": "a", "args": [], "options": {"retry": {"max_attempts": -1}}})
    assert (refusal.value.status, refusal.value.kind) == (422, "validation_error")


def test_another_version_of_the_specification_is_not_supported() -> None:
    read({"type": "a", "args": [], "specversion": "1.0"})
    read({"type": "a", "args": [], "specversion": "1.0.0-rc.1"})
    with pytest.raises(Unsupported):
        read({"type": "a", "args": [], "specversion": "2.0"})


def test_a_job_may_be_as_large_as_the_limit_and_no_larger() -> None:
    job = read({"type": "a", "args": ["x" * 1000]})
    read({"type": "a", "args": ["x" * 1000], "id": job.id}, largest=len(job.envelope))
    with pytest.raises(PayloadTooLarge):
        read({"type": "a", "args": ["x" * 1000], "id": job.id}, largest=len(job.envelope) - 1)


def test_metadata_has_a_limit_of_its_own() -> None:
    with pytest.raises(PayloadTooLarge):
        read({"type": "a", "args": [], "meta": {"k": "x" * 65_536}})


def test_times_are_absolute_or_relative() -> None:
    job = read({"type": "a", "args": [], "options": {"scheduled_at": "+PT5S", "expires_at": "2099-12-31T23:59:59Z"}})
    assert job.scheduled_at == NOW + 5_000_000
    envelope = json.loads(job.envelope)
    assert envelope["expires_at"] == "2099-12-31T23:59:59Z"
    assert envelope["scheduled_at"].endswith("Z")


@given(st.binary(max_size=200))
def test_no_bytes_whatsoever_cause_anything_but_a_refusal(body: bytes) -> None:
    try:
        read(body)
    except OjsterError as refusal:
        assert refusal.status < 500


@given(
    st.dictionaries(
        st.sampled_from(["type", "args", "meta", "id", "options", "queue", "retry", "unique", "priority", "tags", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["a.b", "default"]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["keys", "period", "queue", "retry", "unique", "max_attempts", "states", "a"]),
                    inner,
                )
            ),
            max_leaves=10,
        ),
    )
)
def test_no_json_whatsoever_causes_anything_but_a_refusal(body: dict[str, Any]) -> None:
    try:
        read(json.dumps(body).encode())
    except OjsterError as refusal:
        assert refusal.status < 500
