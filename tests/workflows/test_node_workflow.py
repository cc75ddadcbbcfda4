"""Scenarios of node-workflow. Each test bears the number of its scenario; docs/node-workflow.md lists the omitted ones.

A workflow of node-workflow is a definition here, a job is a workflow, a task is a step, and a runner is a worker. The
HTTP scenarios are in tests/workflows/test_node_workflow_over_http.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ojster.api.app import App
from ojster.core import errors
from ojster.core.errors import Conflict, Duplicate, InvalidRequest, InvalidWorkflow, NotFound
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.fleet.requirements import ProvidedFacts
from ojster.fleet.workers import Heartbeat, held_jobs
from ojster.handlers.context import JobContext
from ojster.jobs.claim_policy import Claim
from ojster.jobs.code import CODE_CAPABILITY
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.scope import accepted
from ojster.sandbox.sandbox import CodeFailed, Sandbox, SandboxRequest
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.worker.children import ChildPool
from ojster.worker.code import CodeRunner
from ojster.worker.execution import Executor
from ojster.worker.identity import Identity
from ojster.worker.worker import Worker
from ojster.workflows.definition import read_workflow_retry_policy
from ojster.workflows.definitions import DefinitionDeletion, Named
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.read.status import StepResult
from ojster.workflows.run.suspensions import WorkflowResumption
from tests.conftest import Bench, Clock
from tests.workflows.bench import job as step

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux confines code"),
]

OK = "def body(job): return 'OK'"
WAIT = "def body(job): raise Wait()"
FAIL = "def body(job): raise ValueError('This is an error')"
LONG = "import time\ndef body(job): time.sleep(30)"
ONCE = {"retry": {"max_attempts": 1}}


@pytest.fixture
def url(shared_url: str) -> str:
    """URL of each database: a file and PostgreSQL."""
    return shared_url


def code(body: str, *args: Any, attempts: int = 1, **more: Any) -> dict[str, Any]:
    """Return a task that carries code, with ``attempts`` attempts one second apart."""
    retry = {"max_attempts": attempts, "initial_interval": "PT1S", "jitter": False}
    return {"body": body, "args": list(args), "options": {"retry": retry}} | more


class Runner(Bench):
    """A worker that runs code jobs one by one, on request."""

    def __init__(self, service: Service, clock: Clock) -> None:
        super().__init__(service, clock)
        self.sandbox = Sandbox(values={"config": {"level": 3}})
        self.children = ChildPool()
        runner = CodeRunner(self.sandbox, service)
        self.executor = Executor(App("sqlite:///unused.db"), 1, self.children, lambda: None, runner)
        self.id = ""

    async def start(self, *tasks: dict[str, Any], target: str | None = None, **more: Any) -> str:
        """Create or update the definition ``flow``, and start a workflow from it."""
        own = {name: more.pop(name) for name in ("params", "properties", "locks", "scheduled_at") if name in more}
        await self.define("flow", *tasks, **more)
        return await self.begin(target=target, **own)

    async def define(self, name: str, *tasks: dict[str, Any], **more: Any) -> Any:
        body = {"type": "chain", "steps": list(tasks)} | more
        given = read_members(msgspec.json.encode(body))
        try:
            return await self.service.definitions.update(name, given)
        except NotFound:
            return await self.service.definitions.create(name, given)

    async def begin(self, name: str = "flow", **more: Any) -> str:
        given = {"definition": name} | {key: value for key, value in more.items() if value is not None}
        self.id = (await self.service.workflows.create(read_members(msgspec.json.encode(given)))).id
        return self.id

    async def claim(self, worker_id: str = "runner") -> Job | None:
        provided = ProvidedFacts({CODE_CAPABILITY: ("confined",)})
        jobs = await self.service.jobs.fetch(Claim(("default",), 1, worker_id, provided=provided))
        return jobs[0] if jobs else None

    async def run_one(self) -> Job | None:
        """Run the next job; return ``None`` if no job is available."""
        job = await self.claim()
        return None if job is None else await self.execute(job)

    async def execute(self, job: Job) -> Job:
        async def nothing(*_: Any) -> None:
            return

        loop = asyncio.get_running_loop()
        ending = await self.executor.run(JobContext(job, "runner", self.service, nothing, nothing, loop))
        assert ending is not None
        if isinstance(ending, Acknowledgement):
            (end,) = await self.service.jobs.acknowledge([ending])
        elif isinstance(ending, FailureReport):
            (end,) = await self.service.jobs.fail([ending])
        else:
            (end,) = await self.service.jobs.release([ending])
        return accepted(end)

    async def work(self, *, patience: float = 0.0) -> list[Job]:
        """Run all available jobs, and then those that are due within ``patience`` seconds."""
        ended = []
        while True:
            while (one := await self.run_one()) is not None:
                ended.append(one)
            if not patience:
                return ended
            await self.run_due(patience)
            patience = 0.0

    async def state(self) -> str:
        return (await self.service.workflows.show(self.id)).state

    async def results(self, branch: str = "steps") -> list[StepResult]:
        return (await self.service.workflows.status(self.id)).results.get(branch, [])

    async def shared(self) -> dict[str, Any]:
        return {name: one.decoded() for name, one in (await self.service.workflows.properties(self.id)).items()}


def message(result: StepResult) -> str:
    """Return the message of a result's error, or an empty string."""
    return "" if result.error is msgspec.UNSET else str(msgspec.json.decode(result.error)["message"])


def error_of(result: StepResult) -> dict[str, Any]:
    assert result.error is not msgspec.UNSET
    error: dict[str, Any] = msgspec.json.decode(result.error)
    return error


def value(result: StepResult) -> Any:
    return None if result.result is msgspec.UNSET else msgspec.json.decode(result.result)


@pytest.fixture
async def runner(service: Service, clock: Clock) -> AsyncIterator[Runner]:
    made = Runner(service, clock)
    yield made
    made.executor.close()
    await made.children.close()


# Errors and construction


def test_001_all_errors_have_one_base_and_a_kind_for_each_reason() -> None:
    for kind in (errors.InvalidRequest, errors.Conflict, errors.Duplicate, errors.NotFound, errors.BackendUnavailable):
        assert issubclass(kind, errors.OjsterError)


def test_002_an_error_keeps_its_code_and_message_on_the_wire() -> None:
    wire = errors.NotFound("There is no such thing.").to_wire()
    assert (wire["code"], wire["message"]) == ("not_found", "There is no such thing.")


def test_003_a_server_without_a_database_is_refused() -> None:
    for url in ("", "nonsense", "mysql://x/y"):
        with pytest.raises(InvalidRequest):
            open_database(url)


def test_004_a_runner_without_queues_or_room_is_refused() -> None:
    app = App("sqlite:///unused.db")
    for wrong, why in (({"queues": ()}, "'queues' is empty"), ({"concurrency": 0}, "'concurrency' is 0")):
        with pytest.raises(ValueError, match=why):
            Worker(app, **wrong)


async def test_007_a_body_that_is_no_function_is_refused(runner: Runner) -> None:
    for body in ("no python at all", "1 + 1", ""):
        with pytest.raises(InvalidWorkflow, match="body"):
            await runner.start(code(body))


# Tasks


async def test_008_a_task_succeeds_at_its_first_try(runner: Runner) -> None:
    await runner.start(code(OK, id="a task"[:1]))
    (job,) = await runner.work()
    assert (job.state, job.attempt, await runner.state()) == ("completed", 1, "completed")
    (result,) = await runner.results()
    assert (result.name, value(result), message(result)) == ("a", "OK", "")


async def test_009_modules_and_values_of_the_runner_are_there(runner: Runner) -> None:
    body = "import math\ndef body(job): return [config['level'], math.floor(2.5), callable(info), callable(Fail)]"
    await runner.start(code(body))
    await runner.work()
    assert value((await runner.results())[0]) == [3, 2, True, True]


SECOND_TIME = """
def body(job):
    if not job.get("foo"):
        job["foo"] = True
        raise ValueError("Foo was not defined")
    return "OK"
"""


async def test_010_what_a_failed_try_has_set_is_there_at_the_next(runner: Runner) -> None:
    await runner.start(code(SECOND_TIME, attempts=2))
    await runner.work(patience=2)
    assert await runner.work() == []
    assert (await runner.state(), await runner.shared()) == ("completed", {"foo": True})


async def test_011_a_task_that_fails_without_a_fallback_has_an_error_and_no_result(runner: Runner) -> None:
    await runner.start(code(FAIL))
    await runner.work()
    (result,) = await runner.results()
    assert (value(result), message(result), result.state) == (None, "This is an error", "failed")


FALLBACK = "def body(job, error):\n    job['the_err'] = error['message']\n    return 'OK'"


async def test_012_a_fallback_is_given_the_error_and_may_recover(runner: Runner) -> None:
    mend = code(FALLBACK, {"$ref": "steps.t.error"})
    await runner.start(code(FAIL, id="t", fallback=mend))
    await runner.work()
    assert (await runner.state(), await runner.shared()) == ("completed", {"the_err": "This is an error"})


async def test_013_if_the_fallback_fails_too_its_error_is_told(runner: Runner) -> None:
    await runner.start(code(FAIL, id="t", fallback=code("def body(job): raise ValueError('fallback error')")))
    await runner.work()
    assert await runner.state() == "failed"
    assert message((await runner.results())[-1]) == "fallback error"


async def test_014_of_several_tries_the_last_error_is_told_and_all_that_they_set_is_kept(runner: Runner) -> None:
    body = """
def body(job):
    if "foo" not in job:
        job["foo"] = 1
        raise ValueError("first")
    job["bar"] = 2
    raise ValueError("second")
"""
    await runner.start(code(body, attempts=2))
    await runner.work(patience=2)
    await runner.work()
    assert message((await runner.results())[0]) == "second"
    assert (await runner.shared(), await runner.state()) == ({"foo": 1, "bar": 2}, "failed")


async def test_015_a_fallback_learns_of_a_time_out(runner: Runner) -> None:
    mend = code(FALLBACK, {"$ref": "steps.t.error"})
    await runner.start(code(LONG, id="t", timeout_ms=500, fallback=mend))
    await runner.work()
    assert await runner.state() == "completed"
    assert "ran longer than" in (await runner.shared())["the_err"]


async def test_016_a_body_and_a_fallback_that_take_too_long_fail(runner: Runner) -> None:
    await runner.start(code(LONG, id="t", timeout_ms=400, fallback=code(LONG, timeout_ms=400)))
    await runner.work()
    assert await runner.state() == "failed"
    assert ["ran longer than" in message(one) for one in await runner.results()] == [True, True]


async def test_017_a_task_that_takes_too_long_fails(runner: Runner) -> None:
    await runner.start(code(LONG, timeout_ms=400))
    (job,) = await runner.work()
    assert (job.state, msgspec.json.decode(job.errors or b"[]")[0]["code"]) == ("discarded", "timeout")


async def test_018_a_task_that_goes_back_to_the_queue_is_neither_done_nor_failed(runner: Runner) -> None:
    await runner.start(code("def body(job): raise Snooze(10)"))
    (job,) = await runner.work()
    assert (job.state, job.errors, job.worker_id) == ("scheduled", None, None)


async def test_019_a_task_of_a_cancelled_job_is_not_tried_again(runner: Runner) -> None:
    await runner.start(code(LONG, attempts=2, timeout_ms=2_000))
    job = await runner.claim()
    assert job is not None
    running = asyncio.create_task(runner.execute(job))
    await asyncio.sleep(0.1)
    await runner.service.workflows.cancel(runner.id)
    assert (await running).state == "cancelled"
    assert await runner.work(patience=5) == []
    assert await runner.state() == "cancelled"


async def test_020_a_fallback_does_not_run_once_its_job_was_cancelled(runner: Runner) -> None:
    await runner.start(code(FAIL, id="t", fallback=code("def body(job): job['ran'] = 1")))
    job = await runner.claim()
    assert job is not None
    await runner.service.workflows.cancel(runner.id)
    await runner.execute(job)
    assert await runner.work(patience=5) == []
    assert (await runner.shared(), await runner.state()) == ({}, "cancelled")


async def test_021_notes_come_before_the_end_of_a_task() -> None:
    heard: list[Any] = []

    async def hear(note: bytes) -> None:
        heard.append(msgspec.json.decode(note))

    end = await Sandbox().run(
        SandboxRequest("def body(job):\n    info('x')\n    return 'OK'"), timeout=20, on_note=hear
    )
    assert (heard, end.result) == (["x"], "OK")


async def test_022_an_error_with_a_status_keeps_it(runner: Runner) -> None:
    await runner.start(code("def body(job): raise Fail('gone', code='not_found', details={'status': 404})"))
    await runner.work()
    error = error_of((await runner.results())[0])
    assert (error["code"], error["message"], error["details"]) == ("not_found", "gone", {"status": 404})


async def test_023_any_other_error_has_a_type_and_a_message(runner: Runner) -> None:
    await runner.start(code("def body(job): return {}['missing']"))
    await runner.work()
    error = error_of((await runner.results())[0])
    assert (error["type"], error["message"]) == ("KeyError", "'missing'")


async def test_024_a_task_that_names_modules_has_only_these_but_still_the_values(runner: Runner) -> None:
    body = "def body(job):\n    import math\n    return config['level']"
    await runner.start(code(body, modules=["math"]), code(body, modules=["json"]))
    await runner.work()
    first, second = await runner.results()
    assert value(first) == 3
    assert "'math' is not allowed here" in message(second)


# The child process


async def test_025_a_child_that_is_told_nonsense_says_nothing() -> None:
    from ojster.sandbox.sandbox import _CHILD

    for nonsense in (b"", b"\0\0\0\2{}", b"\0\0\0\3no!", b'\0\0\0\x0e{"body":"x=1"}'):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-B", _CHILD, stdin=-1, stdout=-1, stderr=asyncio.subprocess.DEVNULL
        )
        output, _ = await process.communicate(nonsense)
        assert (output, process.returncode) == (b"", 1)


async def test_026_a_task_without_a_body_is_refused(runner: Runner) -> None:
    with pytest.raises(InvalidWorkflow, match="type"):
        await runner.start({"args": []})
    with pytest.raises(InvalidWorkflow, match="body"):
        await runner.start({"type": "ojster.code", "args": [], "ojster_code": {}})


async def test_027_and_028_a_child_tells_of_success_and_of_failure() -> None:
    good = await Sandbox().run(SandboxRequest(OK), timeout=20)
    assert (good.result, good.error) == ("OK", None)
    bad = await Sandbox().run(SandboxRequest(FAIL), timeout=20)
    assert (bad.result, bad.failure and bad.failure.message) == (None, "This is an error")


async def test_029_a_cancelled_task_is_killed() -> None:
    running = asyncio.create_task(Sandbox().run(SandboxRequest(LONG), timeout=20))
    await asyncio.sleep(0.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# Jobs


async def test_030_a_job_of_one_task_that_succeeds(runner: Runner) -> None:
    await runner.start(code(OK))
    await runner.work()
    assert (await runner.state(), [value(one) for one in await runner.results()]) == ("completed", ["OK"])


async def test_031_a_job_that_fails_without_a_branch_for_errors(runner: Runner) -> None:
    await runner.start(code(FAIL, id="task"))
    await runner.work()
    (result,) = await runner.results()
    assert (await runner.state(), result.name, message(result)) == ("failed", "task", "This is an error")
    assert "on_error" not in (await runner.service.workflows.status(runner.id)).results


REQUEUE = "def body(job):\n    if 'n' not in job:\n        job['n'] = 1\n        raise Snooze(5)\n    return 'OK'"


async def test_032_and_033_a_requeued_job_resumes_at_its_step(runner: Runner) -> None:
    await runner.start(code(OK), code(REQUEUE), code(OK), timeout=60)
    assert [job.state for job in await runner.work()] == ["completed", "scheduled"]
    assert len(await runner.results()) == 1
    limit = (await runner.service.workflows.status(runner.id)).workflow
    assert limit.started_at is not None
    await runner.run_due(6)
    assert [job.state for job in await runner.work()] == ["completed", "completed"]
    assert len(await runner.results()) == 3
    assert await runner.state() == "completed"


async def test_034_a_job_that_takes_longer_than_it_may_fails(runner: Runner) -> None:
    await runner.start(code(OK), code(OK), timeout=3)
    job = await runner.claim()
    assert job is not None
    await runner.run_due(4)
    await runner.service.jobs.release([Release(job.id, job.worker_id, job.attempt)])
    info = await runner.service.workflows.show(runner.id)
    assert (info.state, info.error and info.error.code) == ("failed", "workflow_timeout")


@pytest.mark.parametrize("none", [{}, {"timeout": 0}])
async def test_035_a_job_without_a_timeout_or_with_one_of_zero_has_no_limit(
    runner: Runner, none: dict[str, Any]
) -> None:
    await runner.start(code(OK), **none)
    await runner.run_due(10_000_000)
    assert await runner.state() == "running"


async def test_036_a_branch_for_errors_may_repair_but_the_job_has_failed(runner: Runner) -> None:
    await runner.start(code(FAIL), on_error=code("def body(job):\n    job['foo'] = 'OK'\n    return 'OK'"))
    await runner.work()
    assert (await runner.state(), await runner.shared()) == ("failed", {"foo": "OK"})
    results = [*(await runner.results()), *(await runner.results("on_error"))]
    assert [message(one) for one in results] == ["This is an error", ""]
    assert all(one.started_at and one.finished_at for one in results)


async def test_037_if_the_branch_for_errors_fails_too_both_errors_are_kept(runner: Runner) -> None:
    await runner.start(code(FAIL), on_error=code("def body(job): raise ValueError('Task body error')"))
    await runner.work()
    assert [message(one) for one in await runner.results()] == ["This is an error"]
    assert [message(one) for one in await runner.results("on_error")] == ["Task body error"]


async def test_038_and_039_a_module_must_be_allowed(runner: Runner) -> None:
    await runner.start(
        code("def body(job):\n    import json\n    return json.dumps([])"), code("import os\ndef body(job): 1")
    )
    await runner.work()
    good, bad = await runner.results()
    assert value(good) == "[]"
    assert "'os' is not allowed" in message(bad)


async def test_040_a_running_job_that_is_cancelled_runs_its_branch_for_that(runner: Runner) -> None:
    tidy = code("def body(job):\n    job['tidied'] = True\n    return 'OK'")
    await runner.start(code(LONG, timeout_ms=500), code(OK), on_error=code(OK), on_cancel=tidy)
    job = await runner.claim()
    assert job is not None
    await runner.service.workflows.cancel(runner.id)
    await runner.execute(job)
    await runner.work()
    assert (await runner.state(), await runner.shared()) == ("cancelled", {"tidied": True})
    status = await runner.service.workflows.status(runner.id)
    assert "ran longer" in message(status.results["steps"][0])
    assert [value(one) for one in status.results["on_cancel"]] == ["OK"]
    assert "on_error" not in status.results


async def test_041_a_task_notes_something(runner: Runner) -> None:
    await runner.start(code("def body(job):\n    job.info('a note')\n    return 'OK'"))
    await runner.work()
    assert [msgspec.json.decode(note.note) for note in await runner.service.notes.of_workflow(runner.id)] == ["a note"]


# Runners


def test_042_an_identity_that_was_made_up_is_kept(tmp_path: Path) -> None:
    first = Identity(tmp_path / "identity")
    first.close()
    again = Identity(tmp_path / "identity")
    assert again.id == first.id
    again.close()


async def test_043_a_runner_is_known_with_the_time_when_it_was_seen(runner: Runner) -> None:
    await runner.service.fleet.beat(Heartbeat("one"))
    (worker,) = await runner.service.fleet.all()
    assert (worker.id, worker.last_seen_at) == ("one", runner.clock())


async def test_044_a_job_runs_when_its_time_has_come(runner: Runner) -> None:
    await runner.start(code(OK), scheduled_at="2001-01-01T00:00:00Z")
    assert len(await runner.work()) == 1
    await runner.begin(scheduled_at="+PT10S")
    await runner.run_due(9)
    assert await runner.work() == []
    await runner.run_due(2)
    assert len(await runner.work()) == 1


def test_045_the_pauses_between_retries_of_a_job_grow_up_to_a_bound() -> None:
    given = {"initial_interval": "PT1S", "max_interval": "PT7S", "jitter": False}
    policy = read_workflow_retry_policy({"retry": msgspec.Raw(msgspec.json.encode(given))})
    assert [policy.delay(retry, 0.5) // 1000 for retry in range(1, 6)] == [1000, 2000, 4000, 7000, 7000]
    assert policy.max_attempts == 10


async def test_046_and_074_an_idle_runner_is_given_nothing_until_it_is_woken(runner: Runner) -> None:
    await runner.start(code(OK))
    await runner.service.fleet.beat(Heartbeat("runner"))
    await runner.service.fleet.direct("runner", "quiet")
    assert await runner.work() == []
    assert (await runner.service.fleet.beat(Heartbeat("runner"))).directive == "quiet"
    await runner.service.fleet.direct("runner", "running")
    assert len(await runner.work()) == 1


async def test_047_and_048_a_job_waits_and_goes_on_when_it_is_resumed(runner: Runner) -> None:
    await runner.start(code(OK), code(WAIT), code("def body(job):\n    import math\n    return math.pi > 3"))
    await runner.work()
    assert [one.state for one in (await runner.service.workflows.status(runner.id)).current] == ["waiting"]
    assert await runner.work(patience=1_000) == []
    await runner.service.workflows.resume(WorkflowResumption(runner.id, data=b'"OK"'))
    await runner.work()
    assert (await runner.state(), [value(one) for one in await runner.results()]) == ("completed", ["OK", "OK", True])


async def test_049_and_050_a_job_that_fails_tells_why(runner: Runner) -> None:
    await runner.start(code(FAIL))
    await runner.work()
    info = await runner.service.workflows.show(runner.id)
    assert info.error is not None
    assert (info.error.errors[0]["type"], info.error.errors[0]["message"]) == ("ValueError", "This is an error")


async def test_051_a_job_that_always_wants_to_be_retried_is_so_often(runner: Runner) -> None:
    policy = {"max_attempts": 3, "initial_interval": "PT1S", "jitter": False}
    ids = [await runner.start(code("def body(job): raise RetryWorkflow()"), retry=policy, target="t")]
    for _ in range(2):
        await runner.work(patience=5)
        following = (await runner.service.workflows.show(ids[-1])).next_attempt
        assert following is not None
        ids.append(following)
    await runner.work()
    found = [await runner.service.workflows.show(id) for id in ids]
    assert [one.state for one in found] == ["retried", "retried", "failed"]
    assert [one.next_attempt for one in found] == [ids[1], ids[2], None]
    assert [one.previous_attempt for one in found] == [None, ids[0], ids[1]]


async def test_052_and_071_to_073_runners_that_fall_silent_are_forgotten_and_no_others(runner: Runner) -> None:
    await runner.service.fleet.beat(Heartbeat("old"))
    runner.clock.advance(20)
    await runner.service.fleet.beat(Heartbeat("fresh"))
    await runner.service.fleet.beat(Heartbeat("old"))
    assert {worker.last_seen_at for worker in await runner.service.fleet.all()} == {runner.clock()}
    runner.clock.advance(20)
    await runner.service.fleet.beat(Heartbeat("fresh"))
    await runner.run_due(15)
    assert [worker.id for worker in await runner.service.fleet.all()] == ["fresh"]


async def test_053_what_a_silent_runner_held_is_stale_and_nothing_else(runner: Runner) -> None:
    await runner.define("flow", code(OK, attempts=2))
    ids = [await runner.begin() for _ in range(2)]
    await runner.service.fleet.beat(Heartbeat("old"))
    held, done = await runner.claim("old"), await runner.claim("old")
    assert held is not None
    assert done is not None
    await runner.service.jobs.acknowledge([Acknowledgement(done.id, b'"OK"', "old", 1)])
    await runner.run_due(5)
    assert (await runner.find(held)).state == "active"
    await runner.run_due(60)
    assert ((await runner.find(held)).state, (await runner.find(done)).state) == ("available", "completed")
    await runner.work()
    assert [(await runner.service.workflows.show(id)).state for id in ids] == ["completed", "completed"]


async def test_054_a_task_that_is_too_slow_fails_with_its_record(runner: Runner) -> None:
    await runner.start(code(LONG, timeout=1))
    await runner.work()
    (result,) = await runner.results()
    assert await runner.state() == "failed"
    assert message(result)
    assert result.finished_at


# Storage


async def test_056_a_definition_is_kept_with_its_branches(runner: Runner) -> None:
    made = await runner.define("flow", code(OK), on_error=code(OK), on_cancel=code(OK))
    assert set(made.hashes) == {"steps", "on_error", "on_cancel"}
    assert set(made.members) == {"type", "steps", "on_error", "on_cancel"}


async def test_057_the_name_of_a_definition_is_taken_once(runner: Runner) -> None:
    await runner.define("flow", code(OK))
    with pytest.raises(Duplicate):
        await runner.service.definitions.create(
            "flow", read_members(b'{"type":"chain","steps":[{"type":"a","args":[]}]}')
        )


async def test_058_a_definition_is_found_or_its_name_is_told(runner: Runner) -> None:
    made = await runner.define("flow", code(OK))
    assert await runner.service.definitions.find(Named("flow")) == made
    with pytest.raises(NotFound, match="'other'"):
        await runner.service.definitions.find(Named("other"))


async def test_059_a_definition_may_get_a_task_more(runner: Runner) -> None:
    await runner.define("flow", code(OK))
    changed = await runner.define("flow", code(OK), code(OK))
    assert (changed.version, len(msgspec.json.decode(changed.members["steps"]))) == (2, 2)


async def test_060_a_job_is_made_with_all_that_was_said_of_it(runner: Runner) -> None:
    await runner.start(code(OK), target="/foo", params={"foo": "1", "chicken": "2"}, properties={"extra": [1]})
    info = await runner.service.workflows.show(runner.id)
    assert (info.state, info.target, bytes(info.params)) == ("running", "/foo", b'{"foo":"1","chicken":"2"}')  # type: ignore[arg-type]
    assert await runner.shared() == {"extra": [1]}
    assert await runner.results() == []


async def test_061_and_063_a_target_is_taken_for_the_same_parameters(runner: Runner) -> None:
    await runner.start(code(OK), target="/foo", params={"a": 1})
    with pytest.raises(Duplicate, match="same definition, target and params"):
        await runner.begin(target="/foo", params={"a": 1})
    await runner.begin(target="/foo", params={"a": 2})


async def test_a_repeated_start_is_a_duplicate_also_if_the_workflow_locks_its_own_target(runner: Runner) -> None:
    await runner.start(code(OK), target="/foo", locks="^/foo", params={"a": 1})
    with pytest.raises(Duplicate, match="same definition, target and params") as refused:
        await runner.begin(target="/foo", locks="^/foo", params={"a": 1})
    assert refused.value.details["existing_workflow_id"] == runner.id
    with pytest.raises(Conflict, match="currently locked by another workflow"):
        await runner.begin(target="/foo", params={"a": 2})


async def test_062_and_069_a_target_is_locked_until_the_job_is_over(runner: Runner) -> None:
    first = await runner.start(code(OK), target="/backup", locks="(modify|destroy)$")
    for target in ("/db/modify", "destroy"):
        with pytest.raises(Conflict, match="currently locked by another workflow") as refused:
            await runner.begin(target=target)
        assert refused.value.details["existing_workflow_id"] == first
    await runner.begin(target="/db/modify/not")
    await runner.work()
    await runner.begin(target="/db/modify")


async def test_064_and_065_jobs_are_run_in_the_order_in_which_they_were_made(runner: Runner) -> None:
    await runner.define("flow", code("def body(job): return job.params['n']"))
    for n in range(3):
        await runner.begin(params={"n": n})
    ended = await runner.work()
    assert [job.result for job in ended] == [b"0", b"1", b"2"]
    assert await runner.claim() is None


async def test_066_and_067_an_active_job_belongs_to_one_worker(runner: Runner) -> None:
    await runner.start(code(OK))
    job = await runner.claim("one")
    assert job is not None
    assert (job.state, job.worker_id) == ("active", "one")
    assert await runner.claim("two") is None
    reported = await runner.service.jobs.report(Progress(job.id, 0.5, None, "one", 1))
    assert (reported.state, reported.worker_id) == ("active", "one")
    assert [held.id for held in await runner.run(held_jobs, "one")] == [job.id]


async def test_068_a_finished_job_has_no_current_step_and_keeps_its_results(runner: Runner) -> None:
    await runner.start(code(OK))
    await runner.work()
    status = await runner.service.workflows.status(runner.id)
    assert (status.workflow.finished, status.current, len(status.results["steps"])) == (True, [], 1)


async def test_070_a_requeued_job_has_no_worker(runner: Runner) -> None:
    await runner.start(code(OK))
    job = await runner.claim("one")
    assert job is not None
    (released,) = await runner.service.jobs.release([Release(job.id, "one", 1)])
    assert (accepted(released).state, accepted(released).worker_id) == ("available", None)


async def test_075_definitions_are_listed(runner: Runner) -> None:
    for name in ("b", "a"):
        await runner.define(name, code(OK))
    assert [one.name for one in await runner.service.definitions.all()] == ["a", "b"]


async def test_076_jobs_are_counted_by_state_and_age(runner: Runner) -> None:
    await runner.start(code(OK))
    await runner.work()
    runner.clock.advance(5_400)
    await runner.begin()
    counts = await runner.service.workflows.statistics("flow")
    assert (counts.current["running"], counts.current["completed"], counts.past_hour["completed"]) == (1, 0, 1)
    runner.clock.advance(7_200)
    assert (await runner.service.workflows.statistics()).past_24h["completed"] == 1
    runner.clock.advance(86_400)
    assert (await runner.service.workflows.statistics()).all_time["completed"] == 1


async def test_077_jobs_are_found_by_state_definition_and_target(runner: Runner) -> None:
    await runner.start(code(OK), target="/a")
    await runner.work()
    await runner.begin(target="/a", params={"n": 1})
    await runner.begin(target="/b")

    async def count(**chosen: Any) -> int:
        return (await runner.service.workflows.select(WorkflowFilter(**chosen))).total

    assert await count() == 3
    assert await count(definition="flow", target="/a") == 2
    assert await count(states=("completed",), target="/a") == 1
    assert await count(states=("completed",), target="/b") == 0
    assert await count(states=("running",)) == 2
    assert await count(definition="other") == 0


async def test_078_notes_are_kept_in_order_and_need_an_existing_workflow(runner: Runner) -> None:
    await runner.start(code(OK))
    with pytest.raises(NotFound):
        await runner.service.notes.add_to_workflow("019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", b"1")
    with pytest.raises(NotFound):
        await runner.service.notes.of_workflow("nobody")
    for note in (b'{"10%":"one"}', b'{"20%":"two"}'):
        await runner.service.notes.add_to_workflow(runner.id, note)
    assert [bytes(one.note) for one in await runner.service.notes.of_workflow(runner.id)] == [
        b'{"10%":"one"}',
        b'{"20%":"two"}',
    ]


async def test_079_a_definition_is_deleted_once(runner: Runner) -> None:
    await runner.define("flow", code(OK))
    await runner.service.definitions.delete(DefinitionDeletion("flow"))
    with pytest.raises(NotFound):
        await runner.service.definitions.delete(DefinitionDeletion("flow"))


# Behaviour of node-workflow that its own tests do not cover


async def test_098_a_cancelled_job_that_has_not_run_never_does(runner: Runner) -> None:
    await runner.start(code(OK))
    await runner.service.workflows.cancel(runner.id)
    assert await runner.work() == []


async def test_101_going_back_to_the_queue_does_not_run_the_branch_for_errors(runner: Runner) -> None:
    await runner.start(code(REQUEUE), on_error=code("def body(job): job['wrong'] = 1"))
    await runner.work(patience=6)
    assert (await runner.state(), await runner.shared()) == ("completed", {"n": 1})


async def test_104_a_definition_with_a_bad_body_stores_nothing(runner: Runner) -> None:
    with pytest.raises(InvalidWorkflow):
        await runner.define("flow", code(OK), code("function(job, cb) {}"))
    assert await runner.service.definitions.all() == []


async def test_105_jobs_of_the_future_do_not_keep_others_from_running(runner: Runner) -> None:
    await runner.define("flow", code(OK))
    for _ in range(20):
        await runner.begin(scheduled_at="+PT1H")
    last = await runner.begin()
    assert len(await runner.work()) == 1
    assert (await runner.service.workflows.show(last)).state == "completed"


async def test_106_a_task_whose_process_dies_fails_at_once() -> None:
    dying = Sandbox(("os",), restricted=False)
    with pytest.raises(CodeFailed, match="status 9"):
        await dying.run(SandboxRequest("import os\ndef body(job): os._exit(9)"), timeout=20)


async def test_107_a_lost_runner_cancels_what_says_so_and_runs_that_branch(runner: Runner) -> None:
    await runner.start(code(LONG), on_cancel=code("def body(job): job['tidied'] = 1"), on_lost_worker="cancel")
    assert await runner.claim("lost") is not None
    await runner.service.fleet.leave("lost", lost=True)
    await runner.work()
    assert (await runner.state(), await runner.shared()) == ("cancelled", {"tidied": 1})


async def test_108_a_job_that_waits_keeps_its_target_and_its_locks(runner: Runner) -> None:
    await runner.start(code(WAIT), target="/a", locks="^/b$")
    await runner.work()
    with pytest.raises(Duplicate):
        await runner.begin(target="/a")
    with pytest.raises(Conflict):
        await runner.begin(target="/b")


async def test_109_parameters_are_compared_by_value(runner: Runner) -> None:
    await runner.start(code(OK), target="/a", params={"x": {"p": [0, None]}, "y": 0})
    with pytest.raises(Duplicate):
        await runner.begin(target="/a", params={"y": 0, "x": {"p": [0, None]}})
    await runner.begin(target="/a", params={"x": {"p": [0]}, "y": 0})
    await runner.begin(target="/a", params={})


async def test_110_a_lock_that_is_no_expression_is_refused(runner: Runner) -> None:
    await runner.define("flow", code(OK))
    for wrong in ("(", "", "(?=x)", "(a)\\1", "x" * 1_025, "((a{1000}){1000}){1000}"):
        with pytest.raises(InvalidRequest, match="locks"):
            await runner.begin(target="/a", locks=wrong)


async def test_112_an_exception_goes_through_retries_and_the_fallback_like_any_failure(runner: Runner) -> None:
    body = "def body(job):\n    job['tries'] = job.get('tries', 0) + 1\n    return 1 / 0"
    await runner.start(code(body, attempts=2, id="t", fallback=code("def body(job): return 'mended'")))
    await runner.work(patience=2)
    await runner.work()
    assert (await runner.state(), await runner.shared()) == ("completed", {"tries": 2})


async def test_115_notes_survive_waiting_and_going_back(runner: Runner) -> None:
    body = "def body(job):\n    info(job.get('n', 0))\n    job['n'] = job.get('n', 0) + 1\n"
    body += "    if job['n'] == 1: raise Snooze(0)\n    if job['n'] == 2: raise Wait(again=True)\n    return 'OK'"
    await runner.start(code(body))
    await runner.work()
    await runner.service.workflows.resume(WorkflowResumption(runner.id))
    await runner.work()
    notes = await runner.service.notes.of_workflow(runner.id)
    assert [bytes(note.note) for note in notes if note.step is None] == [b"0", b"1", b"2"]
    assert [note.step for note in notes if note.step is not None] == ["0"]  # who has answered
    assert await runner.state() == "completed"


# Races


@pytest.mark.parametrize("count", [50])
async def test_of_many_clients_that_lock_and_take_targets_at_once_none_gets_what_is_locked(
    runner: Runner, url: str, clock: Clock, count: int
) -> None:
    """Each workflow locks the targets of all others, so that only the first is created."""
    await runner.define("flow", step("a"))
    engines = [Service(open_database(url, clock=clock)) for _ in range(2)]
    try:
        attempts = [
            engines[place % 2].workflows.create(
                read_members(msgspec.json.encode({"definition": "flow", "target": f"/t/{place}", "locks": "^/t/"}))
            )
            for place in range(count)
        ]
        ends = await asyncio.gather(*attempts, return_exceptions=True)
    finally:
        for service in engines:
            await service.close()
    won = [end for end in ends if not isinstance(end, BaseException)]
    assert len(won) == 1
    assert all(isinstance(end, Conflict) for end in ends if isinstance(end, BaseException)), ends
    for end in ends:
        if isinstance(end, Conflict):
            assert end.details["existing_workflow_id"] == won[0].id


async def test_a_lock_and_a_creation_may_come_in_any_order_and_both_know_who_was_first(runner: Runner) -> None:
    for round in range(6):
        await runner.define("flow", step("a"))
        locking = {"definition": "flow", "target": f"/lock/{round}", "locks": f"^/x/{round}$"}
        taking = {"definition": "flow", "target": f"/x/{round}"}
        given = [locking, taking] if round % 2 else [taking, locking]
        ends = await asyncio.gather(
            *[runner.service.workflows.create(read_members(msgspec.json.encode(one))) for one in given],
            return_exceptions=True,
        )
        by_target = dict(zip([one["target"] for one in given], ends, strict=True))
        assert not isinstance(by_target[f"/lock/{round}"], BaseException)  # a lock does not prevent other locks
        other = by_target[f"/x/{round}"]
        assert not isinstance(other, BaseException) or isinstance(other, Conflict)
        with pytest.raises(Conflict, match="locked by another"):
            await runner.begin(target=f"/x/{round}", params={"n": 1})


async def test_a_failure_of_the_code_s_own_is_final_if_it_says_so(runner: Runner) -> None:
    await runner.start(code("def body(job): raise Fail('no', retryable=False)", attempts=5))
    (job,) = await runner.work()
    assert (job.state, job.outcome) == ("discarded", "failure")
    report = FailureReport(job.id, Failure("Late", "word"), "runner", 1)
    (late,) = await runner.service.jobs.fail([report])
    assert isinstance(late, Conflict)
