"""Files of jobs: artifacts that reactions collect, and results that are too large to be stored inline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from ojster import App, JobContext, chain, group
from ojster.client.file_transfer import content_of, restore
from ojster.collections.items import NewItem, Where
from ojster.core.errors import Conflict, NotFound, PayloadTooLarge
from ojster.core.job import Job
from ojster.files.file import NewFile, reference_to
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import Caller
from ojster.reactions import collect
from ojster.service import Service
from tests.conftest import Bench, Clock, shown
from tests.serving import serving
from tests.waiting import PATIENCE
from tests.worker.test_worker import working
from tests.workflows.bench import WorkflowBench

pytestmark = pytest.mark.anyio

LARGE = msgspec.json.encode(["x" * 70_000])
TOO_LARGE = ["y" * 1_200_000]


@pytest.fixture
def store_url(tmp_path: Any) -> str:
    return str(tmp_path / "files")


@pytest.fixture
def flow(service: Service, clock: Clock) -> WorkflowBench:
    return WorkflowBench(service, clock)


async def attach(service: Service, job: Job, name: str, content: bytes, **more: Any) -> None:
    """Add an artifact to a running job."""
    file = await service.files.keep(content, NewFile(job_id=job.id))
    data = msgspec.json.encode(more.pop("data", None))
    await service.collections.add(Where(job_id=job.id), NewItem(name, data, file_id=file.id, **more))


async def content_in(service: Service, where: Where, name: str) -> bytes:
    (item,) = [item for item in await service.collections.items(where) if item.name == name]
    assert item.file is not None
    return await content_of(service, item.file)


# Results


async def test_a_large_result_becomes_a_file_and_the_job_refers_to_it(bench: Bench) -> None:
    job = await bench.push()
    await bench.ack(await bench.fetch_one(), LARGE)
    result = shown(await bench.find(job))["result"]
    assert result["result_size_bytes"] == len(LARGE)
    assert result["result_content_type"] == "application/json"
    file_id = result["result_ref"].split("/")[-2]
    assert await content_of(bench.service, (await bench.service.files.find(file_id)).ref) == LARGE
    with pytest.raises(Conflict, match="refers"):
        await bench.service.files.delete(file_id)


async def test_the_file_of_a_result_is_kept_as_long_as_its_job(bench: Bench) -> None:
    job = await bench.push()
    await bench.ack(await bench.fetch_one(), LARGE)
    bench.clock.advance(86_000)
    assert (await bench.service.maintenance.prune())["files"] == 0
    bench.clock.advance(1_000)
    assert await bench.service.maintenance.prune() == {"jobs": 1, "workflows": 0, "files": 0}
    with pytest.raises(NotFound):
        await bench.find(job)
    bench.clock.advance(86_401)
    assert (await bench.service.maintenance.prune())["files"] == 1, "who has just seen it may still want it"
    assert await bench.service.files.select() == []


@pytest.mark.parametrize("ttl", [0, 60])
async def test_the_file_of_a_result_goes_with_it_where_it_is_deleted_before_its_job(bench: Bench, ttl: int) -> None:
    job = await bench.push(result_ttl=ttl)
    await bench.ack(await bench.fetch_one(), LARGE)
    bench.clock.advance(61)
    await bench.service.maintenance.prune()
    assert (await bench.find(job)).result is None
    assert await bench.service.collections.items(Where(job_id=job.id)) == []
    (file,) = await bench.service.files.select()
    await bench.service.files.delete(file.id)


async def test_a_result_that_is_deleted_leaves_the_artifacts_of_its_job(bench: Bench) -> None:
    job = await bench.push(result_ttl=60)
    claimed = await bench.fetch_one()
    await attach(bench.service, claimed, "kept", LARGE)
    await bench.ack(claimed, LARGE)
    bench.clock.advance(61)
    await bench.service.maintenance.prune()
    assert await content_in(bench.service, Where(job_id=job.id), "kept") == LARGE


async def test_a_result_of_64_kib_stays_in_its_job(bench: Bench) -> None:
    job = await bench.push()
    await bench.ack(await bench.fetch_one(), b'"%b"' % (b"x" * 65_534))
    assert len(shown(await bench.find(job))["result"]) == 65_534
    assert await bench.service.files.select() == []


async def test_the_results_of_several_jobs_come_in_one_call(bench: Bench) -> None:
    for _ in range(3):
        await bench.push()
    jobs = await bench.fetch(count=3)
    results = [LARGE, b"1", LARGE]
    acks = [Acknowledgement(job.id, result) for job, result in zip(jobs, results, strict=True)]
    done = await bench.service.jobs.acknowledge(acks)
    assert [isinstance(one, Job) and one.state for one in done] == ["completed"] * 3
    (file,) = await bench.service.files.select()
    assert file.size == len(LARGE)


async def test_results_beyond_what_a_server_accepts_are_refused_as_before(bench: Bench) -> None:
    await bench.push()
    with pytest.raises(PayloadTooLarge):
        await bench.ack(await bench.fetch_one(), msgspec.json.encode(TOO_LARGE))


async def test_a_result_that_is_said_to_be_a_file_must_be_one_of_the_workspace(bench: Bench) -> None:
    acme = bench.service.as_(Caller("acme"))
    theirs = await acme.files.keep(b"secret", NewFile())
    job = await bench.push()
    await bench.fetch_one()
    (refusal,) = await bench.service.jobs.acknowledge([Acknowledgement(job.id, result_file=theirs.id)])
    assert isinstance(refusal, NotFound)
    assert (await bench.find(job)).state == "active"


async def test_a_result_that_steps_look_into_stays_at_hand(flow: WorkflowBench) -> None:
    steps = [{"id": "list", "type": "list", "args": []}, {"type": "take", "args": [{"$ref": "steps.list.result.0"}]}]
    await flow.create({"type": "chain", "steps": steps})
    await flow.ack((await flow.take())[0], LARGE)
    await flow.take()
    assert flow.arguments["take"] == msgspec.json.decode(LARGE)


async def test_a_map_is_made_of_a_large_list(flow: WorkflowBench) -> None:
    doing = {"type": "do", "args": [{"$ref": "item"}]}
    steps = [
        {"id": "list", "type": "list", "args": []},
        {"type": "map", "over": {"$ref": "steps.list.result"}, "do": doing},
    ]
    await flow.create({"type": "chain", "steps": steps})
    await flow.ack((await flow.take())[0], LARGE)
    await flow.take()
    assert flow.arguments["do"] == msgspec.json.decode(LARGE)


async def test_a_reaction_that_wants_the_result_has_it(bench: Bench) -> None:
    action = {"action": "enqueue", "job": {"type": "next", "args": [{"$ref": "job.result.0"}]}}
    body = {"type": "t", "args": [], "event_reactions": {"on_success": [action]}}
    await bench.service.jobs.enqueue([{name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}])
    await bench.ack(await bench.fetch_one(), LARGE)
    assert (await bench.fetch_one()).args == msgspec.json.decode(LARGE)


async def test_other_clients_get_the_reference_of_the_specification(flow: WorkflowBench) -> None:
    await flow.create({"type": "chain", "steps": [{"type": "a", "args": []}, {"type": "b", "args": []}]})
    await flow.ack((await flow.take())[0], LARGE)
    await flow.take()
    (given,) = flow.given["b"]
    assert set(given) == {"result_ref", "result_size_bytes", "result_content_type", "result_sha256"}


async def test_a_result_that_is_a_file_is_refused_where_something_looks_into_it(flow: WorkflowBench) -> None:
    steps = [{"id": "a", "type": "a", "args": []}, {"type": "b", "args": [{"$ref": "steps.a.result.n"}]}]
    await flow.create({"type": "chain", "steps": steps})
    (job,) = await flow.take()
    file = await flow.service.files.keep(b'{"n":1}', NewFile(job_id=job.id))
    (refusal,) = await flow.service.jobs.acknowledge([Acknowledgement(job.id, result_file=file.id)])
    assert isinstance(refusal, PayloadTooLarge)
    await flow.ack(job, b'{"n":1}')


async def test_a_result_that_is_collected_is_no_file(bench: Bench) -> None:
    await bench.service.collections.create("c")
    body = {"type": "t", "args": [], "event_reactions": {"on_success": [collect("x", collection="c")]}}
    await bench.service.jobs.enqueue([{name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}])
    job = await bench.ack(await bench.fetch_one(), LARGE)
    assert shown(await bench.find(job))["result"] == msgspec.json.decode(LARGE)
    assert await bench.service.collections.items(Where("c")) == [], "it is too large for an item, which is noted"


async def test_what_somebody_appends_may_look_into_a_large_result(flow: WorkflowBench) -> None:
    await flow.create({"type": "chain", "steps": [{"id": "a", "type": "a", "args": []}]})
    (job,) = await flow.take()
    step = msgspec.json.encode({"type": "b", "args": [{"$ref": "steps.a.result.0"}]})
    await flow.service.jobs.acknowledge([Acknowledgement(job.id, LARGE, append=(step,))])
    await flow.take()
    assert flow.arguments["b"] == msgspec.json.decode(LARGE)


async def test_a_job_opens_no_file_of_another_workspace(service: Service) -> None:
    """Even if its worker serves all workspaces and its arguments contain the reference."""
    acme, beta = service.as_(Caller("acme")), service.as_(Caller("beta"))
    theirs = await acme.files.keep(b'"secret"', NewFile(content_type="application/json"))
    own = await beta.files.keep(b'"mine"', NewFile(content_type="application/json"))
    (pushed,) = await beta.jobs.enqueue([{"type": msgspec.Raw(b'"t"'), "args": msgspec.Raw(b"[]")}])
    for file, opened in ((theirs, None), (own, "mine")):
        reference = msgspec.json.decode(reference_to(file.ref))
        found = await restore(service, {"x": [reference]}, pushed.job.id)
        assert found == {"x": [opened or reference]}


# Artifacts


async def test_artifacts_of_a_failed_attempt_are_not_collected(bench: Bench) -> None:
    await bench.service.collections.create("c")
    reactions = {"on_success": [collect("{artifact.name}", collection="c", artifacts={})]}
    body = {"type": "t", "args": [], "event_reactions": reactions, "options": {"retry": {"jitter": False}}}
    await bench.service.jobs.enqueue([{name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}])
    job = await bench.fetch_one()
    await attach(bench.service, job, "first", b"1")
    await bench.fail(job)
    await bench.run_due(after=60)
    job = await bench.fetch_one()
    await attach(bench.service, job, "second", b"2")
    await bench.ack(job)
    assert [item.name for item in await bench.service.collections.items(Where("c"))] == ["second"]


@pytest.mark.parametrize(("saves", "kept"), [(False, ["new"]), (True, ["old", "new"])])
async def test_a_dead_letter_runs_again_without_artifacts_unless_it_has_a_checkpoint(
    bench: Bench, saves: bool, kept: list[str]
) -> None:
    job = await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    running = await bench.fetch_one()
    await attach(bench.service, running, "old", b"of the failed attempt")
    if saves:
        await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b"1"))
    await bench.fail(running)
    await bench.service.jobs.retry_dead(job.id)
    await attach(bench.service, await bench.fetch_one(), "new", b"of the next one")
    assert [item.name for item in await bench.service.collections.items(Where(job_id=job.id))] == kept


async def test_an_artifact_has_the_name_and_type_that_it_was_given_although_the_content_is_known(bench: Bench) -> None:
    await bench.service.collections.create("c")
    file = await bench.service.files.keep(b"same", NewFile(filename="a.txt", content_type="text/plain"))
    item = NewItem("b", b"null", file_id=file.id, filename="b.html", content_type="text/html")
    added = await bench.service.collections.add(Where("c"), item)
    assert added.file is not None
    assert (added.file.filename, added.file.content_type) == ("b.html", "text/html")


async def test_s56_artifacts_that_match_take_the_place_of_what_has_their_name(bench: Bench) -> None:
    service = bench.service
    await service.collections.create("releases")
    await service.collections.add(Where("releases"), NewItem("app-1.0", b'{"old":true}'))
    await service.collections.add(Where("releases"), NewItem("other", b"null"))
    action = collect(
        "{artifact.data.package}-{artifact.data.version}",
        collection="releases",
        data={"of": {"$ref": "job.id"}, "called": {"$ref": "artifact.name"}},
        artifacts={"category": "tarball"},
    )
    body = {"type": "build", "args": [], "event_reactions": {"on_success": [action]}}
    await service.jobs.enqueue([{name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}])
    job = await bench.fetch_one()
    await attach(service, job, "app.tar", b"1", category="tarball", data={"package": "app", "version": "1.0"})
    await attach(service, job, "lib.tar", b"2", category="tarball", data={"package": "lib", "version": "2"})
    await attach(service, job, "log", b"3", category="log")
    await bench.ack(job)
    items = {item.name: item for item in await service.collections.items(Where("releases"))}
    assert set(items) == {"app-1.0", "lib-2", "other"}
    assert (items["app-1.0"].kind, items["app-1.0"].category) == ("artifact", "tarball")
    assert msgspec.json.decode(items["app-1.0"].data) == {"of": job.id, "called": "app.tar"}
    assert await content_in(service, Where("releases"), "app-1.0") == b"1"
    assert await content_in(service, Where("releases"), "lib-2") == b"2"
    history = await service.collections.items(Where("releases"), history=True)
    assert [item.kind for item in history if item.name == "app-1.0"] == ["data", "artifact"]


async def test_s57_artifacts_that_are_not_there_are_noted_and_the_job_still_succeeds(bench: Bench) -> None:
    await bench.service.collections.create("releases")
    action = collect("{artifact.data.nothing}", collection="releases", artifacts={})
    body = {"type": "build", "args": [], "event_reactions": {"on_success": [action]}}
    for has_some in (False, True):
        await bench.service.jobs.enqueue(
            [{name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}]
        )
        job = await bench.fetch_one()
        if has_some:
            await attach(bench.service, job, "log", b"1")
        assert (await bench.ack(job)).state == "completed"
        assert "job.reaction_failed" in [entry.type for entry in await bench.service.jobs.history(job.id)]
    assert await bench.service.collections.items(Where("releases")) == []


async def test_s73_an_artifact_is_promised_provided_and_found(flow: WorkflowBench) -> None:
    provided = {"name": "build-x", "artifact": {"category": "tarball"}}
    graph = {
        "type": "graph",
        "steps": [
            {"id": "build", "type": "build", "args": [], "provides": [provided]},
            {"id": "check", "type": "check", "args": [{"$lookup": "internal/build-x"}]},
        ],
    }
    await flow.create(graph)
    (promised,) = await flow.service.collections.items(Where(workflow_id=flow.id))
    assert promised.kind == "promise"
    (job,) = await flow.take(2)
    await attach(flow.service, job, "x.tar", b"tar", category="tarball", data={"v": 1})
    await flow.ack(job)
    (item,) = await flow.service.collections.items(Where(workflow_id=flow.id))
    assert (item.name, item.kind, bytes(item.data)) == ("build-x", "artifact", b'{"v":1}')
    await flow.take()
    (given,) = flow.arguments["check"]
    assert given["data"] == {"v": 1}
    assert await content_of(flow.service, (await flow.service.files.find(given["file"]["id"])).ref) == b"tar"


# Python programs


@pytest.fixture(params=["database", "server"])
async def app(request: pytest.FixtureRequest, service: Service, store_url: str, url: str) -> AsyncIterator[App]:
    if request.param == "database":
        made = App(url, files=store_url)
        yield made
        await made.aclose()
        return
    async with serving(service) as (_, port):
        made = App(f"http://127.0.0.1:{port}")
        yield made
        await made.aclose()


async def test_large_results_come_back_as_they_were(app: App) -> None:
    seen: dict[str, Any] = {}

    @app.job()
    async def small_letter() -> dict[str, Any]:
        return {"text": "x" * 70_000}

    @app.job()
    async def long_letter() -> list[str]:
        return TOO_LARGE

    @app.job()
    async def last(job: JobContext) -> list[str]:
        seen.update(job.parent_results)
        return ["last"]

    @app.job()
    async def report(job: JobContext) -> str:
        await job.artifacts.aadd_file("report", b"all is well", filename="report.txt", category="text")
        return "done"

    async with working(app):
        alone = await (await small_letter.aenqueue()).aresult(PATIENCE)
        assert alone == {"text": "x" * 70_000}
        assert await (await long_letter.aenqueue()).aresult(PATIENCE) == TOO_LARGE
        run = await app.astart(chain(group(small_letter.s(), long_letter.s()), last.s()))
        assert await run.aresult(PATIENCE) == ["last"]
        assert seen["0"] == {"0": {"text": "x" * 70_000}, "1": TOO_LARGE}
        both = await app.astart(group(small_letter.s(), long_letter.s()))
        assert await both.aresult(PATIENCE) == [{"text": "x" * 70_000}, TOO_LARGE]
        handle = await report.aenqueue()
        assert await handle.aresult(PATIENCE) == "done"
        items = await app.client().collections.items(Where(job_id=handle.id))
        assert [(item.name, item.category, item.kind) for item in items] == [("report", "text", "artifact")]
