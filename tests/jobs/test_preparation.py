"""Requests of many jobs: those that differ in their arguments alone are not read as a whole, and give the same jobs."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ojster.collections import extension
from ojster.collections.places import which_exist
from ojster.core.errors import InvalidRequest, OjsterError, PayloadTooLarge
from ojster.core.json_objects import Members, read_members
from ojster.jobs import models
from ojster.jobs import preparation as module
from ojster.jobs.middleware import EnqueueFunction, JobRequest, MiddlewareChain
from ojster.jobs.models import LARGEST_RECENT, MOST_MODELS, RecentRequests
from ojster.jobs.new_job import NewJob, read_job
from ojster.jobs.preparation import Preparation
from ojster.jobs.schemas import Catalogue
from ojster.storage.memory import Memory
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, request

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_000_000
LARGEST = 400


class FakeScope(SimpleNamespace):
    def check_new(self, tenant: str, queue: str) -> None:
        return


def prepare(requests: list[dict[str, Any]]) -> list[NewJob | str]:
    preparation = new_preparation()

    async def all_of_them() -> list[NewJob | str]:
        made: list[NewJob | str] = []
        for one in requests:
            try:
                made.append(await preparation.job(members_of(one)))
            except OjsterError as error:
                made.append(error.message)
        return made

    return asyncio.run(all_of_them())


def new_preparation() -> Preparation:
    settings = SimpleNamespace(largest_job=LARGEST, default_tenant="")
    database = SimpleNamespace(clock=lambda: NOW, settings=settings, memory=Memory())
    scope: Any = FakeScope(database=database, tenant=None, access=None)
    return Preparation(scope, MiddlewareChain(), (), Catalogue(()))


def members_of(wire: dict[str, Any]) -> Members:
    return read_members(msgspec.json.encode(wire))


def alone(wire: dict[str, Any]) -> NewJob | str:
    try:
        return read_job(members_of(wire), NOW, largest=LARGEST)
    except OjsterError as error:
        return error.message


def without_id(made: NewJob | str) -> object:
    if isinstance(made, str):
        return made
    return msgspec.structs.asdict(made) | {
        "id": "",
        "model": None,
        "envelope": made.envelope.replace(made.id.encode(), b"ID"),
    }


OPTIONS = st.sampled_from(
    [
        {},
        {"queue": "mail", "priority": 5},
        {"delay_until": "+PT1H"},
        {"unique": {"keys": ["args"]}},
        {"expires_at": "+PT5M", "timeout_ms": 5_000},
        {"enqueue_ttl": "PT1M"},
        {"queue": "?"},
        {"metadata": {"k": 2, "tenant_id": "acme"}},
        {"rate_limit": {"max_per_second": 4}},
        {"priorty": 3},
    ]
)
ARGS: st.SearchStrategy[Any] = st.sampled_from(
    [[], [1], ["a", {"b": [2]}], [{"$lookup": "x"}], ["args", '"args":[]'], ["x" * 400], None, {}, "[]", [[1], "]"]]
)
TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
REQUESTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"type": st.sampled_from(["a.b", "a.c", "a.b@2.0", "ojs.wait", "?"]), "args": ARGS},
    optional={
        "meta": st.sampled_from([{}, {"tenant_id": "acme"}, {"k": 1}, TRACED]),
        "options": OPTIONS,
        "x_custom": st.sampled_from([1, 2]),
        "workflow_id": st.just("01900000-0000-7000-8000-000000000000"),
        "workflow_step": st.sampled_from(["0", "1.a", '],"args":[]']),
        "priority": st.just(3),
        "on_success": st.just([]),
    },
)


@given(st.lists(REQUESTS, max_size=12))
def test_many_jobs_are_what_each_would_be_alone(requests: list[dict[str, Any]]) -> None:
    made = prepare(requests)
    assert [without_id(one) for one in made] == [without_id(alone(one)) for one in requests]
    ids = [one.id for one in made if isinstance(one, NewJob)]
    assert len(set(ids)) == len(ids)


@given(st.lists(REQUESTS, max_size=30))
def test_jobs_prepared_together_are_what_each_would_be_alone(requests: list[dict[str, Any]]) -> None:
    valid = [one for one in requests if isinstance(alone(one), NewJob)]
    made = asyncio.run(new_preparation().jobs(map(members_of, valid)))
    assert [without_id(one) for one in made] == [without_id(alone(one)) for one in valid]


@given(st.lists(REQUESTS, max_size=30))
def test_jobs_of_one_model_differ_in_their_ids_and_envelopes_alone(requests: list[dict[str, Any]]) -> None:
    recent = RecentRequests()
    valid = [one for one in requests if isinstance(alone(one), NewJob)]
    read = [
        recent.read(members_of(one), NOW, largest=LARGEST, tenant=None, otherwise="") for one in valid for _ in range(3)
    ]
    made = [one for one in (*prepare(requests), *read) if isinstance(one, NewJob) and one.model is not None]
    by_model: dict[int, list[object]] = {}
    for job in made:
        by_model.setdefault(id(job.model), []).append(replace(job, id="", envelope=b""))
    for alike in by_model.values():
        assert alike == [alike[0]] * len(alike)


@given(
    st.lists(
        st.tuples(
            REQUESTS,
            st.sampled_from([NOW, NOW + 5_000_000]),
            st.sampled_from([60, LARGEST]),
            st.sampled_from([None, "", "acme"]),
            st.sampled_from(["", "acme"]),
        ),
        max_size=20,
    )
)
def test_requests_that_come_alone_are_read_as_if_no_others_had_come(
    calls: list[tuple[dict[str, Any], int, int, str | None, str]],
) -> None:
    recent = RecentRequests()

    def copied_or_read(members: Members, now: int, **limits: Any) -> NewJob:
        job = recent.copy(members, **limits)
        return recent.read(members, now, **limits) if job is None else job

    for wire, now, largest, tenant, otherwise in calls * 3:
        outcomes = []
        for read in (copied_or_read, recent.read, read_job):
            try:
                outcomes.append(
                    without_id(read(members_of(wire), now, largest=largest, tenant=tenant, otherwise=otherwise))
                )
            except OjsterError as error:
                outcomes.append(error.message)
        assert outcomes[0] == outcomes[1] == outcomes[2]


def test_only_small_requests_without_times_that_come_again_are_kept_and_not_too_many() -> None:
    recent = RecentRequests()

    def read(**wire: Any) -> None:
        recent.read(members_of(wire), NOW, largest=10_000, tenant=None, otherwise="")

    for _ in range(2):
        read(type="a.b", args=["x" * LARGEST_RECENT])
        read(type="a.b", args=[], options={"delay_until": "+PT1H"})
        read(type="a.b", args=[], options={"expires_at": "+PT1H"})
        read(type="a.b", args=[], options={"unique": {"keys": ["args"]}})
    assert not recent._models
    for number in range(2 * MOST_MODELS + 1):
        read(type="a.b", args=[], meta={"number": number})
        assert not recent._models
        assert len(recent._met) <= MOST_MODELS
    for number in range(2 * MOST_MODELS + 1):
        read(type=f"t{number}", args=[])
        read(type=f"t{number}", args=[])
        assert 0 < len(recent._models) <= MOST_MODELS
        read(type=f"t{number}", args=[])
        assert 0 < len(recent._last_of_type) <= MOST_MODELS


def test_what_is_kept_of_requests_does_not_grow_with_the_white_space_in_them() -> None:
    recent = RecentRequests()
    space = b" " * 100_000
    for form in (
        b'{"type":"t%d",%b"args":[]}',
        b'{"type":"t%d","args":[],"options":{%b}}',
        b'{"type":"t%d","args":[%b]}',
    ):
        tracemalloc.start()
        for number in [*range(20), *range(20)]:
            recent.read(read_members(form % (number, space)), NOW, largest=1_000_000, tenant=None, otherwise="")
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < len(space)


def test_jobs_that_differ_in_their_arguments_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def counted(*args: Any, **more: Any) -> NewJob:
        nonlocal reads
        reads += 1
        return read_job(*args, **more)

    monkeypatch.setattr(models, "read_job", counted)
    made = prepare([{"type": "a.b", "args": [number], "options": {"queue": "q"}} for number in range(100)])
    assert reads == 1
    assert [one.envelope.count(b'"args":[%d]' % number) for number, one in enumerate(made) if isinstance(one, NewJob)]
    assert all(isinstance(one, NewJob) and one.queue == "q" for one in made)


async def test_a_request_like_recent_ones_is_copied_until_an_operator_changes_something(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 0
    begin = module.Preparations.begin

    async def counted(self: module.Preparations, *, of_many: bool = True) -> Preparation:
        nonlocal begun
        begun += 1
        return await begin(self, of_many=of_many)

    monkeypatch.setattr(module.Preparations, "begin", counted)

    async def priorities(count: int) -> list[int]:
        pushed = [await bench.service.jobs.enqueue([request("t", number)]) for number in range(count)]
        return [one.job.priority for (one,) in pushed]

    assert await priorities(9) == [0] * 9
    assert 0 < begun < 9
    await bench.service.job_types.put("t", members_of({"options": {"priority": 7}}))
    assert await priorities(4) == [7] * 4
    await bench.service.job_types.delete("t")
    await bench.service.schemas.register("t", 1, b'{"type":"array","items":{"type":"string"}}', mode="strict")
    with pytest.raises(OjsterError, match="schema"):
        await priorities(1)
    await bench.service.schemas.delete("t", "1")
    begun = 0
    assert await priorities(9) == [0] * 9
    assert 0 < begun < 9

    async def raise_priority(job: JobRequest, enqueue: EnqueueFunction) -> JobRequest | None:
        return await enqueue({**job, "options": {"priority": 9}})

    bench.service.middleware.append(raise_priority)
    assert await priorities(3) == [9] * 3


async def test_a_request_like_recent_ones_is_refused_where_they_would_be(bench: Bench) -> None:
    for number in range(5):
        await bench.service.jobs.enqueue([request("t", number)])
    values: list[Any] = ["x" * 2_000_000, {"$lookup": {}}]
    for wrong in values:
        with pytest.raises(OjsterError):
            await bench.service.jobs.enqueue([request("t", wrong)])
    with pytest.raises(OjsterError):
        await bench.service.jobs.enqueue([{"type": msgspec.Raw(b'"t"'), "args": msgspec.Raw(b"{}")}])
    with pytest.raises(OjsterError):
        await bench.service.jobs.enqueue([{"type": msgspec.Raw(b'"t"')}])


async def test_a_job_of_many_that_is_too_large_is_refused_with_all_others(bench: Bench) -> None:
    with pytest.raises(PayloadTooLarge, match="bytes"):
        await bench.service.jobs.enqueue([request("t", 1), request("t", "x" * 2_000_000), request("t", 2)])
    assert not (await bench.service.jobs.select()).jobs


async def test_references_of_jobs_that_are_alike_are_looked_up_once_in_a_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counted(tx: Transaction, keys: Sequence[str]) -> list[bool]:
        nonlocal looks
        looks += 1
        return which_exist(tx, keys)

    def into(name: str, *numbers: int) -> list[Members]:
        reactions = {"on_success": [{"action": "collect", "name": "a", "collection": name}]}
        return [members_of({"type": "t", "args": [number], "event_reactions": reactions}) for number in numbers]

    monkeypatch.setattr(extension, "which_exist", counted)
    await bench.service.collections.create("shelf")
    await bench.service.jobs.enqueue(into("shelf", *range(100)))
    assert looks == 1
    with pytest.raises(InvalidRequest, match="There is no collection 'other'"):
        await bench.service.jobs.enqueue([*into("shelf", 1, 2), *into("other", 3)])
    assert looks == 3
