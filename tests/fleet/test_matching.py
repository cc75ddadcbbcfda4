"""Requirements: only workers that provide the required capabilities claim a job, and it blocks no other job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojster import App, Worker
from ojster.core.durations import SECOND
from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.refusals import ResourcesRefused
from ojster.fleet.ml_resources import ResourceLimits, read_resources
from ojster.fleet.requirements import NOTHING, ProvidedFacts, read_provided
from ojster.fleet.workers import Heartbeat
from ojster.jobs.bulk import Action
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.job_json import from_json, to_json
from ojster.jobs.messages import Acknowledgement, FailureReport
from ojster.jobs.new_job import read_job
from ojster.queues import configuration
from ojster.queues.configuration import Configuration
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, Clock, empty
from tests.waiting import LONG_WAIT

pytestmark = pytest.mark.anyio

A100 = {"gpu": {"type": "nvidia-a100", "count": 8, "memory_gb": 80, "compute_capability": "8.0"}, "memory_gb": 1024}
T4 = {"gpu": {"type": "nvidia-t4", "memory_gb": 16, "compute_capability": "7.5"}, "memory_gb": 64}
CPU = {"cpu_cores": 16, "memory_gb": 32, "labels": {"region": "eu"}}


def members_of(type: str = "train", *, queue: str = "default", priority: int = 0, **ml: Any) -> dict[str, msgspec.Raw]:
    job = {"type": type, "args": [], "options": {"queue": queue, "priority": priority}}
    return read_members(msgspec.json.encode(job | {f"ext_ml_{name}": value for name, value in ml.items()}))


def meets(capabilities: Mapping[str, Any], **ml: Any) -> bool:
    needs = read_resources(members_of(**ml)).needs
    assert needs is not None
    return read_provided(capabilities).meets(needs)


@pytest.mark.parametrize(
    ("capabilities", "ml", "met"),
    [
        (A100, {"gpu_type": "nvidia-a100"}, True),
        (T4, {"gpu_type": "nvidia-a100"}, False),
        (CPU, {"gpu_count": 1}, False),
        (CPU, {"accelerator": "gpu"}, False),
        (CPU, {"accelerator": "cpu", "cpu_cores": 16}, True),
        (A100, {"accelerator": "cpu", "memory_gb": 1024}, True),
        (CPU, {"cpu_cores": 17}, False),
        (A100, {"gpu_count": 8}, True),
        (A100, {"gpu_count": 9}, False),
        (T4, {"gpu_memory_gb": 15.5}, True),
        (T4, {"gpu_memory_gb": 16.5}, False),
        (A100, {"gpu_compute_capability": "8.0"}, True),
        (T4, {"gpu_compute_capability": "8.0"}, False),
        ({"gpu": {"compute_capability": "10.0"}}, {"gpu_compute_capability": "9.0"}, True),
        (T4, {"gpu_count": 1, "precision": "fp8"}, False),
        (A100, {"gpu_count": 1, "precision": "bf16"}, True),
        (A100, {"gpu_count": 2, "gpu_interconnect": "nvlink"}, False),
        (A100, {"gpu_count": 1, "gpu_interconnect": "nvlink"}, True),
        ({"tpu": {"type": "v5e", "topology": "2x4"}}, {"tpu_type": "v5e", "tpu_topology": "2x4"}, True),
        ({"tpu": {"type": "v5e", "topology": "2x4"}}, {"tpu_topology": "4x4"}, False),
        (CPU, {"node_selector": {"region": "eu"}}, True),
        (CPU, {"node_selector": {"region": "us"}}, False),
        (CPU, {"node_selector": {"region": "eu", "zone": "a"}}, False),
        ({"runtimes": ["vllm"]}, {"runtime": "pytorch", "accelerator": "cpu"}, False),
        (CPU, {"runtime": "pytorch", "accelerator": "cpu"}, True),
        ({"models_loaded": [{"model_id": "m", "model_version": "2"}]}, {"model_id": "m", "model_version": "2"}, True),
        ({"models_loaded": [{"model_id": "m", "model_version": "1"}]}, {"model_id": "m", "model_version": "2"}, False),
        (
            {"models_available": [{"model_id": "m", "model_version": "2"}]},
            {"model_id": "m", "model_version": "2"},
            True,
        ),
        (CPU, {"model_id": "m", "model_version": "2", "model_registry_uri": "hf://org/m@2"}, True),
        (CPU, {"model_id": "m"}, True),
        ({"reservations": ["r1"]}, {"reservation_id": "r1"}, True),
        (CPU, {"reservation_id": "r1"}, False),
    ],
)
def test_a_worker_has_what_a_job_needs_or_not(capabilities: dict[str, Any], ml: dict[str, Any], met: bool) -> None:
    assert meets(capabilities, **ml) == met


LABELS = {"labels": {"tier": 3, "version": "1.10.0", "spot": True, "zone": "a"}}


@pytest.mark.parametrize(
    ("rule", "met"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "In", "values": ["b"]}, False),
        ({"key": "zone", "operator": "NotIn", "values": ["b"]}, True),
        ({"key": "rack", "operator": "NotIn", "values": ["b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "rack", "operator": "Exists"}, False),
        ({"key": "rack", "operator": "DoesNotExist"}, True),
        ({"key": "tier", "operator": "Gt", "values": [2]}, True),
        ({"key": "tier", "operator": "Gt", "values": [3]}, False),
        ({"key": "tier", "operator": "Gte", "values": ["3"]}, True),
        ({"key": "tier", "operator": "Lt", "values": [10]}, True),
        ({"key": "tier", "operator": "Lte", "values": [2.5]}, False),
        ({"key": "version", "operator": "Gte", "values": ["1.9.2"]}, True),
        ({"key": "zone", "operator": "Gte", "values": [1]}, False),
        ({"key": "rack", "operator": "Lt", "values": [1]}, False),
        ({"key": "spot", "operator": "In", "values": [True]}, True),
    ],
)
def test_rules_of_affinity_mean_what_they_say(rule: dict[str, Any], met: bool) -> None:
    for name in ("affinity", "node_affinity"):
        assert meets(LABELS, **{name: {"required": [rule]}}) == met
    assert meets(LABELS, accelerator="cpu", cpu_cores=1, affinity={"preferred": [rule]}) is False, "no cores are known"
    assert meets(LABELS, anti_affinity={"required": [rule]}) != met


@pytest.mark.parametrize(
    "ml",
    [
        {"gpu_count": 0, "gpu_type": "nvidia-t4"},
        {"gpu_count": -1},
        {"gpu_count": 1.5},
        {"gpu_count": True},
        {"accelerator": "abacus"},
        {"gpu_memory_gb": "80"},
        {"gpu_compute_capability": 8},
        {"precision": "fp7"},
        {"priority_class": "vip"},
        {"timeout_seconds": 0},
        {"model_checksum": "abc"},
        {"checkpoint_storage_uri": "s3://bucket/without-slash"},
        {"checkpoint_storage_uri": "http://elsewhere/"},
        {"checkpoint_storage_uri": "file:///tmp/../etc/"},
        {"node_selector": ["region"]},
        {"node_selector": {"region": {}}},
        {"affinity": {"required": [{"key": "a", "operator": "Near", "values": ["b"]}]}},
        {"affinity": {"required": [{"key": "a", "operator": "In", "values": []}]}},
        {"affinity": {"preferred": [{"key": "a", "operator": "Exists", "weight": 101}]}},
        {"node_selector": {f"label{number}": "x" for number in range(101)}},
    ],
)
def test_needs_that_make_no_sense_are_refused(ml: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"ext_ml_|conditions"):
        read_resources(members_of(**ml))


@pytest.mark.parametrize("name", [b"ext_ml_memory_gb", b"ext_agent_temperature"])
def test_numbers_that_nobody_can_read_are_refused(name: bytes) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_job(read_members(b'{"type":"a","args":[],"%b":1e999}' % name), 0, largest=1000)


@pytest.mark.parametrize(
    "capabilities",
    [{"gpu": "a100"}, {"labels": ["x"]}, {"memory_gb": [1]}, {"models_loaded": ["llama"]}, {"labels": {"": 1}}],
)
def test_capabilities_that_make_no_sense_are_refused(capabilities: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="capabilities"):
        read_provided(capabilities)
    with pytest.raises(InvalidRequest, match="capabilities"):
        Worker(App(), capabilities=capabilities)


@pytest.mark.parametrize(
    "capabilities",
    [
        {"gpu": {"count": -1}},
        {"gpu": {"memory_gb": "16GB"}},
        {"tpu": {"chip_count": -0.5}},
        {"cpu_cores": True},
        {"memory_gb": "nan"},
        {"storage_gb": "inf"},
        {"shm_size_gb": "much"},
    ],
)
def test_a_worker_does_not_start_with_amounts_that_no_job_can_require(capabilities: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"is '.*', which no job can require. Use a number from 0"):
        Worker(App(), capabilities=capabilities)


def test_what_is_not_of_the_extension_needs_nothing() -> None:
    assert read_resources(members_of(max_tokens=100, max_batch_size=3, something_new={"x": 1})).needs is None
    assert read_resources({"ext_mlx": msgspec.Raw(b"1")}).needs is None
    assert read_provided({"something_new": {"x": 1}}) == NOTHING


async def push(bench: Bench, *jobs: dict[str, msgspec.Raw]) -> list[str]:
    return [pushed.job.id for pushed in await bench.service.jobs.enqueue(jobs)]


async def fetch(
    bench: Bench, capabilities: Mapping[str, Any] = {}, count: int = 10, worker: str = "w", **more: Any
) -> list[str]:
    provided = read_provided(capabilities) if capabilities else None
    return [job.id for job in await fetch_jobs(bench, provided, count, worker, **more)]


async def fetch_jobs(bench: Bench, provided: ProvidedFacts | None, count: int, worker: str, **more: Any) -> list[Job]:
    return await bench.service.jobs.fetch(Claim(("default",), count, worker, provided=provided), **more)


async def test_jobs_go_only_to_workers_that_provide_what_they_need(bench: Bench) -> None:
    a100, t4, plain = await push(
        bench, members_of(gpu_type="nvidia-a100"), members_of(gpu_type="nvidia-t4"), members_of()
    )
    assert await fetch(bench, CPU) == [plain]
    assert await fetch(bench) == []
    assert await fetch(bench, T4) == [t4]
    assert await fetch(bench, A100) == [a100]


async def test_the_last_heartbeat_says_what_a_worker_provides(bench: Bench) -> None:
    (id,) = await push(bench, members_of(gpu_count=1))
    await bench.service.fleet.beat(Heartbeat("w", capabilities=CPU))
    assert await fetch(bench) == []
    await bench.service.fleet.beat(Heartbeat("w", capabilities=T4))
    assert await fetch(bench) == [id]


async def test_priority_and_age_decide_among_jobs_with_and_without_needs(bench: Bench) -> None:
    jobs = [members_of(), members_of(gpu_count=1), members_of(memory_gb=1), members_of(), members_of(priority=5)]
    ids = await push(bench, *jobs)
    assert await fetch(bench, A100, 2) == [ids[4], ids[0]]
    assert await fetch(bench, A100, 2) == ids[1:3]
    assert await fetch(bench, A100, 2) == [ids[3]]


async def test_a_gpu_is_given_to_one_job_at_a_time(bench: Bench) -> None:
    ids = await push(bench, *[members_of(gpu_count=4) for _ in range(3)], members_of(), members_of(gpu_count=1))
    assert await fetch(bench, A100) == [*ids[:2], ids[3]]
    assert await fetch(bench, A100) == []
    await bench.service.jobs.acknowledge([Acknowledgement(ids[0])])
    assert await fetch(bench, A100, 1) == [ids[2]]
    await bench.service.jobs.fail([FailureReport(ids[1], Failure("X", "no", retryable=False))])
    assert await fetch(bench, A100, 1) == [ids[4]]
    assert await fetch(bench, A100, worker="another") == []


async def test_a_job_that_needs_more_than_is_left_lets_others_pass(bench: Bench) -> None:
    large, small = await push(bench, members_of(gpu_count=9), members_of(gpu_count=8))
    assert await fetch(bench, A100, 1) == [small]
    assert (await bench.find(large)).state == "available"


async def test_a_waiting_worker_is_woken_by_the_jobs_that_it_can_take(bench: Bench) -> None:
    waiting = asyncio.create_task(fetch(bench, T4, worker="with", wait=LONG_WAIT))
    others = [asyncio.create_task(fetch(bench, {}, 1, f"without{number}", wait=LONG_WAIT)) for number in range(3)]
    await asyncio.sleep(0.05)
    (id,) = await push(bench, members_of(gpu_count=1))
    assert await waiting == [id]
    plain = await push(bench, members_of(), members_of(), members_of())
    assert sorted([id for other in others for id in await other]) == sorted(plain)


async def test_a_worker_that_waits_for_its_own_gpu_is_told_when_it_is_free(bench: Bench) -> None:
    first, second = await push(bench, members_of(gpu_count=1), members_of(gpu_count=1))
    assert await fetch(bench, T4, 1) == [first]
    waiting = asyncio.create_task(fetch(bench, T4, 1, wait=LONG_WAIT))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await bench.service.jobs.acknowledge([Acknowledgement(first)])
    assert await waiting == [second]


async def test_unreadable_requirements_do_not_block_other_jobs(bench: Bench) -> None:
    strange, plain = await push(bench, members_of(gpu_count=1), members_of())
    garbled = b'{"type":"train","args":[],"ext_ml_gpu_count":"many"}'
    change = "UPDATE payloads SET stored = :envelope WHERE seq = (SELECT seq FROM jobs WHERE id = :id)"

    def garble(tx: Transaction, requests: Sequence[None]) -> list[None]:
        tx.execute(change, {"envelope": garbled, "id": strange})
        return list(requests)

    await bench.run(garble, None)
    assert await fetch(bench, A100) == [plain]


async def test_infinite_nan_and_tiny_numbers_are_handled(bench: Bench) -> None:
    (tiny,) = await push(bench, members_of(memory_gb=5e-324))
    for capabilities in ({"memory_gb": "inf"}, {"memory_gb": "nan"}, {"labels": {"memory_gb": "1e999"}}):
        assert await fetch(bench, capabilities) == []
    assert await fetch(bench, {"memory_gb": 1e300}) == [tiny]


async def test_jobs_that_must_not_be_side_by_side_are_not(bench: Bench) -> None:
    apart = {"required": [{"key": "job_type", "operator": "In", "values": ["train"]}]}
    ids = await push(bench, *[members_of(anti_affinity=apart) for _ in range(2)], members_of("other"))
    assert await fetch(bench, CPU, worker="a") == [ids[0], ids[2]]
    assert await fetch(bench, CPU, worker="a") == []
    assert await fetch(bench, CPU, worker="b") == [ids[1]]


async def test_workers_get_first_what_prefers_them_and_nothing_waits_for_long_because_of_it(bench: Bench) -> None:
    liked = {"preferred": [{"key": "region", "operator": "In", "values": ["eu"], "weight": 80}]}
    first, second = await push(bench, members_of(), members_of(affinity=liked))
    assert await fetch(bench, CPU, 1) == [second]
    (third,) = await push(bench, members_of(affinity=liked))
    bench.clock.advance(61)
    (fourth,) = await push(bench, members_of(affinity=liked))
    assert await fetch(bench, CPU, 3) == [first, third, fourth]
    (elsewhere,) = await push(bench, members_of(affinity=liked))
    assert await fetch(bench, T4, 1) == [elsewhere], "a preference keeps nobody from running it"


async def test_a_model_that_is_loaded_decides_between_jobs_of_the_same_age(bench: Bench) -> None:
    _, loaded = await push(bench, members_of(model_id="other"), members_of(model_id="m"))
    assert await fetch(bench, CPU | {"models_loaded": [{"model_id": "m"}]}, 1) == [loaded]


async def test_reserved_goes_before_on_demand_before_spot_until_spot_is_escalated(bench: Bench) -> None:
    spot = members_of(
        priority_class="spot", priority_escalation=True, escalation_after_s=100, escalation_target_class="reserved"
    )
    ids = await push(
        bench, spot, members_of(priority_class="on-demand"), members_of(), members_of(priority_class="reserved")
    )
    assert await fetch(bench, count=2) == [ids[3], ids[1]]
    bench.clock.advance(101)
    late = await push(bench, members_of(priority_class="reserved"))
    assert await fetch(bench, count=3) == [ids[0], *late, ids[2]]


async def test_the_timeout_of_the_extension_goes_before_that_of_the_job(bench: Bench) -> None:
    members = members_of(timeout_seconds=100) | {"options": msgspec.Raw(b'{"timeout_ms": 1000}')}
    await push(bench, members)
    (job,) = await fetch_jobs(bench, None, 1, "w")
    assert job.timeout == 100 * SECOND
    assert from_json(to_json(job)).timeout == 100 * SECOND


async def test_a_queue_fills_in_what_jobs_leave_out_and_refuses_what_is_too_much(bench: Bench) -> None:
    rules = {
        "ml_defaults": {"ext_ml_gpu_count": 2, "ext_ml_timeout_seconds": 60},
        "ml_limits": ResourceLimits(
            max_gpu_count=4,
            max_memory_gb=100,
            allowed_gpu_types=("nvidia-a100",),
            allowed_checkpoint_prefixes=("s3://ours/",),
        ),
    }
    await bench.service.scope.do(configuration.configure, Configuration("default", rules=rules))
    (id,) = await push(bench, members_of())
    assert msgspec.json.decode(to_json(await bench.find(id)))["ext_ml_gpu_count"] == 2
    for ml in (
        {"gpu_count": 5},
        {"memory_gb": 101},
        {"gpu_type": "nvidia-t4"},
        {"checkpoint_storage_uri": "s3://theirs/"},
    ):
        with pytest.raises(ResourcesRefused, match="ext_ml_"):
            await push(bench, members_of(**ml))
    workflow = {"type": "chain", "steps": [{"type": "train", "args": []}, {"type": "train", "args": []}]}
    await bench.service.workflows.create(read_members(msgspec.json.encode(workflow)))
    (first, step) = await fetch_jobs(bench, read_provided(A100), 10, "w")
    assert (first.id, step.timeout) == (id, 60 * SECOND)
    await bench.service.jobs.acknowledge([Acknowledgement(step.id)])
    (step,) = await fetch_jobs(bench, read_provided(A100), 10, "w")
    assert step.needs == first.needs, "later steps are completed, too"
    await push(bench, members_of(queue="elsewhere", gpu_count=5))


@pytest.mark.parametrize(
    ("limits", "first"),
    [(ResourceLimits(max_total_gpus=5), [0, 1, 4]), (ResourceLimits(max_concurrent_gpu_jobs=1), [0, 4])],
)
async def test_the_gpus_of_a_queue_are_shared_by_all_workers(
    bench: Bench, limits: ResourceLimits, first: list[int]
) -> None:
    await bench.service.scope.do(configuration.configure, Configuration("default", rules={"ml_limits": limits}))
    ids = await push(bench, *[members_of(gpu_count=2) for _ in range(4)], members_of())
    assert await fetch(bench, A100) == [ids[place] for place in first]
    assert await fetch(bench, A100, worker="another") == []
    waiting = asyncio.create_task(fetch(bench, A100, worker="another", wait=LONG_WAIT))
    await asyncio.sleep(0.05)
    await bench.service.jobs.acknowledge([Acknowledgement(ids[0])])
    assert len(await waiting) == 1


async def test_limits_and_needs_hold_together(bench: Bench) -> None:
    limited = b'{"rate_limit": {"key": "k", "concurrency": 1}}'
    jobs = [members_of(gpu_count=1) | {"options": msgspec.Raw(limited)} for _ in range(2)]
    ids = await push(bench, *jobs, members_of() | {"options": msgspec.Raw(limited)})
    assert await fetch(bench) == [ids[2]]
    assert await fetch(bench, A100) == []
    await bench.service.jobs.acknowledge([Acknowledgement(ids[2])])
    assert await fetch(bench, A100) == [ids[0]]
    assert await fetch(bench, A100) == []


async def test_jobs_behind_many_kinds_of_requirements_are_claimed(bench: Bench) -> None:
    await push(bench, *[members_of(node_selector={"host": f"h{number}"}) for number in range(450)])
    for _ in range(5):
        (wanted,) = await push(bench, members_of(node_selector={"host": "mine"}))
        assert await fetch(bench, {"labels": {"host": "mine"}}) == [wanted]


async def test_servers_that_serve_one_worker_at_the_same_time_share_out_no_gpu_twice(shared_url: str) -> None:
    benches = [Bench(Service(open_database(shared_url)), Clock()) for _ in range(4)]
    for _ in range(5):
        ids = await push(benches[0], *[members_of(gpu_count=1) for _ in range(20)])
        found: list[str] = []
        for _ in range(10):
            for some in await asyncio.gather(*[fetch(bench, A100, 3) for bench in benches]):
                found += some
        assert len(found) == len({*found} & {*ids}) == 8
        await benches[0].service.jobs.acknowledge([Acknowledgement(id) for id in found])
        await benches[0].service.bulk.sweep(Action.CANCEL, JobFilter(type="*"))
    for bench in benches:
        await bench.service.close()


JOBS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "gpu_count": st.integers(1, 4),
            "memory_gb": st.integers(1, 40),
            "node_selector": st.fixed_dictionaries({"region": st.sampled_from(["eu", "us"])}),
        },
    ),
    max_size=12,
)
WORKERS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "gpu": st.fixed_dictionaries({"count": st.integers(1, 8)}),
            "memory_gb": st.integers(1, 60),
            "labels": st.fixed_dictionaries({"region": st.sampled_from(["eu", "us"])}),
        },
    ),
    min_size=1,
    max_size=4,
)


@given(jobs=JOBS, workers=WORKERS, count=st.integers(1, 6))
@settings(max_examples=40)
async def test_no_worker_is_given_more_than_it_has_and_nothing_waits_that_could_run(
    shared_url: str, jobs: list[dict[str, Any]], workers: list[dict[str, Any]], count: int
) -> None:
    if shared_url.startswith("sqlite"):
        shared_url = "sqlite:///:memory:"
    else:
        empty(shared_url)
    bench = Bench(Service(open_database(shared_url)), Clock())
    queue = "default"
    ids = await push(bench, *[members_of(queue=queue, **ml) for ml in jobs])
    wanted = dict(zip(ids, jobs, strict=True))
    held: list[list[dict[str, Any]]] = [[] for _ in workers]
    waiting = set(ids)

    def fits(number: int, ml: dict[str, Any]) -> bool:
        worker, others = workers[number], held[number]
        if "node_selector" in ml and ml["node_selector"] != worker.get("labels"):
            return False
        amounts = {"gpu_count": worker.get("gpu", {}).get("count", 0), "memory_gb": worker.get("memory_gb", 0)}
        return all(
            name not in ml or ml[name] + sum(other.get(name, 0) for other in others) <= amount
            for name, amount in amounts.items()
        )

    for _ in range(len(jobs) + 1):
        for number, capabilities in enumerate(workers):
            claim = Claim((queue,), count, f"{queue}-{number}", provided=read_provided(capabilities))
            got = await bench.service.jobs.fetch(claim)
            for job in got:
                assert fits(number, wanted[job.id])
                held[number].append(wanted[job.id])
                waiting.discard(job.id)
            if not got:
                assert not any(fits(number, wanted[id]) for id in waiting)
    await bench.service.close()
