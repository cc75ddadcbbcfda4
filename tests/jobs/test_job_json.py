"""The JSON of a job, member by member, and what a client reads of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.job import Job
from ojster.jobs.job_json import from_json, retry_policy, to_json
from ojster.jobs.retry import RetryPolicy
from tests.conftest import START, Bench, shown

AT = "2027-01-15T08:00:00.000000Z"
LATER = "2027-01-15T08:00:01.000000Z"

ENVELOPE = b'{"id":"j","type":"t","args":[]}'


def job(**more: Any) -> Job:
    made = Job(1, "j", "t", "q", "available", 5, 2, 7, START)
    made.envelope = ENVELOPE
    for name, value in more.items():
        setattr(made, name, value)
    return made


BASE = {
    "id": "j", "type": "t", "args": [], "queue": "q", "state": "available", "priority": 5, "attempt": 2,
    "max_attempts": 7, "created_at": AT,
}  # fmt: skip

ERRORS = b'[{"type":"A"},{"type":"B"}]'

SHOWN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"enqueued_at": START}, {"enqueued_at": AT}),
    ({"started_at": START}, {"started_at": AT}),
    ({"state": "cancelled", "finished_at": START}, {"state": "cancelled", "cancelled_at": AT}),
    (
        {"state": "cancelled", "finished_at": START + 1_000_000, "started_at": START},
        {"state": "cancelled", "cancelled_at": LATER, "started_at": AT},
    ),
    (
        {"state": "completed", "finished_at": START + 1_000_000, "started_at": START},
        {"state": "completed", "completed_at": LATER, "started_at": AT},
    ),
    ({"state": "completed", "finished_at": START}, {"state": "completed"}),
    ({"state": "discarded", "finished_at": START}, {"state": "discarded", "discarded_at": AT}),
    (
        {"state": "discarded", "finished_at": START + 1_000_000, "started_at": START},
        {"state": "discarded", "completed_at": LATER, "discarded_at": LATER, "started_at": AT},
    ),
    (
        {"state": "retryable", "retry_delay": 2_500_999, "due_at": START},
        {"state": "retryable", "retry_delay_ms": 2_500, "next_attempt_at": AT},
    ),
    ({"state": "retryable", "retry_delay": 0}, {"state": "retryable", "retry_delay_ms": 0}),
    ({"state": "scheduled", "due_at": START}, {"state": "scheduled", "next_attempt_at": AT}),
    ({"retry_delay": 2_000_000, "due_at": START}, {"retry_delay_ms": 2_000}),
    ({"due_at": START}, {}),
    ({"losses": 1}, {"losses": 1}),
    ({"cron_name": "nightly"}, {"cron_name": "nightly"}),
    ({"worker_id": 'w"1'}, {"worker_id": 'w"1'}),
    ({"progress": b'{"progress":0.5}'}, {"progress": {"progress": 0.5}}),
    ({"errors": ERRORS}, {"errors": [{"type": "A"}, {"type": "B"}], "error": {"type": "B"}}),
    (
        {"errors": ERRORS, "state": "completed"},
        {"errors": [{"type": "A"}, {"type": "B"}], "state": "completed", "outcome": "success"},
    ),
    ({"superseded_by": "k"}, {"superseded_by": "k"}),
    ({"result": b'{"a":1}'}, {"result": {"a": 1}}),
    ({"result": b"null"}, {"result": None}),
    ({"parent_results": b"[1]"}, {"parent_results": [1]}),
    ({"checkpoint": b"7"}, {"checkpoint": 7}),
    ({"resumed": b"8"}, {"resumed": 8}),
]


@pytest.mark.parametrize(("given", "expected"), SHOWN, ids=[str(n) for n in range(len(SHOWN))])
def test_a_job_shows_what_it_has_and_nothing_else(given: dict[str, Any], expected: dict[str, Any]) -> None:
    seen = msgspec.json.decode(to_json(job(**given)))
    if "outcome" not in expected:
        seen.pop("outcome", None)
    assert seen == BASE | expected


SEEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"state": "active", "attempt": 2, "max_attempts": 7, "losses": 1}, {"attempt": 2, "max_attempts": 7, "losses": 1}),
    ({"queue": "q", "priority": 5}, {"queue": "q", "priority": 5}),
    ({"created_at": AT}, {"created_at": START}),
    ({"enqueued_at": AT}, {"enqueued_at": START}),
    ({"started_at": AT}, {"started_at": START}),
    ({"completed_at": AT}, {"finished_at": START}),
    ({"cancelled_at": AT}, {"finished_at": START}),
    ({"discarded_at": AT}, {"finished_at": START}),
    ({"next_attempt_at": AT}, {"due_at": START}),
    ({"timeout": 5}, {"timeout": 5_000_000}),
    ({"timeout_ms": 5}, {"timeout": 5_000}),
    ({"timeout": 7, "timeout_ms": 5}, {"timeout": 5_000}),
    ({"ext_ml_timeout_seconds": 6, "timeout_ms": 5}, {"timeout": 6_000_000}),
    ({"timeout": 0}, {"timeout": None}),
    ({"visibility_timeout_ms": 5}, {"lease": 5_000}),
    ({"visibility_timeout_ms": 0}, {"lease": None}),
    ({"retry_delay_ms": 5}, {"retry_delay": 5_000}),
    ({"retry_delay_ms": 0}, {"retry_delay": 0}),
    ({"worker_id": "w"}, {"worker_id": "w"}),
    ({"progress": {"progress": 1}}, {"progress": b'{"progress":1}'}),
    ({"result": None}, {"result": b"null"}),
    ({"errors": [1]}, {"errors": b"[1]"}),
    ({"superseded_by": "k"}, {"superseded_by": "k"}),
    ({"parent_results": [1]}, {"parent_results": b"[1]"}),
    ({"checkpoint": 1}, {"checkpoint": b"1"}),
    ({"resumed": 1}, {"resumed": b"1"}),
    ({"outcome": "success"}, {"suspension": None}),
    ({"outcome": "skipped"}, {"suspension": "skipped"}),
    ({"meta": {"tenant_id": "acme", "k": 1}}, {"tenant": "acme"}),
    ({"meta": {"tenant_id": 7}}, {"tenant": ""}),
    ({"meta": {"k": "tenant_id"}}, {"tenant": ""}),
    ({"meta": None}, {"tenant": ""}),
]


@pytest.mark.parametrize(("given", "expected"), SEEN, ids=[str(n) for n in range(len(SEEN))])
def test_a_client_reads_each_member(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = from_json(msgspec.json.encode({"id": "j"} | given))
    assert {name: getattr(found, name) for name in expected} == expected


def test_what_a_server_leaves_out_is_nothing() -> None:
    raw = b'{"id":"j"}'
    found = from_json(raw)
    assert (found.seq, found.id, found.type, found.queue, found.state) == (0, "j", "", "default", "")
    assert (found.priority, found.attempt, found.max_attempts, found.losses, found.created_at) == (0, 0, 0, 0, 0)
    assert found.envelope == raw
    for name in ("enqueued_at", "started_at", "finished_at", "due_at", "timeout", "lease", "retry_delay", "worker_id"):
        assert getattr(found, name) is None, name
    for name in (
        "progress",
        "result",
        "errors",
        "superseded_by",
        "suspension",
        "parent_results",
        "checkpoint",
        "resumed",
    ):
        assert getattr(found, name) is None, name


def test_a_job_without_a_policy_has_the_default() -> None:
    assert retry_policy(job()) == RetryPolicy()
    assert retry_policy(job(envelope=b'{"retry":null}')) == RetryPolicy()
    assert retry_policy(job(envelope=b'{"retry":{"max_attempts":7}}')) == RetryPolicy(max_attempts=7)


@pytest.mark.anyio
async def test_a_job_that_waits_for_its_retry_says_how_long(bench: Bench) -> None:
    await bench.push(retry={"initial_interval": "PT2S", "jitter": False})
    failed = await bench.fail(await bench.fetch_one(worker_id="w"))
    seen = shown(await bench.find(failed))
    assert (seen["retry_delay_ms"], seen["next_attempt_at"]) == (2_000, "2027-01-15T08:00:02.000000Z")
