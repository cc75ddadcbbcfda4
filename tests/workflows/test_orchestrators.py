"""Orchestrators: code that adds the steps of a workflow while it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ojster import App, Child, JobContext, Orchestrator, WorkflowFailed, found, group
from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.files.store import MemoryStore
from ojster.handlers import steps_around
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.schedules.due_work import run_due
from ojster.server.endpoints import workflows as endpoints
from ojster.service import Service
from ojster.workflows.orchestrator_request import queue_of
from ojster.workflows.read.views import MOST_SHOWN_STEPS
from tests.serving import serving
from tests.waiting import PATIENCE
from tests.worker.test_worker import until, working

pytestmark = pytest.mark.anyio


class Params(msgspec.Struct):
    archs: list[str]
    fails: bool = False
    deep: bool = False


def made(url: str) -> App:
    """Return an application with handlers and with orchestrators of every kind."""
    app = App(url)
    app.seen = []  # type: ignore[attr-defined]

    @app.job("build")
    async def build(arch: str) -> dict[str, str]:
        return {"arch": arch}

    @app.job("check")
    async def check(builds: list[dict[str, Any]]) -> dict[str, Any]:
        return {"checked": sorted(item["data"]["arch"] for item in builds)}

    @app.job("tell")
    async def tell(what: Any) -> Any:
        return what

    @app.job("pack")
    async def pack(size: int) -> str:
        return "x" * size

    @app.orchestrator("sizes")
    class Sizes(Orchestrator):
        def populate(self) -> None:
            packs = [self.ensure(f"pack-{size}", pack.s(size)) for size in (7, 70_000)]
            self.workflow("more", Builds, {"archs": ["arm64"]})
            self.ensure("waits", pack.using(delay=3_600).s(1), allow_failure=True)
            self.callback("measure", after=packs)

        def callback_measure(self) -> None:
            packs = {name: len(child.result) for name, child in self.children.items() if name.startswith("pack-")}
            app.seen.append((packs, {name: child.state for name, child in self.children.items()}))  # type: ignore[attr-defined]

    all_builds = {"collection": "internal", "name_startswith": "build-"}

    @app.orchestrator()
    class Release(Orchestrator):
        params: Params

        def validate(self) -> None:
            if not self.params.archs:
                raise ValueError("there is nothing to build")

        def populate(self) -> None:
            if self.params.fails:
                raise RuntimeError("Boom")
            for arch in self.params.archs:
                self.ensure(f"build-{arch}", build.s(arch), provides=[f"build-{arch}"])
            done = self.ensure("check", check.s(found(all_builds)))
            assert self.ensure("check", check.s(found(all_builds))).id == done.id, "saying it twice is no harm"
            self.callback("judge-it", after=[done])

        async def callback_judge_it(self) -> None:
            app.seen.append((sorted(self.children), self.children["check"].state))  # type: ignore[attr-defined]
            self.populate()
            checked = self.children["check"].result["checked"]
            self.ensure("tell", tell.s({"good": len(checked)}))

    @app.orchestrator("builds")
    class Builds(Orchestrator):
        params: Params

        def populate(self) -> None:
            for arch in self.params.archs:
                self.ensure(arch, build.s(arch), provides=[f"build-{arch}"])

    @app.orchestrator("late")
    class Late(Orchestrator):
        async def populate(self) -> None:
            names = [item.name for item in self.find(all_builds) if item.kind == "data"]
            self.ensure("names", tell.s(sorted(names)))
            self.callback("more")

        def callback_more(self) -> None:
            self.ensure("last", group(tell.s(1), tell.s(2)))

    @app.orchestrator("pipeline")
    class Pipeline(Orchestrator):
        params: Params

        def populate(self) -> None:
            builds = self.workflow("build", Builds, {"archs": self.params.archs})
            check_all = self.ensure("check", check.s(found(all_builds)))
            self.workflow("late", Late, after=[builds])
            self.callback("again", after=[check_all])

        def callback_again(self) -> None:
            self.populate()
            self.workflow("empty", Builds, {"archs": []})

    return app


@pytest.fixture
async def app(url: str, service: Service) -> App:
    application = made(url)
    application.work_on(service, url)
    return application


async def states(app: App, workflow_id: str) -> dict[str, str]:
    info = await app.client().workflows.show(workflow_id)
    return {step.path: step.state for step in info.walk()}


async def test_s66_what_it_adds_is_done_in_the_order_that_follows(app: App) -> None:
    async with working(app):
        run = await app.astart(app.orchestrators["release"], params={"archs": ["arm64", "amd64"]})
        assert await run.aresult(PATIENCE) == {"tell": {"good": 2}}
    assert set(await states(app, run.id)) == {
        "populate", "build-arm64", "build-amd64", "check", "judge-it", "tell",
    }  # fmt: skip
    assert set((await states(app, run.id)).values()) == {"completed"}
    before = ["build-amd64", "build-arm64", "check", "judge-it", "populate"]
    assert app.seen == [(before, "completed")]  # type: ignore[attr-defined]


async def test_s66_after_it_has_run_one_may_start_and_the_other_waits(app: App) -> None:
    run = await app.astart(app.orchestrators["release"], params={"archs": ["arm64"]})
    assert await states(app, run.id) == {"populate": "pending"}
    async with working(app, queues=(queue_of("release"),)):
        while len(await states(app, run.id)) == 1:
            await asyncio.sleep(0.01)
    assert await states(app, run.id) == {
        "populate": "completed", "build-arm64": "pending", "check": "waiting", "judge-it": "waiting",
    }  # fmt: skip


async def test_s67_one_that_fails_is_an_error_of_its_workflow(app: App) -> None:
    async with working(app):
        run = await app.astart(app.orchestrators["release"], params={"archs": ["x"], "fails": True})
        with pytest.raises(WorkflowFailed):
            await run.aresult(PATIENCE)
    (step,) = (await run.arefresh()).walk()
    error = msgspec.json.decode(bytes(step.error))  # type: ignore[arg-type]
    assert (error["code"], error["message"]) == ("orchestrator_failed", "Orchestrator failed: Boom")


async def test_s68_an_unknown_callback_fails_alone(app: App) -> None:
    release = app.orchestrators["release"]
    with pytest.raises(ValueError, match="no callback_nothing"):
        release({"archs": ["x"]}).callback("nothing")
    run = await app.astart(release, params={"archs": ["x"]})
    async with working(app):
        await run.aresult(PATIENCE)
        job = (await app.client().jobs.enqueue([_orchestrating("release", "nothing", {"archs": ["x"]})]))[0].job
        found_job = await app.client().jobs.wait_for(job.id, PATIENCE)
        assert found_job.error is not None
        assert found_job.error["code"] == "configure_failed"


async def test_s69_one_outside_of_any_workflow_is_an_error(app: App) -> None:
    async with working(app):
        job = (await app.client().jobs.enqueue([_orchestrating("release", None, {"archs": ["x"]})]))[0].job
        found_job = await app.client().jobs.wait_for(job.id, PATIENCE)
    assert found_job.error is not None
    assert (found_job.error["code"], "only in the workflow" in found_job.error["message"]) == ("configure_failed", True)


def _orchestrating(name: str, step: str | None, params: Any) -> dict[str, msgspec.Raw]:
    from ojster.workflows.orchestrator_request import orchestrating

    return read_members(msgspec.json.encode(orchestrating(name, step, params)))


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("nobody", {}, "Unknown orchestrator 'nobody'"),
        ("release", {}, "archs"),
        ("release", {"archs": "x"}, "archs"),
        ("release", {"archs": []}, "there is nothing to build"),
    ],
)
async def test_what_it_refuses_is_not_started(app: App, name: str, params: Any, words: str) -> None:
    request = {"orchestrator": name, "params": params}
    before = await app.service().workflows.count()
    with pytest.raises(InvalidRequest, match=words):
        await app.service().workflows.create(read_members(msgspec.json.encode(request)))
    assert await app.service().workflows.count() == before


@pytest.mark.parametrize("beside", [{"steps": []}, {"definition": "x"}, {"orchestrator": 1}])
async def test_what_it_lays_out_is_not_said_by_others(app: App, beside: dict[str, Any]) -> None:
    request = {"orchestrator": "release", "params": {"archs": ["x"]}} | beside
    with pytest.raises(InvalidRequest):
        await app.service().workflows.create(read_members(msgspec.json.encode(request)))


async def test_a_server_without_orchestrators_says_so(service: Service) -> None:
    with pytest.raises(InvalidRequest, match="serve --app"):
        await service.workflows.create(read_members(b'{"orchestrator": "release"}'))


async def test_s72_s84_workflows_inside_are_laid_out_once_and_share_the_collection(app: App) -> None:
    async with working(app):
        run = await app.astart(app.orchestrators["pipeline"], params={"archs": ["a", "b"]})
        await run.aresult(PATIENCE)
    found_states = await states(app, run.id)
    assert set(found_states.values()) == {"completed"}
    assert set(found_states) == {
        "populate", "build", "build.a", "build.b", "check", "late", "late.populate", "late.names", "late.more",
        "late.last", "late.last.0", "late.last.1", "again", "empty", "empty.populate",
    }  # fmt: skip
    info = await run.arefresh()
    results = {
        step.path: msgspec.json.decode(step.result) for step in info.walk() if isinstance(step.result, msgspec.Raw)
    }
    assert results["check"] == {"checked": ["a", "b"]}
    assert results["late.names"] == ["build-a", "build-b"]


async def test_s83_those_of_a_workflow_run_one_at_a_time_and_those_of_others_beside_them(app: App) -> None:
    service = app.service()
    running: list[str] = []
    release = asyncio.Event()

    @app.orchestrator("busy")
    class Busy(Orchestrator):
        def populate(self) -> None:
            for name in ("one", "two"):
                self.callback(name)

        async def wait(self) -> None:
            assert self.job is not None
            running.append(str(self.job.workflow_id))
            await release.wait()

        callback_one = wait
        callback_two = wait

    async with working(app):
        runs = [await app.astart(Busy) for _ in range(2)]
        while len(running) < 2:
            await asyncio.sleep(0.01)
        assert sorted(running) == sorted(run.id for run in runs), "one of each"
        assert await service.jobs.fetch(Claim((queue_of("busy"),))) == [], "the other two must wait"
        release.set()
        for run in runs:
            await run.aresult(PATIENCE)
    assert len(running) == 4


async def test_s74_a_requirement_is_a_dependency_on_the_step_that_promises_it(app: App) -> None:
    @app.job("slow")
    async def slow() -> int:
        return 1

    seen: list[Any] = []

    @app.orchestrator("stages")
    class Stages(Orchestrator):
        def populate(self) -> None:
            self.ensure("first", slow.s(), provides=["x"])
            self.callback("next", after=[])

        def callback_next(self) -> None:
            if "user" not in self.children:
                with pytest.raises(LookupError, match="no step promises"):
                    self.ensure("wrong", slow.s(), requires=["internal/nothing"])
                self.ensure("user", slow.s(), requires=["internal/x"])
                self.ensure("reader", slow.s().set(allow_failure=True), requires=[{"collection": "internal"}])
                seen.extend(wire.wire for wire in self.added)

    run = await app.astart(Stages)
    async with working(app, queues=(queue_of("release"),)):
        while len(await states(app, run.id)) < 5:
            await asyncio.sleep(0.01)
    assert [wire["depends_on"] for wire in seen] == [["first"], ["first"]]
    assert (await states(app, run.id))["user"] == "waiting"
    (job,) = await app.service().jobs.fetch(Claim(("default",), count=5))
    assert isinstance((await app.service().jobs.acknowledge([Acknowledgement(job.id, b"1")]))[0], Job)
    assert (await states(app, run.id))["user"] == "pending"


async def test_what_a_step_looks_up_comes_before_it_whoever_promised_it_and_when(app: App) -> None:
    tell = app.handlers["tell"]
    seen: dict[str, Any] = {}

    @app.orchestrator("inner")
    class Inner(Orchestrator):
        def populate(self) -> None:
            self.ensure("reader", tell.s(found("internal/early")))
            self.ensure("needy", tell.s(1), requires=["internal/early"])
            self.ensure("needier", tell.s(1), requires=["internal/fresh"], provides=["inside"])

    @app.orchestrator("outer")
    class Outer(Orchestrator):
        def populate(self) -> None:
            self.ensure("early", tell.s(1).set(manual=True), provides=["early"])
            self.callback("go")

        def callback_go(self) -> None:
            self.ensure("fresh", tell.s(2), provides=["fresh"])
            self.ensure("by-lookup", tell.s(found("internal/early")))
            self.ensure("by-need", tell.s(3), requires=["internal/fresh"])
            for _ in range(2):
                self.workflow("inside", Inner)
            self.ensure("after-inside", tell.s(4), requires=["internal/inside"])
            self.ensure("named", tell.s(5), requires=["releases/anything"])
            seen.update({wire.wire["id"]: wire.wire.get("depends_on") for wire in self.added})

    run = await app.astart(Outer)
    async with working(app):
        while "named" not in await states(app, run.id):
            await asyncio.sleep(0.01)
        assert seen["by-lookup"] == ["early"]
        assert seen["by-need"] == ["fresh"]
        assert seen["inside"] == ["early", "fresh"]
        assert seen["after-inside"] == ["inside"]
        assert seen["named"] == ["go"]
        await run.aapprove("early")
        await run.aresult(PATIENCE)


@pytest.mark.parametrize("name", ["build", "bu{job.result.rest}"])
async def test_a_promise_made_before_is_waited_for_by_what_looks_it_up(app: App, name: str) -> None:
    """The step with the lookup is added before the promising step has run."""
    tell = app.handlers["tell"]

    @app.orchestrator("later")
    class Later(Orchestrator):
        def populate(self) -> None:
            self.ensure("build", tell.s({"v": 1, "rest": "ild"}).set(manual=True), provides=[name])
            self.callback("more")

        def callback_more(self) -> None:
            self.ensure("use", tell.s(found("internal/build")))

    run = await app.astart(Later)
    async with working(app):
        while "use" not in await states(app, run.id):
            await asyncio.sleep(0.01)
        assert (await states(app, run.id))["use"] == "waiting"
        await run.aapprove("build")
        assert (await run.aresult(PATIENCE))["use"]["data"]["v"] == 1


async def test_a_lost_worker_does_not_fail_the_workflow(app: App, clock: Any) -> None:
    run = await app.astart(app.orchestrators["release"], params={"archs": ["x"]})
    service = app.service()
    (job,) = await service.jobs.fetch(Claim((queue_of("release"),), worker_id="lost", lease=30_000_000))
    clock.advance(31)
    await service.database.run(run_due, None)
    async with working(app):
        await run.aresult(PATIENCE)
    assert (await service.jobs.find(job.id)).attempt == 2


async def test_an_orchestrator_sees_only_the_workflow_that_it_is_a_step_of(app: App) -> None:
    """A job outside of any workflow cannot forge its ``workflow_id``."""
    run = await app.astart(app.orchestrators["release"], params={"archs": ["x"]})
    service = app.service()
    forged = _orchestrating("release", None, {"archs": ["x"]})
    forged |= {"workflow_id": msgspec.Raw(msgspec.json.encode(run.id)), "workflow_step": msgspec.Raw(b'"populate"')}
    (pushed,) = await service.jobs.enqueue([forged])
    assert pushed.job.exclusive_key is None
    async with working(app):
        ended = await service.jobs.wait_for(pushed.job.id, PATIENCE)
        assert ended.error is not None
        assert ended.error["code"] == "configure_failed"
        await run.aresult(PATIENCE)


async def test_a_worker_is_given_only_those_that_it_knows(app: App, service: Service, url: str) -> None:
    other = App(url)
    other.work_on(service, url)

    @other.orchestrator("other")
    class Other(Orchestrator):
        def populate(self) -> None:
            pass

    app.work_on(service, url)
    run = await app.astart(app.orchestrators["release"], params={"archs": ["x"]})
    async with working(other, queues=(queue_of("other"),)), working(app):
        await run.aresult(PATIENCE)


async def test_an_orchestrator_with_an_async_validate_is_refused(app: App) -> None:
    class Waits(Orchestrator):
        async def validate(self) -> None:
            pass

    with pytest.raises(ValueError, match="plain method"):
        app.orchestrator("waits")(Waits)
    with pytest.raises(InvalidRequest):
        app.orchestrator("Not a name!")(type("X", (Orchestrator,), {}))
    with pytest.raises(ValueError, match="lays out the workflow"):
        app.orchestrators["release"]({"archs": ["x"]}).ensure("populate", app.handlers["tell"].s(1))


async def test_a_failed_one_adds_nothing_and_may_be_retried(app: App) -> None:
    tries: list[int] = []

    @app.orchestrator("shaky")
    class Shaky(Orchestrator):
        def populate(self) -> None:
            self.ensure("child", app.handlers["tell"].s(1))
            tries.append(1)
            if len(tries) == 1:
                raise RuntimeError("not yet")

    async with working(app):
        run = await app.astart(Shaky)
        with pytest.raises(WorkflowFailed):
            await run.aresult(PATIENCE)
        assert set(await states(app, run.id)) == {"populate"}
        await run.aretry()
        assert await run.aresult(PATIENCE) == {"child": 1}


async def test_what_makes_no_sense_is_refused_where_it_is_said(app: App) -> None:
    tell = app.handlers["tell"]
    release = app.orchestrators["release"]({"archs": ["x"]})
    release.ensure("a", tell.s(1))
    with pytest.raises(ValueError, match="two different steps 'a'"):
        release.ensure("a", tell.s(2))
    with pytest.raises(ValueError, match="is async"):
        release.workflow("w", app.orchestrators["late"])
    with pytest.raises(ValueError, match="already"):
        app.orchestrator("release")(type("Other", (Orchestrator,), {}))
    with pytest.raises(NotImplementedError):
        Orchestrator({}).populate()
    assert repr(Child("x")) == "<Child x new>"


@pytest.mark.parametrize("how", ["itself at once", "itself after a new step", "one before it"])
async def test_a_callback_that_has_begun_is_not_asked_for_again(app: App, how: str) -> None:
    tell = app.handlers["tell"]

    @app.orchestrator("rounds")
    class Rounds(Orchestrator):
        def populate(self) -> None:
            self.callback("first")

        def callback_first(self) -> None:
            if how == "itself at once":
                self.callback("first")
            elif how == "itself after a new step":
                self.callback("first", after=[self.ensure("more", tell.s("more"))])
            else:
                self.callback("second", after=["populate"])

        def callback_second(self) -> None:
            self.callback("first", after=[self.ensure("more", tell.s("more"))])

    async with working(app):
        run = await app.astart(Rounds)
        with pytest.raises(WorkflowFailed):
            await run.aresult(PATIENCE)
    (error,) = [step.error for step in (await run.arefresh()).walk() if isinstance(step.error, msgspec.Raw)]
    assert b"'first' runs once, and has begun. For rounds, write a flow with a loop." in bytes(error)


async def test_a_name_that_another_step_has_is_refused(app: App) -> None:
    @app.orchestrator("twice")
    class Twice(Orchestrator):
        def populate(self) -> None:
            self.callback("report")

        def callback_report(self) -> None:
            self.ensure("report", app.handlers["tell"].s("all is well"))

    async with working(app):
        run = await app.astart(Twice)
        with pytest.raises(WorkflowFailed):
            await run.aresult(PATIENCE)
    (error,) = [step.error for step in (await run.arefresh()).walk() if step.id == "report"]
    assert b"call this one otherwise" in bytes(error)  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [MOST_SHOWN_STEPS, 1], ids=["shown", "in pages"])
async def test_a_callback_sees_all_steps_beside_it_however_many_and_large(
    service: Service, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A server shows the steps of a large workflow in pages, and keeps large results as files."""
    monkeypatch.setattr(endpoints, "MOST_SHOWN_STEPS", most)
    monkeypatch.setattr(steps_around, "MOST_STEPS", 2)
    service.store = MemoryStore()
    async with serving(service) as (_, port):
        remote = made(f"http://127.0.0.1:{port}")
        service.check_orchestrator = remote.orchestrators.check
        async with working(remote):
            await remote.astart(remote.orchestrators["sizes"])
            await until(lambda: bool(remote.seen))  # type: ignore[attr-defined]
        await remote.aclose()
    ((sizes, states),) = remote.seen  # type: ignore[attr-defined]
    assert sizes == {"pack-7": 7, "pack-70000": 70_000}
    assert states.pop("more") in ("active", "completed")
    ended = dict.fromkeys(("populate", "pack-7", "pack-70000"), "completed")
    assert states == ended | {"waits": "pending", "measure": "active"}


async def test_over_http_the_server_runs_it_and_workers_do_the_rest(app: App, url: str) -> None:
    """The server has the orchestrators; a worker with handlers only runs the steps that they add."""
    service = app.service()
    async with serving(service) as (_, port):
        client_app = App(f"http://127.0.0.1:{port}")

        @client_app.job("build")
        async def build(job: JobContext, arch: str) -> dict[str, str]:
            return {"arch": arch}

        @client_app.job("check")
        async def check(builds: list[Any]) -> dict[str, Any]:
            return {"checked": [item["data"]["arch"] for item in builds]}

        @client_app.job("tell")
        async def tell(what: Any) -> Any:
            return what

        async with working(app, queues=(queue_of("release"),)), working(client_app):
            run = await client_app.astart(app.orchestrators["release"], params={"archs": ["arm64"]})
            assert await run.aresult(PATIENCE) == {"tell": {"good": 1}}
            with pytest.raises(InvalidRequest, match="nothing to build"):
                await client_app.astart(app.orchestrators["release"], params={"archs": []})
        await client_app.aclose()
