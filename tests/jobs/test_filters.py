"""Filters of jobs: what each member means, which values it takes, and which jobs match."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidRequest
from ojster.jobs.filter_walk import JobFilter, batches, conditions
from ojster.jobs.filters import VALUE_LISTS, filter_members, filter_of, shown_value
from tests.conftest import START, Bench, request

FIRST = "01900000-0000-7000-8000-0000000000fa"
AT = "1970-01-01T00:00:05Z"
MOMENT = 5_000_000

READ: list[tuple[dict[str, Any], JobFilter]] = [
    ({}, JobFilter()),
    ({"type": None, "state": None}, JobFilter()),
    ({"type": "a.*"}, JobFilter(type="a.*")),
    ({"job_type": "a"}, JobFilter(type="a")),
    ({"queue": "q"}, JobFilter(queue="q")),
    ({"state": "active"}, JobFilter(states=("active",))),
    ({"state": "active,pending,active"}, JobFilter(states=("active", "pending"))),
    ({"states": ["active", "active", "pending"]}, JobFilter(states=("active", "pending"))),
    ({"error_type": "E*"}, JobFilter(error_type="E*")),
    ({"cron_name": "nightly"}, JobFilter(cron_name="nightly")),
    ({"error_pattern": "row … is bad"}, JobFilter(error_pattern="row … is bad")),
    ({"error_pattern": "row 17 is bad\nmore"}, JobFilter(error_pattern="row … is bad")),
    ({"error_pattern": ""}, JobFilter(error_pattern="")),
    ({"queue": "a,b"}, JobFilter(queue=("a", "b"))),
    ({"type": ["a", "b.*", "a"]}, JobFilter(type=("a", "b.*"))),
    ({"error_type": r"App\Error,a\,b,c\\"}, JobFilter(error_type=(r"App\Error", "a,b", "c\\"))),
    ({"error_type": ["a,b"]}, JobFilter(error_type="a,b")),
    ({"cron_name": "a,b"}, JobFilter(cron_name=("a", "b"))),
    ({"error_text": "a, b"}, JobFilter(error_text="a, b")),
    ({"worker": "w", "workflow": "x,y", "tag": "t"}, JobFilter(worker="w", workflow=("x", "y"), tag="t")),
    ({"where": r"args.a=1\,2,meta.b="}, JobFilter(where=("args.a=1,2", "meta.b="))),
    ({"id": "…00Fa"}, JobFilter(id="00fa")),
    ({"priority": 0}, JobFilter(priority=0)),
    ({"priority": 2**31}, JobFilter(priority=2**31)),
    ({"priority": -(2**31)}, JobFilter(priority=-(2**31))),
    ({"meta": {"a": 1}}, JobFilter(meta={"a": 1})),
    ({"dead": True}, JobFilter(dead=True)),
    ({"dead": "false"}, JobFilter(dead=False)),
    ({"since": AT}, JobFilter(created_after=MOMENT)),
    ({"until": AT}, JobFilter(created_before=MOMENT)),
    ({"created_after": AT}, JobFilter(created_after=MOMENT)),
    ({"created_before": AT}, JobFilter(created_before=MOMENT)),
    ({"enqueued_after": AT}, JobFilter(enqueued_after=MOMENT)),
    ({"enqueued_before": AT}, JobFilter(enqueued_before=MOMENT)),
    ({"finished_after": AT}, JobFilter(finished_after=MOMENT)),
    ({"finished_before": AT}, JobFilter(finished_before=MOMENT)),
    ({"older_than": AT}, JobFilter(finished_before=MOMENT)),
    ({"completed_after": AT}, JobFilter(states=("completed",), finished_after=MOMENT)),
    ({"completed_before": AT}, JobFilter(states=("completed",), finished_before=MOMENT)),
    ({"cancelled_after": AT}, JobFilter(states=("cancelled",), finished_after=MOMENT)),
    ({"cancelled_before": AT}, JobFilter(states=("cancelled",), finished_before=MOMENT)),
    ({"discarded_after": AT}, JobFilter(states=("discarded",), finished_after=MOMENT)),
    ({"discarded_before": AT}, JobFilter(states=("discarded",), finished_before=MOMENT)),
    (
        {"completed_after": AT, "cancelled_before": AT},
        JobFilter(states=("completed", "cancelled"), finished_after=MOMENT, finished_before=MOMENT),
    ),
    ({"completed_after": AT, "state": "discarded"}, JobFilter(states=("discarded",), finished_after=MOMENT)),
]


@pytest.mark.parametrize(("given", "expected"), READ, ids=[str(n) for n in range(len(READ))])
def test_each_member_of_a_filter_is_read(given: dict[str, Any], expected: JobFilter) -> None:
    assert filter_of(given) == expected


@pytest.mark.parametrize("chosen", [chosen for _, chosen in READ], ids=[str(n) for n in range(len(READ))])
def test_a_filter_that_is_sent_to_a_server_is_read_as_it_was_meant(chosen: JobFilter) -> None:
    assert filter_of(filter_members(chosen)) == chosen
    query = {name: shown_value(name, getattr(chosen, name)) for name in (*VALUE_LISTS, "states", "error_text", "id")}
    others = {name: None for name in chosen.__struct_fields__ if name not in query}
    listed = {name: getattr(JobFilter(), name) for name in others}
    assert filter_of(query) == msgspec.structs.replace(chosen, **listed)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"colour": "red"}, "colour", "The filter has no member 'colour'. Use type, job_type, queue, state, states"),
    ({"type": "a", "job_type": "b"}, "job_type", "The filter sets 'type' twice; remove 'job_type'."),
    ({"older_than": AT, "completed_before": AT}, "completed_before", "The filter sets 'finished_before' twice"),
    ({"type": ""}, "type", "'type' of the filter must be a non-empty string, not ''."),
    ({"type": 5}, "type", "not 5."),
    ({"type": "a\0"}, "type", "must be a non-empty string"),
    ({"queue": "A"}, "queue", "The queue name 'A' is invalid"),
    ({"queue": 5}, "queue", "'queue' of the filter must be a non-empty string or an array of strings, not 5."),
    ({"quue": "q"}, "quue", "The filter has no member 'quue'. Did you mean 'queue'? Use type, "),
    ({"type": "a,,b"}, "type", "'type' of the filter must be a non-empty string, not ''."),
    ({"type": []}, "type", "must be a non-empty string or an array of strings, not []."),
    ({"tag": ["a", 5]}, "tag", "not 5."),
    ({"tag": [str(n) for n in range(101)]}, "tag", "'tag' of the filter has 101 values; use 100."),
    ({"worker": "w" * 1_001}, "worker", "'worker' of the filter is longer than 1000 characters."),
    ({"where": "order_id=42"}, "where", "must be like 'args.order_id=42' or 'meta.customer=17', not 'order_id=42'."),
    ({"where": "args.order_id"}, "where", "must be like"),
    ({"where": "args=42"}, "where", "must be like"),
    ({"where": {"args.a": "1"}}, "where", "must be a non-empty string or an array of strings"),
    ({"id": "%"}, "id", "must be 4 to 36 characters of the beginning or the end of a job's id"),
    ({"state": ""}, "state", "Unknown state ''."),
    ({"state": "active,asleep"}, "state", "Unknown state 'asleep'. Use scheduled, "),
    ({"state": []}, "state", "'state' of the filter must be a state or a non-empty array of states."),
    ({"states": {"active": 1}}, "states", "'states' of the filter must be a state or a non-empty array of states."),
    ({"states": [5]}, "states", "Unknown state 5."),
    ({"states": [[]]}, "states", "Unknown state []."),
    ({"error_pattern": 5}, "error_pattern", "'error_pattern' of the filter must be a string, not 5."),
    ({"priority": True}, "priority", "'priority' of the filter must be an integer, not True."),
    ({"priority": "5"}, "priority", "not '5'."),
    ({"internal": 1}, "internal", "'internal' of the filter must be true or false, not 1."),
    ({"internal": "yes"}, "internal", "must be true or false, not 'yes'."),
    ({"priority": 1.0}, "priority", "not 1.0."),
    ({"priority": 2**31 + 1}, "priority", "'priority' of the filter must be an integer, not 2147483649."),
    ({"priority": -(2**31) - 1}, "priority", "'priority' of the filter must be an integer"),
    ({"since": "soon"}, "since", "'since' of the filter: 'soon' is not an RFC 3339 time stamp"),
    ({"since": 5}, "since", "'since' of the filter must be a non-empty string, not 5."),
    ({"meta": {}}, "meta", "'meta' of the filter must be an object with at least one member."),
    ({"meta": []}, "meta", "'meta' of the filter must be an object with at least one member."),
]


@pytest.mark.parametrize(("given", "field", "reason"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_a_member_that_makes_no_sense_is_refused_with_its_name(given: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        filter_of(given)
    assert refused.value.details == {"field": field}
    assert reason in refused.value.message


CHOSEN: list[tuple[JobFilter, str]] = [
    (JobFilter(), "abcd"),
    (JobFilter(states=("available",)), "bc"),
    (JobFilter(states=("cancelled", "discarded")), "ad"),
    (JobFilter(queue="q"), "c"),
    (JobFilter(queue=("q", "d")), "cd"),
    (JobFilter(type=("t.a", "t.c", "td*")), "acd"),
    (JobFilter(error_text="SMTP"), "d"),
    (JobFilter(error_text="host 7 is DOWN"), "d"),
    (JobFilter(error_text="host 8"), ""),
    (JobFilter(where=("meta.n=1",)), "ab"),
    (JobFilter(where=("meta.n=1", "meta.m=null")), "b"),
    (JobFilter(worker="w"), "d"),
    (JobFilter(worker=("w", "x")), "d"),
    (JobFilter(worker="x"), ""),
    (JobFilter(id=FIRST[-12:]), "a"),
    (JobFilter(id=FIRST[:20]), "a"),
    (JobFilter(id="00000000"), ""),
    (JobFilter(workflow="none"), ""),
    (JobFilter(except_queues=("q", "p")), "abd"),
    (JobFilter(tenant=""), "abd"),
    (JobFilter(tenant="acme"), "c"),
    (JobFilter(except_tenants=("acme", "beta")), "abd"),
    (JobFilter(type="t.b"), "b"),
    (JobFilter(type="t.*"), "abc"),
    (JobFilter(type="t*"), "abcd"),
    (JobFilter(error_type="Smtp*"), "d"),
    (JobFilter(error_type="Smtp"), ""),
    (JobFilter(error_pattern="host … is down"), "d"),
    (JobFilter(error_pattern="host 7 is down"), ""),
    (JobFilter(error_pattern=""), "abc"),
    (JobFilter(error_pattern="host … is down", error_type="Other"), ""),
    (JobFilter(error_pattern="", meta={"n": 1}), "ab"),
    (JobFilter(dead=True), "d"),
    (JobFilter(dead=False), "abc"),
    (JobFilter(priority=5), "b"),
    (JobFilter(created_after=START), "bcd"),
    (JobFilter(created_before=START + 1_000_000), "a"),
    (JobFilter(enqueued_after=START + 1_000_000), "cd"),
    (JobFilter(enqueued_before=START + 1_000_000), "a"),
    (JobFilter(finished_after=START + 4_000_000), "d"),
    (JobFilter(finished_before=START + 5_000_000), "a"),
    (JobFilter(meta={"n": 1}), "ab"),
    (JobFilter(meta={"n": 1, "m": None}), "b"),
    (JobFilter(meta={"n": None}), ""),
    (JobFilter(has_own_expiration=True), "d"),
    (JobFilter(has_own_expiration=False, states=("cancelled", "discarded")), "a"),
    (JobFilter(states=("available",), type="t.*", tenant="acme", queue="q"), "c"),
]


@pytest.mark.anyio
async def test_a_filter_chooses_the_jobs_that_it_describes(bench: Bench) -> None:
    """Four jobs, one second apart; a second later the first is cancelled, and then the last becomes a dead letter."""
    jobs = [await bench.push("t.a", meta={"n": 1}, id=FIRST)]
    bench.clock.advance(1)
    jobs.append(await bench.push("t.b", priority=5, meta={"n": 1, "m": None}))
    bench.clock.advance(1)
    jobs.append(await bench.push("t.c", queue="q", meta={"tenant_id": "acme"}))
    bench.clock.advance(1)
    retry = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    kept = request("td", queue="d", retry=retry) | {"expiration_delay": msgspec.Raw(b'"PT1H"')}
    jobs += [pushed.job for pushed in await bench.service.jobs.enqueue([kept])]
    bench.clock.advance(1)
    await bench.service.jobs.cancel(jobs[0].id)
    bench.clock.advance(1)
    await bench.fail(await bench.fetch_one("d", worker_id="w"), "SmtpError", message="host 7 is down")
    names = {job.id: name for job, name in zip(jobs, "abcd", strict=True)}
    for chosen, expected in CHOSEN:
        walked = [id async for some in batches(bench.service.database, chosen, 2) for id in some]
        assert "".join(names[id] for id in walked) == expected, chosen
        page = await bench.service.jobs.select(chosen)
        assert "".join(sorted(names[job.id] for job in page.jobs)) == expected, chosen
        assert page.total == len(expected), chosen


def test_a_filter_by_one_state_can_use_the_indexes_of_jobs_in_that_state() -> None:
    assert conditions(JobFilter(states=("discarded",), internal=True)) == ("state = 'discarded'", {})


def test_filters_by_several_states_are_one_statement_whatever_their_order() -> None:
    """Each statement is prepared, and kept as long as its connection."""
    orders = [("available", "active"), ("active", "available"), ("retryable", "completed")]
    assert len({conditions(JobFilter(states=states))[0] for states in orders}) == 1


@pytest.mark.parametrize("state", ["'; DROP TABLE jobs; --", "unknown"])
def test_a_state_that_is_none_does_not_become_a_part_of_a_statement(state: str) -> None:
    with pytest.raises(InvalidRequest, match="Unknown state"):
        JobFilter(states=(state,))
