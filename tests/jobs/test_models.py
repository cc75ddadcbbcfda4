"""Jobs and steps with much in common: what they share is read once, and each is what it would be alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidRequest, OjsterError, PayloadTooLarge
from ojster.core.json_objects import Members, stored_members
from ojster.jobs import models
from ojster.jobs.models import MOST_MODELS, Models, shape_of
from ojster.jobs.new_job import NewJob, read_job
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, request, shown
from tests.workflows.bench import WorkflowBench

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_000_000


def members_of(**body: Any) -> Members:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Members]:
    """The requests that were read as a whole."""
    seen: list[Members] = []

    def counted(members: Members, *args: Any, **more: Any) -> NewJob:
        seen.append(dict(members))
        return read_job(members, *args, **more)

    monkeypatch.setattr(models, "read_job", counted)
    return seen


def test_jobs_of_two_tenants_are_not_made_from_each_other(reads: list[Members]) -> None:
    known = Models(NOW, 1_000)
    jobs = [known.read(members_of(type="a", args=[]), tenant) for tenant in ("acme", "other", "acme")]
    assert [job.tenant for job in jobs] == ["acme", "other", "acme"]
    assert [b'"tenant_id":"other"' in job.envelope for job in jobs] == [False, True, False]
    assert len(reads) == 2


def test_a_job_made_from_a_model_is_refused_if_it_is_too_large() -> None:
    known = Models(NOW, 300)
    known.read(members_of(type="a", args=["x"]), "")
    with pytest.raises(PayloadTooLarge, match="at most 300"):
        known.read(members_of(type="a", args=["x" * 300]), "")


def test_a_job_without_arguments_is_refused_though_there_is_a_model() -> None:
    known = Models(NOW, 300)
    known.read(members_of(type="a", args=[]), "")
    with pytest.raises(InvalidRequest, match="args"):
        known.read(members_of(type="a"), "")


OF_STEP = {"workflow_id": "w", "workflow_step": "first [1]"}

STEPS: dict[str, list[dict[str, Any]]] = {
    "alike": [{"type": "a", "args": [number], **OF_STEP} for number in range(3)],
    "with options": [{"type": "a", "args": [number], "options": {"queue": "q"}, **OF_STEP} for number in range(3)],
    "with references": [{"type": "a", "args": [{"$ref": "params"}, number], **OF_STEP} for number in range(3)],
    "with other members": [{"type": "a", "args": [number], "priority": 3, **OF_STEP} for number in range(3)],
    "without one of the attributes": [{"type": "a", "args": [number], "workflow_id": "w"} for number in range(3)],
    "large": [{"type": "a", "args": ["x" * size], **OF_STEP} for size in (1, 1_000, 2)],
    "deep": [{"type": "a", "args": [msgspec.Raw(b"[" * depth + b"]" * depth)], **OF_STEP} for depth in (1, 511, 2)],
}


@pytest.mark.parametrize("what", STEPS)
def test_a_stored_request_of_a_step_gives_the_job_that_its_members_give(what: str) -> None:
    quick, slow = Models(NOW, 1_200), Models(NOW, 1_200)
    for step in STEPS[what]:
        stored = msgspec.json.encode(step)
        in_short = outcome_of(partial(quick.read_stored, msgspec.Raw(stored), "acme"))
        assert in_short == outcome_of(partial(slow.read, stored_members(stored), "acme"))


def test_models_of_steps_are_kept_for_other_times_unless_they_count_from_theirs(reads: list[Members]) -> None:
    kept: Any = {}
    for options, expected in ({}, 1), ({"queue": "q"}, 1), ({"delay_until": "+PT1M"}, 3):
        del reads[:]
        jobs = []
        for number in range(3):
            stored = msgspec.json.encode({"type": "a", "args": [number], "options": options, **OF_STEP})
            jobs.append(Models(NOW + number, 1_000, kept).read_stored(stored, ""))
        assert [b'"args":[%d]' % number in job.envelope for number, job in enumerate(jobs)] == [True] * 3
        assert len({job.scheduled_at for job in jobs}) == len(reads) == expected, options


def test_large_steps_and_those_that_refer_to_something_are_not_kept(reads: list[Members]) -> None:
    kept: Any = {}
    for args in (["x" * 3_000], [{"$lookup": {"collection": "c"}}]):
        for _ in range(2):
            Models(NOW, 10_000, kept).read_stored(msgspec.json.encode({"type": "a", "args": args, **OF_STEP}), "")
    assert (len(kept), len(reads)) == (0, 4)


def test_not_more_than_a_number_of_models_of_steps_is_kept() -> None:
    kept: Any = {}
    for number in range(2 * MOST_MODELS):
        Models(NOW, 1_000, kept).read_stored(msgspec.json.encode({"type": f"t{number}", "args": [], **OF_STEP}), "")
    assert 0 < len(kept) <= MOST_MODELS


def outcome_of(read: Callable[[], NewJob]) -> Any:
    """Return what a job says, but for its id and its model, or why it is refused."""
    try:
        job = read()
    except OjsterError as refusal:
        return str(refusal)
    id = job.id.encode()
    return msgspec.structs.replace(job, id="", envelope=job.envelope.replace(id, b""), model=None)


def test_not_more_than_a_number_of_models_is_kept(reads: list[Members]) -> None:
    known = Models(NOW, 1_000)
    for number in range(3 * MOST_MODELS):
        known.read(members_of(type=f"t{number}", args=[]), "")
    assert len(known._models) <= MOST_MODELS
    known.read(members_of(type=f"t{3 * MOST_MODELS - 1}", args=[1]), "")
    assert len(reads) == 3 * MOST_MODELS


def test_requests_with_members_that_say_more_about_the_job_have_no_shape() -> None:
    assert shape_of(members_of(type="a", args=[], on_success=[])) is None
    assert shape_of(members_of(type="a", args=[], priority=3)) is None
    assert shape_of(members_of(type="a", args=[], workflow_id="x")) != shape_of(members_of(type="a", args=[]))


async def test_the_steps_of_a_group_are_read_once_when_it_is_created_and_once_when_they_start(
    bench: Bench, flow: WorkflowBench, reads: list[Members]
) -> None:
    steps = [{"type": "mail.send", "args": [number], "options": {"queue": "mail"}} for number in range(20)]
    workflow = (await flow.create({"type": "group", "jobs": steps})).id
    jobs = sorted(map(shown, await bench.fetch("mail", count=20)), key=lambda job: job["args"])
    assert [job["args"] for job in jobs] == [[number] for number in range(20)]
    assert [job["workflow_step"] for job in jobs] == [str(number) for number in range(20)]
    assert {job["workflow_id"] for job in jobs} == {workflow}
    assert len({job["id"] for job in jobs}) == 20
    assert len(reads) <= 2


async def test_steps_with_references_are_made_from_a_model_with_the_values(
    bench: Bench, flow: WorkflowBench, reads: list[Members]
) -> None:
    steps = [{"type": "mail.send", "args": [number, {"$ref": "params.to"}]} for number in range(3)]
    await flow.create({"type": "group", "jobs": steps, "params": {"to": "ann@example.com"}})
    jobs = sorted(map(shown, await bench.fetch(count=3)), key=lambda job: job["args"])
    assert [job["args"] for job in jobs] == [[number, "ann@example.com"] for number in range(3)]
    assert len(reads) <= 4  # three when it was created, because references are looked at


async def test_a_step_does_not_inherit_what_became_of_the_one_that_was_read(bench: Bench, flow: WorkflowBench) -> None:
    """The first one shares a large value, and the second one does not."""
    large = "x" * 10_000
    steps = [{"type": "mail.send", "args": [{"$ref": f"params.{name}"}]} for name in ("large", "small", "large")]
    await flow.create({"type": "group", "jobs": steps, "params": {"large": large, "small": "y"}})
    assert [shown(job)["args"] for job in await bench.fetch(count=3)] == [[large], ["y"], [large]]

    def resolved(tx: Transaction, ids: Sequence[str]) -> list[int]:
        return [tx.execute("SELECT resolved_bytes FROM workflows WHERE id = :id", {"id": id})[0][0] for id in ids]

    (size,) = await bench.service.database.run_many(resolved, [flow.id])
    assert 10_000 < size < 12_000, "the value is counted once"


def test_a_model_is_the_job_as_it_was_read() -> None:
    known = Models(NOW, 1_000)
    first = known.read(members_of(type="a", args=[1], workflow_id="w", workflow_step="0"), "")
    first.envelope = first.envelope[:-1] + b',"supersedes":"x"}'
    first.node = 7
    second = known.read(members_of(type="a", args=[2], workflow_id="w", workflow_step="1"), "")
    assert second.node is None
    assert b"supersedes" not in second.envelope


async def test_jobs_of_one_call_keep_their_own_arguments(bench: Bench, reads: list[Members]) -> None:
    pushed = await bench.service.jobs.enqueue([request("t", number) for number in range(10)])
    assert [shown(one.job)["args"] for one in pushed] == [[number] for number in range(10)]
    assert len(reads) == 1
