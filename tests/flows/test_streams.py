"""Streams of flows: what they and their jobs append, once, and what readers follow."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from ojster import App, Flow, JobContext, JobFailed, chain
from ojster.cli.main import cli
from ojster.core.access import Access, Operation
from ojster.core.errors import Conflict, Forbidden, InvalidRequest, NotFound, OjsterError, PayloadTooLarge
from ojster.handlers.flow_export import export_flow
from ojster.jobs.scope import Caller
from ojster.service import Service
from ojster.testing import JobTester, areplay, crash_everywhere
from ojster.workflows import stream as limits
from ojster.workflows.run import streams
from ojster.workflows.run.fork import Fork
from ojster.workflows.stream import StreamAddress, StreamAppend
from tests.conftest import Http
from tests.flows.driver import NEVER, FlowBench
from tests.flows.test_flows import app, bench, result
from tests.serving import serving
from tests.waiting import PATIENCE
from tests.worker.test_worker import working

__all__ = ["app", "bench"]

pytestmark = pytest.mark.anyio


class Word(msgspec.Struct):
    text: str


def declare(app: App) -> Any:
    """A flow that says words itself, in a local step and in a job, and closes the stream before it ends."""

    @app.job("shout")
    async def shout(job: JobContext, word: str) -> str:
        await job.stream("words").aappend({"text": word.upper()}, {"text": "!"})
        return word

    @app.flow("speech")
    async def speech(flow: Flow) -> int:
        async def speak(word: str) -> str:
            await flow.job.stream("words").aappend(Word(word))
            return word

        words = flow.stream("words", Word)
        words.append(Word("begin"))
        await flow.step("speak", speak, "step")
        words.append(Word("middle"))
        await flow.run(shout, "job")
        await flow.receive("go")
        words.append(Word("last"))
        words.close()
        await flow.receive("end")
        return 1

    return speech


SAID = ["begin", "step", "middle", "JOB", "!"]


async def said(bench: FlowBench, after: int = 0) -> list[str]:
    chunks, _ = await bench.stream("words", after)
    return [chunk["text"] for chunk in chunks]


async def test_flows_local_steps_and_jobs_append_to_one_stream_which_ends_when_it_is_closed(bench: FlowBench) -> None:
    await bench.start(declare(bench.app).s())
    assert await bench.stream("words") == ([], False)
    await bench.work()
    assert await said(bench) == SAID
    assert await said(bench, after=3) == ["JOB", "!"]
    assert await bench.stream("words", after=5) == ([], False)
    await bench.send("go", None)
    await bench.work()
    assert await bench.stream("words", after=5) == ([{"text": "last"}], True)
    assert await bench.stream("words", after=99) == ([], True)
    assert await bench.stream("other") == ([], False), "the run may begin another one"
    await bench.send("end", None)
    assert await result(bench) == 1
    assert await said(bench) == [*SAID, "last"], "it stays with the run"
    assert await bench.stream("other") == ([], True), "the end of the run ends all"


@pytest.mark.parametrize("when", ["before", "after", "lost"])
async def test_the_function_appends_once_wherever_its_process_dies(bench: FlowBench, when: str) -> None:
    @bench.app.flow("count")
    async def count(flow: Flow) -> None:
        numbers = flow.stream("numbers", int)
        for number in range(3):
            numbers.append(number)
            await flow.step("add", int)
            numbers.append(-number)
            await flow.run(bench.note, "a")
        flow.stream("others").append("x")
        numbers.close()

    for place in range(9):
        bench.when = partial(lambda place, number: when if number == place else NEVER, place)
        bench.calls.count = 0
        await bench.start(count.s())
        await bench.finish()
        assert await bench.stream("numbers") == ([0, 0, 1, -1, 2, -2], True), place
        assert await bench.stream("others") == (["x"], True)


async def test_a_step_that_runs_again_appends_again(bench: FlowBench) -> None:
    @bench.app.job("speak", retry=2)
    async def speak(job: JobContext) -> None:
        await job.stream("words").aappend({"text": f"attempt {job.attempt}"})
        if job.attempt == 1:
            raise ValueError("broken")

    await bench.start(chain(speak.s()))
    await bench.finish()
    assert await said(bench) == ["attempt 1", "attempt 2"], "also in workflows that are no flows"


async def test_a_retried_flow_appends_what_is_new_and_goes_on_with_a_closed_stream(bench: FlowBench) -> None:
    broken = [True]

    @bench.app.job("check", retry=1)
    async def check() -> None:
        bench.clock.advance(1)
        if broken:
            raise ValueError("broken")

    @bench.app.flow("report")
    async def report(flow: Flow) -> None:
        words = flow.stream("words", Word)
        words.append(Word("begin"))
        try:
            await flow.run(check)
            words.append(Word("checked"))
        except JobFailed:
            words.append(Word("failed"))
            raise
        finally:
            words.close()

    await bench.start(report.s())
    await bench.finish()
    assert await bench.stream("words") == ([{"text": "begin"}, {"text": "failed"}], True)
    broken.clear()
    await bench.service.workflows.retry(bench.id)
    assert await bench.stream("words", 2) == ([], False), "it is open again"
    await bench.finish()
    assert await said(bench) == ["begin", "failed", "checked"]


async def test_a_fork_has_streams_of_its_own_with_all_that_its_function_appends(bench: FlowBench) -> None:
    @bench.app.flow("forked")
    async def forked(flow: Flow) -> None:
        words = flow.stream("words", Word)
        words.append(Word("begin"))
        await flow.run(bench.note, "a")
        words.append(Word("end"))
        words.close()

    await bench.start(forked.s())
    await bench.finish()
    bench.id = (await bench.service.workflows.fork(Fork(bench.id, "note"))).id
    assert await said(bench) == []
    await bench.finish()
    assert await bench.stream("words") == ([{"text": "begin"}, {"text": "end"}], True)


async def test_nothing_follows_the_end_of_a_stream(bench: FlowBench) -> None:
    @bench.app.job("late", retry=1)
    async def late(job: JobContext) -> None:
        await job.stream("words").aappend("late")

    @bench.app.flow("closing")
    async def closing(flow: Flow, by_itself: bool) -> None:
        flow.stream("words").close()
        if by_itself:
            flow.stream("words").append("late")
        else:
            await flow.run(late)

    for by_itself in (True, False):
        await bench.start(closing.s(by_itself))
        ended = await bench.finish()
        assert ended.state == "failed"
        assert b"is closed" in ended.to_json(), by_itself
        assert await bench.stream("words") == ([], True)


@pytest.mark.parametrize(
    ("limit", "value", "error"),
    [
        ("MAX_CHUNKS", 2, PayloadTooLarge),
        ("MAX_STREAM_BYTES", 6, PayloadTooLarge),
        ("MAX_CHUNK_BYTES", 2, PayloadTooLarge),
        ("MAX_STREAMS", 0, InvalidRequest),
        ("MAX_STREAM_NAME", 4, InvalidRequest),
    ],
)
async def test_streams_are_bounded_and_what_is_refused_changes_nothing(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, error: type[OjsterError]
) -> None:
    await bench.start(chain(bench.note.s("x")))
    job = await bench.fetch_one(worker_id="w1")
    await bench.service.flows.append(StreamAppend(job.id, "kept", (b"1",)))
    monkeypatch.setattr(streams, limit, value)
    item = StreamAppend(job.id, "words", (b"123", b"456", b"789"), None, "w1", job.attempt, job.started_at)
    with pytest.raises(error):
        await bench.service.flows.append(item)
    assert await bench.stream("words") == ([], False)
    assert await bench.stream("kept") == ([1], False)


async def test_a_function_that_appends_too_much_fails_and_one_value_too_large_is_its_error(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.app.flow("large")
    async def large(flow: Flow) -> None:
        with contextlib.suppress(ValueError):
            flow.stream("words").append("x" * limits.MAX_CHUNK_BYTES)
        with contextlib.suppress(ValueError):
            flow.stream("")
        for number in range(3):
            flow.stream("words").append(number)

    monkeypatch.setattr(streams, "MAX_CHUNKS", 2)
    await bench.start(large.s())
    ended = await bench.finish()
    assert (ended.state, b"at most 2 chunks" in ended.to_json()) == ("failed", True)


async def test_only_the_attempt_that_runs_appends_and_the_same_append_is_made_once(bench: FlowBench) -> None:
    flows = bench.service.flows
    await bench.start(chain(bench.note.s("x")))
    job = await bench.fetch_one(worker_id="w1")
    item = StreamAppend(job.id, "words", (b"1", b"2"), "key", "w1", job.attempt, job.started_at)
    assert [await flows.append(item) for _ in range(2)] == [2, 2]
    changed = msgspec.structs.replace
    for stale in (changed(item, worker_id="w2"), changed(item, attempt=7), changed(item, started_at=1)):
        with pytest.raises(Conflict):
            await flows.append(changed(stale, append_id=None))
    await bench.ack(job)
    with pytest.raises(Conflict, match="not active"):
        await flows.append(changed(item, append_id=None))
    assert await bench.stream("words") == ([1, 2], True)
    plain = await bench.push("plain")
    await bench.fetch_one()
    with pytest.raises(InvalidRequest, match="belongs to no workflow"):
        await flows.append(StreamAppend(plain.id, "words", (b"1",)))
    with pytest.raises(NotFound):
        await flows.append(StreamAppend("0190a6f0-0000-7000-8000-000000000000", "words", (b"1",)))


async def test_streams_belong_to_one_tenant_and_are_written_by_workers(bench: FlowBench) -> None:
    await bench.start(chain(bench.note.s("x")))
    job = await bench.fetch_one()
    stranger = bench.service.as_(Caller("other")).flows
    with pytest.raises(NotFound):
        await stranger.read_stream(StreamAddress(bench.id, "words"))
    with pytest.raises(NotFound):
        await stranger.append(StreamAppend(job.id, "words", (b"1",)))
    access = Access("p", frozenset({Operation.DEQUEUE}), ("mail",))
    with pytest.raises(Forbidden):
        await bench.service.as_(Caller(None, access)).flows.append(StreamAppend(job.id, "words", (b"1",)))


async def test_many_readers_of_one_position_share_one_read_and_are_woken_by_the_append(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[StreamAddress] = []
    page = streams._page

    def counted(tx: Any, address: StreamAddress) -> Any:
        reads.append(address)
        return page(tx, address)

    monkeypatch.setattr(streams, "_page", counted)
    await bench.start(chain(bench.note.s("x")))
    job = await bench.fetch_one()
    address = StreamAddress(bench.id, "words")
    readers = [asyncio.create_task(bench.service.flows.read_stream(address, 60_000)) for _ in range(100)]
    while len(bench.service.database.wakeups._waiters.get(f"stream:{bench.id}", ())) < 100 or not reads:
        await asyncio.sleep(0.001)
    await bench.service.flows.read_stream(address)  # after those of the readers
    before = len(reads)
    await bench.service.flows.append(StreamAppend(job.id, "words", (b"1",)))
    async with asyncio.timeout(PATIENCE):
        pages = await asyncio.gather(*readers)
    assert {(found.chunks[0].number, found.has_ended) for found in pages} == {(1, False)}
    assert len(reads) - before < 20, "a few transactions serve them all"


async def test_the_end_of_the_run_wakes_readers(bench: FlowBench) -> None:
    await bench.start(chain(bench.note.s("x")))
    job = await bench.fetch_one()
    reader = asyncio.create_task(bench.service.flows.read_stream(StreamAddress(bench.id, "words"), 60_000))
    while f"stream:{bench.id}" not in bench.service.database.wakeups._waiters:
        await asyncio.sleep(0.001)
    await bench.ack(job)
    async with asyncio.timeout(PATIENCE):
        assert (await reader).has_ended


async def test_streams_are_deleted_with_the_workflow_in_parts(bench: FlowBench) -> None:
    await bench.start(chain(bench.note.s("x")), expiration_delay=1)
    job = await bench.fetch_one()
    for name in ("words", "others"):
        await bench.service.flows.append(StreamAppend(job.id, name, (b"1",) * 200))
    await bench.ack(job)
    bench.clock.advance(100)
    await bench.service.maintenance.prune()
    with pytest.raises(NotFound):
        await bench.stream("words")
    assert [await bench.run(_count, table) for table in ("streams", "stream_chunks")] == [0, 0]


def _count(tx: Any, tables: Any) -> list[int]:
    return [tx.execute(f"SELECT count(*) FROM {table}")[0][0] for table in tables]


async def test_a_run_with_streams_is_exported_and_replayed(bench: FlowBench, tmp_path: Path) -> None:
    speech = declare(bench.app)
    await bench.start(speech.s())
    await bench.work()
    await bench.send("go", None)
    await bench.send("end", None)
    await bench.finish()
    file = tmp_path / "run.json"
    file.write_bytes(msgspec.json.encode(await export_flow(bench.service, bench.id)))
    assert await areplay(speech, file) == 1


async def test_a_run_is_followed_over_http_from_python(service: Service) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")
        speech = declare(app)
        async with working(app), asyncio.timeout(PATIENCE):
            run = await speech.astart()
            heard = []
            async for word in run.stream("words", Word):
                heard.append(word.text)
                if word.text == "!":
                    await run.asend("go")
            assert heard == [*SAID, "last"]
            rest = run.stream("words", Word, after=4)
            assert await asyncio.to_thread(lambda: [word.text for word in rest]) == ["!", "last"]
            assert rest.position == 6
            assert [word async for word in rest] == [], "it goes on where it was"
            with pytest.raises(TypeError, match="Chunk 1 of the stream 'words'"):
                [chunk async for chunk in run.stream("words", int)]
            with pytest.raises(ValueError, match="not -1"):
                run.stream("words", after=-1)
            await run.asend("end")
            assert await run.aresult() == 1
        await app.aclose()


async def test_browsers_follow_a_stream_and_go_on_after_their_last_event(service: Service) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")
        speech = declare(app)
        async with working(app), asyncio.timeout(PATIENCE), httpx.AsyncClient() as client:
            run = await speech.astart()
            url = f"http://127.0.0.1:{port}/ojs/v1/workflows/{run.id}/streams/words/events"
            lines: list[str] = []
            async with client.stream("GET", url) as answer:
                assert answer.headers["content-type"] == "text/event-stream"
                async for line in answer.aiter_lines():
                    lines.append(line)
                    if line.startswith("data") and "!" in line:
                        await run.asend("go")
            ids = [line for line in lines if line.startswith("id")]
            assert ids == [f"id: {number}" for number in range(1, 7)]
            assert [line for line in lines if line][-4:] == [
                "event: chunk",
                'data: {"text":"last"}',
                "event: end",
                "data: {}",
            ]
            again = await client.get(url, headers={"Last-Event-ID": "5"})
            assert again.text.split("\n\n")[1:] == [
                'id: 6\nevent: chunk\ndata: {"text":"last"}',
                "event: end\ndata: {}",
                "",
            ]
            assert (await client.get(url, params={"last_event_id": "x"})).status_code == 400
            assert (await client.get(url.replace(run.id, "0190a6f0-0000-7000-8000-000000000000"))).status_code == 404
            await run.asend("end")
        await app.aclose()


async def test_chunks_are_pages_of_json(http: Http, bench: FlowBench) -> None:
    await bench.start(chain(bench.note.s("x")))
    job = await bench.fetch_one(worker_id="w1")
    path = f"/ojs/v1/jobs/{job.id}/streams/a%20b"
    body = {"values": [{"x": 1}, None], "worker_id": "w1", "attempt": job.attempt, "append_id": "one"}
    assert [(await http("POST", path, body)).json() for _ in range(2)] == [{"number": 2}] * 2
    assert (await http("POST", path, {"values": []})).status_code == 400
    assert (await http("POST", path, {"values": [1], "worker_id": "w2"})).status_code == 409
    page = (await http("GET", f"/ojs/v1/workflows/{bench.id}/streams/a%20b?after=1")).json()
    assert ([(chunk["number"], chunk["value"]) for chunk in page["chunks"]], page["has_ended"]) == ([(2, None)], False)
    assert (await http("GET", f"/ojs/v1/workflows/{bench.id}/streams/a?after=-1")).status_code == 400


async def test_streams_are_followed_in_the_shell(file_url: str) -> None:
    app = App(file_url)
    speech = declare(app)
    async with working(app):
        run = await speech.astart()
        await run.asend("go")
        await run.asend("end")
        done = await asyncio.to_thread(CliRunner().invoke, cli, ["flows", "stream", run.id, "words", "--url", file_url])
        assert done.output.splitlines() == [f'{{"text":"{word}"}}' for word in [*SAID, "last"]]
        words = ["flows", "stream", run.id, "words", "--after", "5", "--numbers", "--url", file_url]
        done = await asyncio.to_thread(CliRunner().invoke, cli, words)
        shown = msgspec.json.decode(done.output)
        assert (shown["number"], shown["value"]) == (6, {"text": "last"})
    await app.aclose()


def test_streams_are_tested_in_memory_and_survive_crashes_everywhere() -> None:
    app = App()
    speech = declare(app)
    with JobTester(app) as jobs:
        run = speech.start()
        run.send("go")
        run.send("end")
        jobs.finish(run)
        assert [word.text for word in run.stream("words", Word)] == [*SAID, "last"]

    def script(run: Any, jobs: Any) -> None:
        run.send("go")
        run.send("end")

    crash_everywhere(speech, script=script)
    app.close()
