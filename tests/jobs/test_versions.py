"""Job versions: a worker claims only the versions that it handles, and its parked fetch does not block others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster import App, Worker
from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import read_members
from ojster.fleet.workers import Heartbeat
from ojster.jobs.claim_policy import Claim
from ojster.jobs.versions import HandledVersions, parse_handled, version_number
from tests.conftest import Bench, Http
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio

NUMBERS = st.integers(0, 999_999)


def handled(type: str, versions: str) -> HandledVersions:
    found = parse_handled(type, versions)
    assert found is not None
    return found


@given(st.tuples(NUMBERS, NUMBERS, NUMBERS), st.tuples(NUMBERS, NUMBERS, NUMBERS))
def test_numbers_are_ordered_as_versions_are(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    first, second = (version_number(".".join(map(str, parts))) for parts in (one, other))
    assert first is not None
    assert second is not None
    assert (first < second) == (one < other)


@pytest.mark.parametrize(
    ("range", "inside", "outside"),
    [
        ("2.0", ["2.0", "2", "2.0.0"], ["1.9", "2.0.1", "2.1"]),
        (">=1.0 <3.0", ["1.0", "2.9.9"], ["0.9", "3.0"]),
        (">=2.0", ["2.0", "99"], ["1.9.9"]),
        (">1.0 <=2.0", ["1.0.1", "2.0"], ["1.0", "2.0.1"]),
        (">=1.0, <2.0", ["1.0", "1.9"], ["0.9", "2.0"]),
        (">=1.0,<2.0", ["1.0", "1.9"], ["0.9", "2.0"]),
        ("<1", ["0.9"], ["1"]),
    ],
)
def test_a_range_has_what_it_says(range: str, inside: list[str], outside: list[str]) -> None:
    found = handled("t", range)
    for version in inside + outside:
        number = version_number(version)
        assert number is not None
        assert (found.low <= number < found.high) == (version in inside), version
    assert parse_handled("t", found.versions) == found


@pytest.mark.parametrize("range", ["*", "", ">=0"])
def test_any_version_is_no_range(range: str) -> None:
    assert parse_handled("t", range) is None


@pytest.mark.parametrize(
    "range", ["latest", "1.x", ">=", "~1.0", ">= 1.0", "1.0.0.0", "99999999", "1.0, 2.0", ">=2 <2"]
)
def test_what_is_no_range_is_refused(range: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_handled("t", range)


async def push(bench: Bench, *versions: Any, type: str = "invoice") -> None:
    for version in versions:
        more = "" if version is None else f', "version": "{version}"'
        members = read_members(f'{{"type": "{type}", "args": []{more}}}'.encode())
        await bench.service.jobs.enqueue([members])


async def versions_for(bench: Bench, worker: str, count: int = 10, **more: Any) -> list[int | None]:
    jobs = await bench.service.jobs.fetch(Claim(("default",), count, worker), **more)
    return [job.version and job.version // 1_000_000_000_000 for job in jobs]


async def test_a_worker_gets_what_it_handles_and_what_has_no_version(bench: Bench) -> None:
    await bench.service.fleet.beat(Heartbeat("old", handlers=(handled("invoice", "<2.0"),)))
    await bench.service.fleet.beat(Heartbeat("new", handlers=(handled("invoice", ">=2.0 <3.0"),)))
    await push(bench, "2.0", "1.0", None, "3.0", "1.5", "2.1")
    assert await versions_for(bench, "old") == [1, None, 1]
    assert await versions_for(bench, "new") == [2, 2]
    assert await versions_for(bench, "old") == await versions_for(bench, "new") == []
    await push(bench, "9.0", type="other")
    assert await versions_for(bench, "old") == [9]
    assert await versions_for(bench, "nobody knows") == [3]


@pytest.mark.parametrize(
    ("ranges", "taken"), [(["1.0", "2.0"], [1, 2]), (["2.0", "<1.5"], [1, 2]), (["1.0", "*"], [1, 2, 3])]
)
async def test_a_worker_may_have_several_handlers_for_a_type(
    http: Http, bench: Bench, ranges: list[str], taken: list[int]
) -> None:
    handlers = [{"type": "invoice", "versions": versions} for versions in ranges]
    await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "queues": ["default"], "handlers": handlers})
    await push(bench, "1.0", "2.0", "3.0")
    unserved = (await http("GET", "/ojs/v1/admin/unrunnable")).json()["unrunnable"]
    assert [item["jobs"] for item in unserved] == [3 - len(taken)] * (len(taken) < 3)
    assert await versions_for(bench, "w") == taken


async def test_limits_hold_for_versions_too(bench: Bench) -> None:
    await bench.service.fleet.beat(Heartbeat("old", handlers=(handled("invoice", "<2.0"),)))
    for version in ("2.0", "1.0"):
        limit = '"options": {"rate_limit": {"key": "k", "concurrency": 5}}'
        body = f'{{"type": "invoice", "args": [], "version": "{version}", {limit}}}'
        await bench.service.jobs.enqueue([read_members(body.encode())])
    assert await versions_for(bench, "old") == [1]


async def test_what_a_worker_says_of_its_handlers_holds_at_once(bench: Bench) -> None:
    await bench.service.fleet.beat(Heartbeat("w", handlers=(handled("invoice", "<2.0"),)))
    await push(bench, "2.0")
    assert await versions_for(bench, "w") == []
    waiting = asyncio.create_task(versions_for(bench, "w", wait=LONG_WAIT))
    await asyncio.sleep(0.05)
    await bench.service.fleet.beat(Heartbeat("w", queues=("default",), handlers=(handled("invoice", "<3.0"),)))
    assert await asyncio.wait_for(waiting, PATIENCE) == [2]


async def test_a_parked_fetch_for_other_versions_blocks_no_other_fetch(bench: Bench) -> None:
    for worker, versions in (("old-1", "<2.0"), ("old-2", "<2.0"), ("new", ">=2.0")):
        await bench.service.fleet.beat(Heartbeat(worker, handlers=(handled("invoice", versions),)))
    waiting = {}
    for worker in ("old-1", "old-2", "new", "any"):
        waiting[worker] = asyncio.create_task(versions_for(bench, worker, 1, wait=LONG_WAIT))
        await asyncio.sleep(0.02)
    await push(bench, "2.0")
    done, _ = await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
    await push(bench, "2.0")
    done, _ = await asyncio.wait([waiting["new"], waiting["any"]], timeout=PATIENCE)
    assert {task.result()[0] for task in done} == {2}
    assert not waiting["old-1"].done()
    await push(bench, "1.0", "1.0")
    assert [await asyncio.wait_for(waiting[worker], PATIENCE) for worker in ("old-1", "old-2")] == [[1], [1]]


async def test_handlers_say_in_python_which_versions_they_understand(shared_url: str) -> None:
    app, seen = App(shared_url), list[str]()

    @app.job("invoice", versions=">=2.0", version="2.1")
    def invoice(name: str) -> None:
        seen.append(name)

    await invoice.using(version="1.0").aenqueue("old")
    await invoice.aenqueue("new")
    await invoice.using(version=None).aenqueue("none")
    await Worker(app).run(until_empty=True)
    assert sorted(seen) == ["new", "none"]
    await app.aclose()
