"""Flows of an application with codecs: the server keeps nothing of theirs in clear but results of jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from ojster import App, Encryption, Flow, Gzip, UpdateFailed, Worker, chain, current_job, param, result_of
from ojster.cli.main import cli
from ojster.handlers.flow_export import export_flow
from ojster.testing import JobTester, areplay
from ojster.workflows.run.fork import Fork
from tests.waiting import PATIENCE
from tests.worker.test_worker import working

pytestmark = pytest.mark.anyio

OLD, NEW = b"o" * 32, b"n" * 32
SECRETS = (
    "4111 1111",
    "Ada Lovelace",
    "golden rank",
    "oolong tea",
    "too dear",
    "by the window",
    "an aside",
    "a whisper",
)


def application(url: str, *codecs: Any) -> tuple[App, Any, Any]:
    app = App(url, codecs=codecs)

    @app.job("charge", retry=1)
    async def charge(card: str, total: int) -> int:
        assert card == "4111 1111"
        await current_job().stream("said").aappend("a whisper")
        return total

    @app.flow("order")
    async def order(flow: Flow, name: str, card: str) -> int:
        flow.state = name
        flow.publish({"of": name})
        flow.stream("said").append("an aside")
        assert await flow.step("rank", lambda who: {"rank": "golden rank", "of": who}, name) == {
            "rank": "golden rank",
            "of": name,
        }
        first = await flow.receive("wish", str)
        more = await flow.receive_many("seat", str)
        assert (first, more) == ("too dear", ["by the window", "by the window"])
        return await flow.run(charge, card, 42)

    @order.update
    async def put(flow: Flow, item: str) -> str:
        if item == "":
            raise ValueError("no name")
        return f"{item} for {flow.state}"

    return app, order, put


async def use(app: App, order: Any, put: Any) -> Any:
    run = await order.astart("Ada Lovelace", "4111 1111")
    async with working(app):
        assert await run.aupdate(put, "oolong tea") == "oolong tea for Ada Lovelace"
        with pytest.raises(UpdateFailed, match="no name"):
            await run.aupdate(put, "")
        await run.asend("seat", "by the window")
        await run.asend("seat", "by the window")
        await run.asend("wish", "too dear")
        assert await run.aresult(PATIENCE) == 42
        assert await run.apublished() == {"of": "Ada Lovelace"}
        assert [value async for value in run.stream("said", str)] == ["an aside", "a whisper"]
    return run


async def test_a_flow_with_codecs_does_what_it_does_without(shared_url: str) -> None:
    app, order, put = application(shared_url, Gzip(), Encryption({"k": NEW}))
    try:
        run = await use(app, order, put)
        exported = await export_flow(app.client(), run.id)
        assert {record.input.partition(":")[0] for record in exported.records if record.input} == {"k"}
    finally:
        await app.aclose()


async def test_the_file_of_the_database_has_nothing_in_clear_but_results_of_jobs(tmp_path: Path) -> None:
    plain, order, put = application(f"sqlite:///{tmp_path}/plain.db")
    coded, coded_order, coded_put = application(f"sqlite:///{tmp_path}/coded.db", Encryption({"k": NEW}))
    try:
        await use(plain, order, put)
        await use(coded, coded_order, coded_put)
    finally:
        await plain.aclose()
        await coded.aclose()
    stored = {name: b"".join(file.read_bytes() for file in tmp_path.glob(f"{name}.db*")) for name in ("plain", "coded")}
    for secret in SECRETS:
        assert secret.encode() in stored["plain"], "it is looked for where it would be"
        assert secret.encode() not in stored["coded"], secret


SHOP = """
from ojster import App, Encryption
app = App("{url}", codecs=[Encryption({{"k": bytes.fromhex("{key}")}})])
"""


async def test_commands_encode_and_decode_as_the_application_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "encoded_shop.py").write_text(SHOP.format(url=url, key=NEW.hex()))
    app, order, _ = application(url, Encryption({"k": NEW}))

    async def flows(*words: str) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, cli, ["flows", *words])
        assert done.exit_code == 0, done.output
        return str(done.stdout)

    try:
        run = await order.astart("Ada Lovelace", "4111 1111")
        shop = ("--app", "encoded_shop:app")
        async with working(app):
            assert '"oolong tea for Ada Lovelace"' in await flows("update", run.id, "put", "oolong tea", *shop)
            for name, data in (("seat", "by the window"), ("seat", "by the window"), ("wish", "too dear")):
                await flows("send", run.id, name, "--data", data, *shop)
            assert await run.aresult(PATIENCE) == 42
        assert '"Ada Lovelace"' in await flows("published", run.id, *shop)
        assert "a whisper" in await flows("stream", run.id, "said", *shop)
        assert "ojs_encoded" in await flows("published", run.id, "--url", url)
        assert "ojs_encoded" in await flows("stream", run.id, "said", "--url", url)
    finally:
        await app.aclose()
    assert b"by the window" not in b"".join(file.read_bytes() for file in tmp_path.glob("shop.db*"))


async def test_a_flow_goes_on_when_the_key_has_been_exchanged(shared_url: str) -> None:
    before, order, _ = application(shared_url, Encryption({"old": OLD}))
    after, _, after_put = application(shared_url, Encryption({"old": OLD, "new": NEW}))
    try:
        run = await order.astart("Ada Lovelace", "4111 1111")
        await Worker(before).run(until_empty=True)
        again = await after.afind_workflow(run.id)
        async with working(after):
            assert await again.aupdate(after_put, "oolong tea") == "oolong tea for Ada Lovelace"
            for name, data in (("seat", "by the window"), ("seat", "by the window"), ("wish", "too dear")):
                await again.asend(name, data)
            assert await again.aresult(PATIENCE) == 42
            forked = await again.afork(args=["Grace Hopper", "4111 1111"])
            assert await forked.aresult(PATIENCE) == 42
            assert await forked.apublished() == {"of": "Grace Hopper"}
            assert await (await forked.afork("charge", args=["4111 1111", 7])).aresult(PATIENCE) == 7
    finally:
        await before.aclose()
        await after.aclose()


async def test_a_run_with_codecs_is_replayed(tmp_path: Path) -> None:
    app, order, put = application(f"sqlite:///{tmp_path}/jobs.db", Gzip(), Encryption({"k": NEW}))
    try:
        run = await use(app, order, put)
        file = tmp_path / "run.json"
        file.write_bytes(msgspec.json.encode(await export_flow(app.client(), run.id)))
        assert await areplay(order, file) == 42
    finally:
        await app.aclose()


def test_steps_with_data_are_encoded_and_steps_with_references_are_refused() -> None:
    app = App(codecs=[Encryption({"k": NEW})])
    seen = []

    @app.job
    def keep(*args: Any) -> None:
        seen.append(args)

    @app.flow("keeping")
    async def keeping(flow: Flow, value: Any) -> None:
        await flow.run(keep, value)

    with JobTester(app) as jobs:
        run = app.start(chain(keep.s("first"), keeping.s("second"), keep.s({"ref": 3})))
        reference = keeping.start({"$ref": "steps.a.result"})
        jobs.finish(run)
        jobs.finish(reference)
        assert [value for (value,) in seen if value != {"$ref": "steps.a.result"}] == ["first", "second", {"ref": 3}]
        assert ({"$ref": "steps.a.result"},) in seen
        stored = [job.args for job in jobs.all(keep)]
        assert len(stored) == 4
        assert all(args[0]["encoding"] == "binary/encrypted" for args in stored)
    for step in (keep, keeping):
        with pytest.raises(TypeError, match="cannot resolve a reference"):
            step.s(result_of("a"))
        with pytest.raises(TypeError, match="cannot resolve a reference"):
            step.s(param("order"))


async def test_an_update_that_cannot_be_decoded_fails_alone(shared_url: str) -> None:
    app, order, put = application(shared_url, Encryption({"k": NEW}))
    try:
        run = await order.astart("Ada Lovelace", "4111 1111")
        async with working(app):
            altered = {"ojs_encoded": True, "encoding": "binary/encrypted", "data": "AAAA", "key_id": "k"}
            answer = await app.client().flows.update(run.id, "put", [altered], wait_ms=5000)
            assert (answer.state, b"CodecError" in bytes(answer.error or b"")) == ("failed", True)
            assert await run.aupdate(put, "oolong tea") == "oolong tea for Ada Lovelace"
    finally:
        await app.aclose()


@pytest.mark.parametrize(
    ("before", "after"), [((), ("gzip",)), (("gzip",), ("gzip", "key")), (("gzip", "key"), ("gzip",))]
)
async def test_arguments_of_a_fork_are_decoded_by_the_codecs_that_encoded_them(
    shared_url: str, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    chosen = {"gzip": Gzip(), "key": Encryption({"k": NEW})}
    all_of_them = [chosen["gzip"], chosen["key"]]
    first, _, _ = application(shared_url, *(chosen[name] for name in before))
    second, _, _ = application(shared_url, *(chosen[name] for name in after))
    worker, _, _ = application(shared_url, *all_of_them)
    for app in (first, second, worker):

        @app.flow("echo")
        async def echo(flow: Flow, text: str) -> str:
            return text

    try:
        run = await first.handlers["echo"].astart("old")  # type: ignore[attr-defined]
        await Worker(worker).run(until_empty=True)
        fork = await (await second.afind_workflow(run.id)).afork(args=["new"])
        await Worker(worker).run(until_empty=True)
        assert await fork.aresult(PATIENCE) == "new"
    finally:
        for app in (first, second, worker):
            await app.aclose()


async def test_plain_arguments_of_a_fork_reach_the_handlers_of_an_application_with_codecs(shared_url: str) -> None:
    """Whoever forks over HTTP or on the dashboard has no keys."""
    app, _, _ = application(shared_url, Gzip(), Encryption({"k": NEW}))

    @app.job
    def echo(text: str, number: int) -> str:
        return f"{text} {number}"

    @app.flow("asking")
    async def asking(flow: Flow, text: str) -> str:
        return await flow.run(echo, text, 1)

    try:
        run = await asking.astart("old")
        steps = await app.astart(chain(echo.s("old", 1)))
        await Worker(app).run(until_empty=True)
        workflows = app.client().workflows
        for id, step, args, expected in (
            (run.id, None, ["new"], "new 1"),
            (run.id, "echo", ["plain", 2], "plain 2"),
            (steps.id, "0", ["plain", 3], "plain 3"),
        ):
            fork = await workflows.fork(Fork(id, step, msgspec.json.encode(args)))
            await Worker(app).run(until_empty=True)
            assert await (await app.afind_workflow(fork.id)).aresult(PATIENCE) == expected
    finally:
        await app.aclose()


def test_what_is_published_again_is_not_written_again() -> None:
    app = App(codecs=[Encryption({"k": NEW})])

    @app.flow("publishing")
    async def publishing(flow: Flow) -> None:
        flow.publish({"state": "waiting"})
        for _ in range(3):
            await flow.sleep(60)

    with JobTester(app) as jobs:
        run = publishing.start()
        jobs.drain()
        (job,) = jobs.all()

        def published() -> Any:
            records = run._wait(app.client().flows.records(job.id)).records
            return [record.result for record in records if record.kind == "published"]

        first = published()
        jobs.finish(run)
        assert first == published() != []


def test_a_map_over_what_the_server_cannot_read_is_refused() -> None:
    app = App(codecs=[Encryption({"k": NEW})])

    @app.job
    def double(n: int) -> int:
        return 2 * n

    @app.flow("mapping")
    async def mapping(flow: Flow) -> list[int]:
        return await flow.map(double, [1, 2])

    with JobTester(app) as jobs:
        run = mapping.start()
        jobs.finish(run)
        error = run.refresh().error
        assert error is not None
        assert "cannot read what codecs encode" in error.message
