"""Two workers that both believe to hold a flow: the older one is refused whatever it says, and changes nothing."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ojster import Flow
from ojster.client.client import HttpClient
from ojster.core.errors import Conflict
from ojster.core.job import Job
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.service import Service
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import NewRecord, Seen, Turn
from ojster.workflows.stream import StreamAppend
from tests.flows.driver import FlowBench
from tests.flows.test_flows import app, bench
from tests.serving import serving

__all__ = ["app", "bench"]

pytestmark = pytest.mark.anyio

_ONE = Raw(b"1")

RECORDS: dict[str, NewRecord] = {
    "begin": NewRecord("!begin", "begin", "", 1),
    "step": NewRecord("late", "step", "late", 1, ended_at=1, result=_ONE),
    "run": NewRecord("job", "run", "note", 1, step=Raw(b'{"type": "note", "args": ["late"]}')),
    "receive": NewRecord("go", "receive", "go", 1),
    "receive_many": NewRecord("all", "receive_many", "go", 1),
    "listen": NewRecord("news", "listen", "news", 1, correlation_key="7"),
    "listen_many": NewRecord("all news", "listen_many", "news", 1, correlation_key="7"),
    "patch": NewRecord("!patch/id", "patch", "id", 1),
    "published": NewRecord("!published", "published", "", 1, result=_ONE),
    "answer": NewRecord("!answer/put", "answer", "!update/put", 1, result=_ONE),
    "chunk": NewRecord("!chunk/2/words", "chunk", "words", 1, result=_ONE),
}
"""A record of each kind."""

TURNS: dict[str, dict[str, Any]] = {
    "seen": {"seen": (Seen("first", 1, 1),)},
    "cancelled": {"cancelled": ("first",)},
    "suspends": {"suspends": True, "version": 1 << 30, "ended": 100},
    "was_cancelled": {"was_cancelled": True},
    "restarts": {"restarts": True, "records": (NewRecord("!begin", "begin", "", 1, result=Raw(b"[]")),)},
}
"""What a turn may say beside its records."""

Call = Callable[[Any, Job], Awaitable[Any]]


def _turn(**members: Any) -> Call:
    return lambda client, job: client.flows.turn(Turn(job.id, job.worker_id, job.attempt, job.started_at, **members))


async def _step_of_known_flow(client: Any, job: Job) -> None:
    await _turn(records=(RECORDS["step"],), flow=job.node)(client, job)


async def _append(client: Any, job: Job) -> None:
    await client.flows.append(StreamAppend(job.id, "words", (b"1",), "id", job.worker_id, job.attempt, job.started_at))


async def _reported(answers: Sequence[Any]) -> None:
    if isinstance(answers[0], BaseException):
        raise answers[0]


async def _acknowledge(client: Any, job: Job) -> None:
    report = Acknowledgement(job.id, b"1", job.worker_id, job.attempt, started_at=job.started_at)
    await _reported(await client.jobs.acknowledge([report]))


async def _fail(client: Any, job: Job) -> None:
    failure = Failure("E", "late", "handler_error")
    await _reported(
        await client.jobs.fail([FailureReport(job.id, failure, job.worker_id, job.attempt, None, job.started_at)])
    )


async def _release(client: Any, job: Job) -> None:
    await _reported(await client.jobs.release([Release(job.id, job.worker_id or "", job.attempt)]))


CALLS: dict[str, Call] = {
    **{kind: _turn(records=(record,)) for kind, record in RECORDS.items()},
    "step of a known flow": _step_of_known_flow,
    **{member: _turn(**members) for member, members in TURNS.items()},
    "nothing": _turn(),
    "append": _append,
    "acknowledge": _acknowledge,
    "fail": _fail,
    "release": _release,
}
"""What a worker says of a flow that it runs. A compensation is a run."""


def test_the_table_has_all_that_a_turn_may_say() -> None:
    kinds = msgspec.inspect.type_info(NewRecord).fields[1].type  # type: ignore[attr-defined]
    assert set(RECORDS) == set(kinds.values)
    holder = {"job_id", "worker_id", "attempt", "started_at", "access", "flow"}
    details = {"records", "wakes_at", "version", "ended", "position"}
    assert set(TURNS) == set(typing.get_type_hints(Turn)) - holder - details


TABLES = (
    *("flow_records", "flow_messages", "streams", "stream_chunks", "broadcast_receivers"),
    *("nodes", "workflows", "jobs"),
)


def _everything(tx: Transaction, asked: Sequence[None]) -> list[Any]:
    rows = [sorted(map(repr, tx.execute(f"SELECT * FROM {table}"))) for table in TABLES]
    return [rows for _ in asked]


async def _lost(bench: FlowBench, how: str) -> Job:
    """Return the job of a flow as a worker knows it that does not hold it any more."""

    @bench.app.flow("long")
    async def long(flow: Flow) -> None:
        """What it does is said by the tests."""

    await bench.start(long.s())
    (old,) = await bench.service.jobs.fetch(Claim(("default",), 1, "w1", 30_000_000))
    first = NewRecord("first", "run", "note", 1, step=Raw(b'{"type": "note", "args": ["first"], "queue": "other"}'))
    first_go = NewRecord("!update/put", "receive", "!put", 1)
    chunk = NewRecord("!chunk/1/words", "chunk", "words", 1, result=_ONE)
    await bench.service.flows.turn(Turn(old.id, "w1", old.attempt, old.started_at, (first, first_go, chunk)))
    if how == "it waits":
        await bench.service.flows.turn(Turn(old.id, "w1", old.attempt, old.started_at, suspends=True, ended=100))
        return old
    if how == "it has ended":
        await bench.service.jobs.acknowledge([Acknowledgement(old.id, b"1", "w1", old.attempt)])
        return old
    await bench.run_due(31)
    await bench.run_due(5)
    worker = "w1" if how == "the same worker holds it again" else "w2"
    (new,) = await bench.service.jobs.fetch(Claim(("default",), 1, worker, 30_000_000))
    assert new.id == old.id
    return old


@pytest.mark.parametrize(
    "how", ["another worker holds it", "the same worker holds it again", "it waits", "it has ended"]
)
async def test_a_worker_that_has_lost_a_flow_is_refused_whatever_it_says(
    bench: FlowBench, service: Service, how: str
) -> None:
    job = await _lost(bench, how)
    before = await bench.run(_everything, None)
    async with serving(service) as (_, port):
        client = HttpClient(f"http://127.0.0.1:{port}")
        for what, call in CALLS.items():
            for faces in (service, client):
                with pytest.raises(Conflict):
                    await call(faces, job)
                assert await bench.run(_everything, None) == before, what
        await client.close()


async def test_the_same_words_of_the_worker_that_holds_it_are_heard(bench: FlowBench) -> None:
    job = await _lost(bench, "another worker holds it")
    holder = await bench.find(job)
    for what in (*RECORDS, "seen", "append", "cancelled", "suspends"):
        before = await bench.run(_everything, None)
        await CALLS[what](bench.service, holder)
        assert await bench.run(_everything, None) != before, what


_LAST_WORDS = (NewRecord("!chunk/1/last", "chunk", "last", 1, result=_ONE), *TURNS["restarts"]["records"])
AGAIN = {what: CALLS[what] for what in (*RECORDS, *TURNS, "nothing", "append")} | {
    "restarts with last words": _turn(restarts=True, records=_LAST_WORDS)
}


@pytest.mark.parametrize("what", AGAIN)
async def test_what_a_worker_says_again_because_no_answer_came_counts_once(bench: FlowBench, what: str) -> None:
    holder = await bench.find(await _lost(bench, "another worker holds it"))
    await AGAIN[what](bench.service, holder)
    before = await bench.run(_everything, None)
    with contextlib.suppress(Conflict):
        await AGAIN[what](bench.service, holder)
    after = await bench.run(_everything, None)
    changed = {table for table, old, new in zip(TABLES, before, after, strict=True) if old != new}
    assert changed <= {"workflows"}  # which counts how often something was said
