"""Worker rules: operators disable a worker, allow or deny its job types, and override its capabilities."""

from __future__ import annotations

import asyncio
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.errors import Conflict, InvalidRequest, NotFound
from ojster.core.json_objects import read_members
from ojster.fleet.job_types import Types
from ojster.fleet.worker_rule import read_rule_members
from ojster.fleet.workers import Heartbeat
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import Caller
from tests.conftest import Bench
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = pytest.mark.anyio


async def beat(bench: Bench, worker: str, *jobs: str, **labels: Any) -> Any:
    capabilities = {"labels": labels} if labels else {}
    return await bench.service.fleet.beat(Heartbeat(worker, jobs, queues=("default",), capabilities=capabilities))


async def push(bench: Bench, type: str = "t", **more: Any) -> str:
    body = {"type": type, "args": [], **more}
    (pushed,) = await bench.service.jobs.enqueue([read_members(msgspec.json.encode(body))])
    return pushed.job.id


async def types_for(bench: Bench, worker: str) -> list[str]:
    return sorted(job.type for job in await bench.fetch(worker_id=worker, count=10))


async def test_s79_a_list_of_what_is_denied_leaves_it_out(bench: Bench) -> None:
    for type in ("mail.send", "mail.bulk.send", "mailing", "report"):
        await push(bench, type)
    await bench.service.fleet.change_rule("w", {"denied": ("mail.*", "report")})
    assert await types_for(bench, "w") == ["mailing"]
    assert await types_for(bench, "v") == ["mail.bulk.send", "mail.send", "report"]


async def test_s79_a_list_of_what_is_allowed_leaves_out_all_else(bench: Bench) -> None:
    for type in ("mail.send", "mailing", "report"):
        await push(bench, type)
    await bench.service.fleet.change_rule("w", {"allowed": ("mail.*",)})
    assert await types_for(bench, "w") == ["mail.send"]
    await bench.service.fleet.change_rule("w", {"allowed": ()})
    assert await types_for(bench, "w") == []
    await bench.service.fleet.change_rule("w", {"allowed": None})
    assert await types_for(bench, "w") == ["mailing", "report"]


async def test_s79_what_is_in_both_lists_is_allowed(bench: Bench) -> None:
    await push(bench, "mail.send")
    await bench.service.fleet.change_rule("w", {"allowed": ("mail.send",), "denied": ("mail.*",)})
    assert await types_for(bench, "w") == ["mail.send"]


async def test_denied_types_that_an_allow_list_makes_idle_are_refused(bench: Bench) -> None:
    fleet = bench.service.fleet
    before = await fleet.change_rule("w", {"allowed": ("mail.*",)})
    with pytest.raises(InvalidRequest, match=r"worker w allows mail\.\*; beside an allow list") as refused:
        await fleet.change_rule("w", {"denied": ("mail.bulk",)})
    assert refused.value.details["field"] == "denied_types"
    assert await fleet.rules() == [before], "nothing of the change is saved"
    assert (await fleet.change_rule("w", {"denied": (), "reason": "r"})).reason == "r"
    assert (await fleet.change_rule("w", {"allowed": None, "denied": ("mail.bulk",)})).denied == ("mail.bulk",)


async def test_lists_hold_for_jobs_with_needs_and_with_limits_too(bench: Bench) -> None:
    await push(bench, "a", requires={"ssd": True})
    await push(bench, "b", options={"rate_limit": {"key": "k", "concurrency": 5}})
    await push(bench, "c")
    await beat(bench, "w", ssd=True)
    await bench.service.fleet.change_rule("w", {"denied": ("a", "b")})
    assert await types_for(bench, "w") == ["c"]
    await bench.service.fleet.change_rule("w", {"denied": ()})
    assert await types_for(bench, "w") == ["a", "b"]


async def test_s92_a_worker_that_is_disabled_gives_back_what_it_holds(bench: Bench) -> None:
    for _ in range(2):
        await push(bench)
    await beat(bench, "w")
    done, held = await bench.fetch(worker_id="w", count=2)
    await bench.ack(done)
    rule = await bench.service.fleet.change_rule("w", {"enabled": False, "reason": "its disk is full"})
    assert (rule.enabled, rule.reason) == (False, "its disk is full")
    back = await bench.find(held)
    assert (back.state, back.worker_id, back.attempt) == ("available", None, 0)
    assert (await bench.find(done)).state == "completed"
    pulse = await beat(bench, "w", held.id)
    assert (pulse.directive, pulse.lost) == ("quiet", [held.id])
    (refusal,) = await bench.service.jobs.acknowledge([Acknowledgement(held.id, None, "w", held.attempt)])
    assert isinstance(refusal, Conflict)
    assert await bench.fetch(worker_id="w") == []
    assert (await bench.fetch_one(worker_id="v")).id == held.id
    assert "worker.disabled" in await bench.events()


async def test_a_worker_that_is_enabled_again_gets_jobs(bench: Bench) -> None:
    await push(bench)
    await beat(bench, "w")
    await bench.service.fleet.change_rule("w", {"enabled": False})
    assert [worker.enabled for worker in await bench.service.fleet.all()] == [False]
    await bench.service.fleet.change_rule("w", {"enabled": True})
    assert (await beat(bench, "w")).directive == "running"
    assert len(await bench.fetch(worker_id="w")) == 1


async def test_a_worker_may_be_disabled_before_it_is_there(bench: Bench) -> None:
    await push(bench)
    await bench.service.fleet.change_rule("w", {"enabled": False})
    assert (await beat(bench, "w")).directive == "quiet"
    assert await bench.fetch(worker_id="w") == []
    await bench.service.fleet.forget_rule("w")
    assert len(await bench.fetch(worker_id="w")) == 1
    with pytest.raises(NotFound):
        await bench.service.fleet.forget_rule("w")


async def test_a_disabled_worker_still_receives_the_terminate_directive(bench: Bench) -> None:
    await beat(bench, "w")
    await bench.service.fleet.direct("w", "terminate")
    await bench.service.fleet.change_rule("w", {"enabled": False})
    assert (await beat(bench, "w")).directive == "terminate"


async def test_s94_a_rule_overrides_the_capabilities_that_a_worker_reports(bench: Bench) -> None:
    id = await push(bench, requires={"memory_mb": 4096, "ssd": True})
    await beat(bench, "w", memory_mb=8192)
    assert await bench.fetch(worker_id="w") == []
    await bench.service.fleet.change_rule("w", {"provides": {"ssd": "true", "memory_mb": "2048"}})
    assert await bench.fetch(worker_id="w") == []
    await bench.service.fleet.change_rule("w", {"provides": {"memory_mb": "4096"}})
    (worker,) = await bench.service.fleet.all()
    assert worker.provides == {"accelerator": ["cpu"], "memory_mb": ["4096"], "ssd": ["true"]}
    await beat(bench, "w", memory_mb=1)
    assert (await bench.fetch_one(worker_id="w")).id == id


async def test_a_rule_removes_a_capability_that_a_worker_reports(bench: Bench) -> None:
    await push(bench, requires={"ssd": True})
    await beat(bench, "w", ssd=True)
    await bench.service.fleet.change_rule("w", {"provides": {"ssd": None}})
    assert await bench.fetch(worker_id="w") == []
    (found,) = await bench.service.fleet.unrunnable()
    assert found.reasons == ["ssd: true is required; the worker has none"]


async def test_a_job_that_no_worker_may_run_is_told_with_the_reason(bench: Bench) -> None:
    first = await push(bench, "a")
    await push(bench, "b", version="2.0")
    assert [(one.queue, one.jobs, one.type, one.reasons) for one in await bench.service.fleet.unrunnable()] == [
        ("default", 2, None, ["no worker takes jobs of this queue"])
    ]
    await beat(bench, "w")
    assert await bench.service.fleet.unrunnable() == []
    await bench.service.fleet.change_rule("w", {"denied": ("a",)})
    (found,) = await bench.service.fleet.unrunnable()
    assert (found.type, found.job_id, found.reasons) == ("a", first, ["a worker rule excludes the type 'a'"])
    await bench.service.fleet.change_rule("w", {"enabled": False})
    (found,) = await bench.service.fleet.unrunnable()
    assert (found.type, found.jobs) == (None, 2)


async def test_a_worker_rule_applies_to_one_tenant(bench: Bench) -> None:
    acme = bench.service.as_(Caller("acme"))
    await acme.fleet.change_rule("w", {"enabled": False})
    assert [rule.id for rule in await acme.fleet.rules()] == ["w"]
    await push(bench)
    assert len(await bench.fetch(worker_id="w")) == 1


async def test_a_rule_change_wakes_a_parked_fetch(bench: Bench) -> None:
    await beat(bench, "w")
    await push(bench)
    await bench.service.fleet.change_rule("w", {"denied": ("t",)})
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 1, "w"), wait=LONG_WAIT))
    await asyncio.sleep(0)
    await bench.service.fleet.change_rule("w", {"denied": ()})
    assert len(await asyncio.wait_for(waiting, PATIENCE)) == 1


_NAMES = st.sampled_from(["a", "ab", "ab.c", "b", "b.c"])
_PATTERNS = st.lists(st.sampled_from(["a", "a*", "ab.*", "b*", "b.c", "*"]), max_size=4).map(tuple)


@given(allowed=st.none() | _PATTERNS, denied=_PATTERNS, names=st.lists(_NAMES, min_size=1, max_size=5))
def test_the_statement_leaves_out_what_the_rule_does_not_accept(
    allowed: tuple[str, ...] | None, denied: tuple[str, ...], names: list[str]
) -> None:
    types = Types(allowed, denied)
    condition, parameters = types.condition("column1")
    rows = ", ".join(f"('{name}')" for name in names)
    query = f"SELECT column1 FROM (VALUES {rows}) WHERE 1 = 1{condition}"
    found = apsw.Connection(":memory:").execute(query, parameters)
    assert [name for (name,) in found] == [name for name in names if types.accepts(name)]


@pytest.mark.parametrize(
    "members",
    [
        {"denied_types": ["a b"]},
        {"denied_types": ["*a"]},
        {"denied_types": ["a"] * 101},
        {"allowed_types": [""]},
        {"provides": {"": 1}},
        {"provides": {"a": "x" * 300}},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_rule_members(members)
