"""Large values that many steps refer to: stored once, read whole, deleted with their workflow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.shared_value import SHARED_FROM, SharedValue
from ojster.schedules import retention
from tests.workflows.bench import WorkflowBench, chain, group, job, ref

pytestmark = pytest.mark.anyio

LARGE = 'ä€😀\\"' * 2_000
OTHER = ["y" * 100] * 200


async def stored(flow: WorkflowBench) -> tuple[int, int, int]:
    """Return the number of shared values, their bytes, and the bytes of all envelopes."""

    def count(tx: Any, requests: Any) -> list[Any]:
        ((values, size),) = tx.execute("SELECT count(*), coalesce(sum(length(value)), 0) FROM shared_values")
        ((envelopes,),) = tx.execute("SELECT coalesce(sum(length(stored)), 0) FROM payloads")
        return [(int(values), int(size), int(envelopes)) for _ in requests]

    return await flow.service.database.read(count, None)


async def resolved_bytes(flow: WorkflowBench) -> int:
    def look(tx: Any, requests: Any) -> list[int]:
        return [int(tx.execute("SELECT resolved_bytes FROM workflows")[0][0]) for _ in requests]

    return await flow.service.database.read(look, None)


async def test_a_large_parameter_is_stored_once_and_every_job_has_it(flow: WorkflowBench) -> None:
    steps = [job("work", number, ref("params.large"), {"inside": ref("params.large")}) for number in range(50)]
    await flow.create(group(*steps, params={"large": LARGE}))
    await flow.run_all_due()
    values, size, envelopes = await stored(flow)
    assert (values, size) == (1, len(msgspec.json.encode(LARGE)))
    assert envelopes < 50 * (size + 400)
    jobs = [one for _ in range(3) for one in await flow.fetch(count=50)]  # an answer has at most so many bytes
    assert sorted(one.args[0] for one in jobs) == list(range(50))
    for one in jobs:
        assert one.args[1:] == [LARGE, {"inside": LARGE}]
        assert (await flow.find(one)).args == one.args
    page = await flow.service.jobs.select()
    assert {one.args[1] for one in page.jobs} == {LARGE}


async def test_a_large_result_is_stored_once_beside_the_result(flow: WorkflowBench) -> None:
    steps = [job("work", number, ref("steps.make.result.text")) for number in range(20)]
    await flow.create(chain(job("make", id="make"), group(*steps)))
    (first,) = await flow.fetch()
    await flow.ack(first, msgspec.json.encode({"text": LARGE}))
    values, size, envelopes = await stored(flow)
    assert values == 1
    assert envelopes < size
    assert all(one.args[1] == LARGE for one in await flow.fetch(count=20))


async def test_the_largest_of_several_values_is_shared(flow: WorkflowBench) -> None:
    await flow.create(
        group(*[job("work", ref("params.b"), ref("params.a")) for _ in range(5)], params={"a": OTHER, "b": LARGE})
    )
    values, size, _ = await stored(flow)
    assert (values, size) == (1, len(msgspec.json.encode(LARGE)))
    assert all(one.args == [LARGE, OTHER] for one in await flow.fetch(count=5))


async def test_a_value_that_is_only_in_a_lookup_is_neither_shared_nor_counted(flow: WorkflowBench) -> None:
    wanted = {"$lookup": ref("params.wanted")}
    params = {"wanted": {"collection": "internal", "name_contains": "a" * 20_000}}
    await flow.create(group(*[job("work", number, wanted) for number in range(20)], params=params))
    await flow.run_all_due()
    jobs = await flow.fetch(count=20)
    assert all(one.args[1] == [] for one in jobs)
    assert (await stored(flow))[0] == 0
    assert 0 < await resolved_bytes(flow) < 20_000


async def test_small_values_stay_in_their_jobs(flow: WorkflowBench) -> None:
    await flow.create(group(*[job("work", ref("params.a")) for _ in range(5)], params={"a": "x" * (SHARED_FROM - 10)}))
    assert (await stored(flow))[0] == 0


async def test_two_workflows_do_not_share_a_value_and_each_goes_with_its_own(flow: WorkflowBench) -> None:
    await flow.create(group(*[job("work", ref("params.a")) for _ in range(3)], params={"a": LARGE}))
    await flow.work()
    flow.clock.advance(2 * 86_400)
    await flow.create(group(*[job("work", ref("params.a")) for _ in range(3)], params={"a": LARGE}))
    assert (await stored(flow))[0] == 2
    while (await flow.run(retention.forget, None))["rows"]:
        pass
    assert (await stored(flow))[0] == 1
    assert [one.args for one in await flow.fetch(count=9)] == [[LARGE]] * 3


@given(st.binary(max_size=30), st.binary(min_size=1, max_size=30), st.binary(max_size=30))
def test_an_envelope_is_what_is_left_of_it_with_the_value_put_back(before: bytes, value: bytes, after: bytes) -> None:
    taken = SharedValue(1, value).taken_from(before + value + after)
    assert taken is not None
    rest, place = taken
    assert rest[:place] + value + rest[place:] == before + value + after


def test_an_envelope_without_the_value_is_kept_as_it_is() -> None:
    assert SharedValue(1, b"abc").taken_from(b"ab") is None


def test_the_same_value_has_another_key_in_another_workflow() -> None:
    assert SharedValue(1, b"abc").digest != SharedValue(2, b"abc").digest
