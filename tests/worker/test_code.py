"""Jobs that carry code: workers with a sandbox run them, with the properties and results of their workflow."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import ojster
from ojster import App, InvalidRequest, Worker, WorkflowFailed, chain
from ojster.api.workflow_handle import Run
from ojster.core.json_objects import read_members
from ojster.jobs.code import CODE_TYPE
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.sandbox.sandbox import Sandbox
from tests.sandbox.constructs import CONSTRUCTS, recursion
from tests.waiting import PATIENCE
from tests.workflows.test_workflows_in_python import url

__all__ = ["url"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux confines code"),
]


def code(body: str, *args: Any, **more: Any) -> dict[str, Any]:
    """A step that carries code."""
    return {"body": body, "args": list(args), "options": {"retry": {"max_attempts": 1}}} | more


@asynccontextmanager
async def working(app: App, **more: Any) -> AsyncIterator[Worker]:
    worker = Worker(app, **more)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop(grace=1)
        await task


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    made = App(url)
    yield made
    await made.aclose()


async def start(app: App, *steps: dict[str, Any], **more: Any) -> Run:
    wire = {"type": "chain", "steps": list(steps)} | more
    return Run(app, await app.client().workflows.create(read_members(msgspec.json.encode(wire))))


async def test_a_chain_of_code_shares_properties_and_passes_results_on(app: App) -> None:
    steps = [
        code("def body(job):\n    job['seen'] = job.params['name']\n    info('begun')\n    return [1, 2]"),
        code(
            "def body(job, given):\n    job['seen'] += '!'\n    return [job.results['0'], given]",
            {"$ref": "params.name"},
        ),
    ]
    run = await start(app, *steps, params={"name": "ada"})
    async with working(app, code=Sandbox()):
        assert await run.aresult(PATIENCE) == [[1, 2], "ada"]
    assert await run.aproperties() == {"seen": "ada!"}
    assert await run.anotes() == ["begun"]
    assert [step.type for step in run.info.steps] == [CODE_TYPE, CODE_TYPE]  # type: ignore[union-attr]


async def test_a_worker_that_was_not_told_to_run_code_leaves_it_to_others(app: App) -> None:
    run = await start(app, code("def body(job): return 'run'"))

    @app.job("note")
    def note() -> str:
        return "noted"

    async with working(app, capabilities={"labels": {"region": "eu"}}):
        assert await (await note.aenqueue()).aresult(PATIENCE) == "noted"
        assert (await app.client().workflows.status(run.id)).current[0].state == "available"
    async with working(app, code=Sandbox()) as worker:
        assert await run.aresult(PATIENCE) == "run"
        assert worker.capabilities == {"labels": {"ojster.code": "confined"}}


TWICE = """
def body(job):
    job["tries"] = job.get("tries", 0) + 1
    if job["tries"] < 2:
        raise ValueError("not yet")
"""


async def test_code_has_a_fallback_and_retries_and_keeps_what_it_shares(app: App) -> None:
    again = code(TWICE, options={"retry": {"max_attempts": 2, "initial_interval": "PT0.01S"}})
    mend = code("def body(job, error): return 'mended: ' + error['message']", {"$ref": "steps.risky.error"})
    run = await start(app, again, code("def body(job): raise ValueError('no')", id="risky", fallback=mend))
    async with working(app, code=Sandbox()):
        assert await run.aresult(PATIENCE) == "mended: no"
    assert await run.aproperties() == {"tries": 2}


async def test_code_waits_goes_back_skips_and_fails(app: App) -> None:
    run = await start(
        app,
        code("def body(job):\n    if job.resumed is None: raise Wait(60, again=True)\n    return job.resumed"),
        code("def body(job):\n    job['n'] = job.get('n', 0) + 1\n    if job['n'] < 3: raise Snooze(0)"),
        code("def body(job): raise SkipRest('enough')"),
        code("def body(job): raise ValueError('it is not to be run')"),
    )
    async with working(app, code=Sandbox()):
        while not any(one.state == "waiting" for one in (await run.astatus()).current):
            await asyncio.sleep(0.05)
        await run.aresume({"yes": 1})
        await run.aresult(PATIENCE)
        assert await run.aproperties() == {"n": 3}
        wrong = code("def body(job): raise Fail('no', code='teapot')")
        failing = await start(app, wrong, on_error=code("def body(job): 1"))
        with pytest.raises(WorkflowFailed) as failed:
            await failing.aresult(PATIENCE)
    assert failed.value.error is not None
    assert failed.value.error.errors[0]["code"] == "teapot"
    assert list((await failing.astatus()).results) == ["steps", "on_error"]


async def test_parallel_code_that_changes_the_same_property_runs_again_and_loses_nothing(app: App) -> None:
    body = "import time\ndef body(job):\n    n = job.get('n', 0)\n    time.sleep(0.2)\n    job['n'] = n + 1"
    wire = {"type": "group", "jobs": [code(body) for _ in range(4)]}
    run = Run(app, await app.client().workflows.create(read_members(msgspec.json.encode(wire))))
    async with working(app, code=Sandbox()):
        await run.aresult(PATIENCE)
    assert await run.aproperties() == {"n": 4}


async def test_a_time_out_kills_code(app: App) -> None:
    run = await start(app, code("def body(job):\n    while True: pass", timeout=1))
    async with working(app, code=Sandbox()):
        with pytest.raises(WorkflowFailed) as failed:
            await run.aresult(PATIENCE)
    assert failed.value.error is not None
    assert failed.value.error.errors[0]["code"] == "timeout"


async def test_code_is_a_snapshot_of_its_definition_and_hashed_with_it(app: App) -> None:
    client = app.client()
    first = {"type": "chain", "steps": [code("def body(job): return 1")]}
    made = await client.definitions.create("flow", read_members(msgspec.json.encode(first)))
    run = Run(app, await client.workflows.create(read_members(b'{"definition":"flow"}')))
    second = {"type": "chain", "steps": [code("def body(job): return 2")]}
    changed = await client.definitions.update("flow", read_members(msgspec.json.encode(second)))
    assert made.hashes["steps"] != changed.hashes["steps"]
    async with working(app, code=Sandbox()):
        assert await run.aresult(PATIENCE) == 1


async def test_code_in_a_definition_that_is_a_step_sees_the_parameters_of_that_definition(app: App) -> None:
    broken = code("def body(job): raise ValueError(job.params['name'])")
    steps = [code("def body(job): return job.params"), broken | {"fallback": code("def body(job): return job.params")}]
    inner = read_members(msgspec.json.encode({"type": "group", "jobs": steps}))
    await app.client().definitions.create("greet", inner)
    mail = {"type": "chain", "steps": [{"definition": "greet", "params": {"name": {"$ref": "params.to"}}}]}
    await app.client().definitions.create("mail", read_members(msgspec.json.encode(mail)))
    outer = {"definition": "mail", "params": {"to": {"$ref": "steps.0.result.to"}}}
    run = await start(app, code("def body(job): return job.params"), outer, params={"to": "ada"})
    async with working(app, code=Sandbox()):
        assert await run.aresult(PATIENCE) == [{"name": "ada"}, {"name": "ada"}]


async def test_code_that_cannot_be_run_is_refused_when_its_workflow_is_created(app: App) -> None:
    with pytest.raises(InvalidRequest, match="not valid Python"):
        await start(app, code("def body(job"))
    with pytest.raises(InvalidRequest, match="must define one function"):
        await start(app, {"type": CODE_TYPE, "body": "x = 1"})
    for request in (b'{"type":"ojster.code","args":[]}', b'{"type":"t","args":[],"ojster_code":{"body":"x"}}'):
        with pytest.raises(InvalidRequest, match="ojster_code"):
            await app.client().jobs.enqueue([read_members(request)])
    plain = {"type": "mail", "args": [], "body": "a word, and no code"}
    assert (await start(app, plain)).state == "running"


async def test_code_that_returns_what_is_no_text_fails_with_what_is_wrong(app: App) -> None:
    body = "def body(job):\n    print('\\ud800')\n    {}"
    bodies = [body.format(line) for line in ("return '\\ud800'", "job['x'] = '\\ud800'", "info('\\ud800')")]
    runs = [await start(app, code(text)) for text in [*bodies, body.format("raise ValueError('no \\ud800')")]]
    said = []
    async with working(app, code=Sandbox()):
        for run in runs:
            with pytest.raises(WorkflowFailed) as failed:
                await run.aresult(PATIENCE)
            assert failed.value.error is not None
            said.append((failed.value.error.errors[0]["type"], failed.value.error.errors[0]["message"]))
    why = "'utf-8' codec can't encode character '\\ud800'"
    assert [type for type, _ in said] == ["TypeError", "TypeError", "UnicodeEncodeError", "ValueError"]
    assert all(
        message.startswith(f"The result and the properties must be JSON values: {why}") for _, message in said[:2]
    )
    assert said[2][1].startswith(why)
    assert said[3][1] == "no ?"


@pytest.mark.parametrize(
    "body",
    [
        "job[''] = 1",
        "job['x'] = 'y' * 70_000",
        "job['a\\0b'] = 1",
        "job.update({str(n): n for n in range(1_100)})",
        "deep = None\n    for _ in range(600): deep = [deep]\n    job['x'] = deep",
        "deep = None\n    for _ in range(600): deep = [deep]\n    return deep",
        "deep = None\n    for _ in range(600): deep = [deep]\n    raise SkipRest(deep)",
        "deep = None\n    for _ in range(600): deep = [deep]\n    raise Fail('no', details={'x': deep})",
    ],
)
async def test_an_invalid_result_of_code_affects_only_its_own_job(app: App, body: str) -> None:
    @app.job("plain")
    async def plain() -> str:
        return "fine"

    run = await start(app, code(f"def body(job):\n    {body}"))
    other = await plain.aenqueue()
    async with working(app, code=Sandbox()):
        assert await other.aresult(PATIENCE) == "fine"
        async with asyncio.timeout(PATIENCE):
            while not (await run.arefresh()).finished:
                await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_code_does_what_the_function_does_whose_source_it_is(file_url: str) -> None:
    app = App(file_url)  # however the worker reaches its database: the sandbox runs the code
    steps = [ojster.code(function, attempts=1) for function in CONSTRUCTS.values()]
    steps.append(ojster.code(recursion, 6, attempts=1))
    runs = [await app.astart(chain(step)) for step in steps]
    async with working(app, code=Sandbox(), concurrency=4):
        results = [await run.aresult(100) for run in runs]
    await app.aclose()
    expected = [function({}) for function in CONSTRUCTS.values()] + [recursion({}, 6)]
    assert results == json.loads(json.dumps(expected))


async def declared_async(job: Any) -> None: ...


def generator(job: Any) -> Iterator[int]:
    yield 1


def _private(job: Any) -> None: ...


def same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@same
def decorated(job: Any) -> None: ...


def closure() -> Callable[..., Any]:
    outer = 1

    def inner(job: Any) -> int:
        return outer

    return inner


def two(job: Any, number: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "why"),
    [
        (declared_async, (), "Declare it with 'def'"),
        (generator, (), "Return a list"),
        (_private, (), "Rename it"),
        (decorated, (), "without them"),
        (closure(), (), r"around it \(outer\). Pass them"),
        (lambda job: job, (), "Write a function with 'def'"),
        (len, (), "Write one with 'def'"),
        (two, (), "missing a required argument: 'number'"),
        (two, (1, 2), "too many positional arguments"),
    ],
)
def test_a_function_that_its_source_alone_does_not_make_is_refused(
    function: Callable[..., Any], args: tuple[Any, ...], why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        ojster.code(function, *args)


@pytest.mark.parametrize(
    ("given_up", "attempts"),
    [("builtins.LookupError", 1), ("builtins.KeyError", 1), ("Own", 1), ("KeyError", 2), ("builtins.OSError", 2)],
)
async def test_code_is_not_tried_again_after_an_error_of_a_class_that_its_policy_names(
    app: App, given_up: str, attempts: int
) -> None:
    body = """
class Own(KeyError):
    pass

class Narrow(Own):
    pass

def body(job):
    raise Narrow("no")
"""
    retry = {"max_attempts": 2, "initial_interval": "PT0.01S", "jitter": False, "non_retryable_errors": [given_up]}
    run = await start(app, code(body, options={"retry": retry}))
    async with working(app, code=Sandbox()):
        with pytest.raises(WorkflowFailed):
            await run.aresult(PATIENCE)
    (job,) = (await app.client().jobs.select(JobFilter(type=CODE_TYPE), Page(1))).jobs
    assert job.attempt == attempts
