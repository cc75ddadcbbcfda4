"""Uses of the public API and the types that both checkers must find. Never run; ``test_typing.py`` checks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta
from typing import Annotated, Any, assert_type

from ojster import (
    App,
    Depends,
    Flow,
    JobContext,
    JobHandle,
    Provided,
    Run,
    StepConnection,
    Workflow,
    WorkflowInfo,
    batch,
    chain,
    definition,
    each,
    element,
    group,
    result_of,
    saga,
)
from ojster.collections.items import Item

app = App("sqlite:///jobs.db")


@app.job("email.send", queue="mail", timeout=timedelta(minutes=1))
async def send(to: str, copies: int = 0) -> bool:
    return bool(to) and copies >= 0


@app.job()
def invoice(to: str, *, number: int, copies: int = 1) -> str:
    return f"{to} {number} {copies}"


@app.job()
def double(job: JobContext, number: int) -> int:
    return 2 * number


@app.job()
def lines(text: str) -> list[str]:
    return text.splitlines()


@app.job
async def bare(text: str, times: int = 1) -> str:
    return text * times


@app.job
def bare_in_thread(job: JobContext, number: int) -> int:
    return number + job.attempt


async def open_pool() -> AsyncGenerator[list[str], None]:
    yield ["connection"]


def secret() -> str:
    return "secret"


@app.job
async def injected(
    number: int, pool: Annotated[list[str], Depends(open_pool, scope="worker")] = Provided, key: str = Depends(secret)
) -> str:
    return f"{number} {pool} {key}"


@app.lifespan
async def hooks(given: App) -> AsyncIterator[None]:
    yield


@app.on_startup
async def start() -> None: ...


async def use() -> None:
    assert_type(Depends(open_pool), list[str])
    assert_type(injected.enqueue(1), JobHandle[str])
    assert_type(bare.enqueue("a", times=2), JobHandle[str])
    assert_type(bare_in_thread.enqueue(1).result(timeout=1), int)
    assert_type(send.enqueue("user@example.com", copies=2), JobHandle[bool])
    assert_type(invoice.enqueue("user@example.com", number=7), JobHandle[str])
    assert_type(await send.aenqueue("user@example.com"), JobHandle[bool])
    assert_type(double.enqueue(3), JobHandle[int])
    assert_type(double.enqueue(3).result(timeout=1.5), int)
    assert_type(await (await lines.aenqueue("a")).aresult(timeout=timedelta(seconds=1)), list[str])
    assert_type(chain(double.s(2), lines.s(result_of("double"))), Workflow[list[str]])
    assert_type(send.using(priority=5, delay=timedelta(hours=1)).enqueue("user@example.com"), JobHandle[bool])


class Report:
    def run(self, month: str, pages: int = 1) -> list[str]:
        return [month] * pages


class AsyncReport:
    async def run(self, month: str) -> bytes:
        return month.encode()


report = app.job(Report)
async_report = app.job("report.async", queue="reports")(AsyncReport)


def use_classes() -> None:
    assert_type(report.enqueue("January", pages=2).result(), list[str])
    assert_type(async_report.enqueue("January").result(), bytes)
    assert_type(report("January"), list[str])


def use_workflows() -> None:
    run = app.start(chain(double.s(2)), name="two", timeout=timedelta(hours=1), on_error=double.s(1))
    assert_type(run, Run[int])
    assert_type(run.result(), int)
    assert_type(app.start(definition("release", returns=int)).result(), int)
    assert_type(app.start(chain(double.s(2), definition("release", returns=str))), Run[str])
    assert_type(app.start(definition("release")), Run[Any])
    assert_type(app.start("release"), Run[Any])
    app.define("doubled", chain(double.s(2)), params_schema={"type": "object"})
    assert_type(run.refresh(), WorkflowInfo)
    assert_type(list(run.watch()), list[WorkflowInfo])
    assert_type(run.cancel(stop_active=True), None)
    assert_type(app.find("id").refresh(), JobHandle[Any])
    assert_type(list(run.stream("tokens", str)), list[str])
    assert_type(app.send("payment", 7, key=42), int)
    assert_type(app.collection("releases").add("a", 1, replace=True), Item)


def know_results() -> None:
    assert_type(app.start(double.s(1)), Run[int])
    assert_type(app.start(chain(double.s(1), group(send.s("a"), send.s("b")))).result(), list[bool])
    assert_type(app.start(group(double.s(1), lines.s("a"))).result(), list[int | list[str]])
    assert_type(app.start(group(double.s(number) for number in range(3))).result(), list[int])
    assert_type(app.start(double.s(1) | lines.s("a") | double.s(2)).result(), int)
    assert_type(app.start((double.s(1) & double.s(2)) | send.s("a")).result(), bool)
    assert_type(app.start(each([1, 2], double.s(element()))).result(), list[int])
    assert_type(app.start(batch(double.s(1), on_complete=send.s("a"))).result(), list[int])
    assert_type(app.start(saga(double.s(1), send.s("a"))).result(), bool)
    assert_type(app.start(double.s(1).set(id="first")).result(), int)
    assert_type(app.start("by name", version=2), Run)
    assert_type(app.start_in(object(), chain(double.s(1))), Run[int])
    assert_type(app.start(use_steps.s(1)).result(), None)
    assert_type(use_steps.start(1).result(), None)


def booked(connection: StepConnection, order: int) -> list[str]:
    return [str(order)]


async def booked_later(connection: StepConnection, order: int) -> int:
    return order


@app.flow("steps")
async def use_steps(flow: Flow, order: int) -> None:
    assert_type(await flow.step("a", booked, order, in_transaction=True), list[str])
    assert_type(await flow.step("b", booked_later, order, in_transaction=True), int)
    assert_type(await flow.step("c", str, order), str)


async def use_workflows_in_coroutines() -> None:
    run = await app.astart(chain(double.s(2)), name="two")
    assert_type(run, Run[int])
    assert_type(await run.aresult(), int)
    assert_type(await run.arefresh(), WorkflowInfo)
    assert_type([info async for info in run.awatch()], list[WorkflowInfo])
    assert_type([token async for token in run.stream("tokens", str, after=3)], list[str])
    assert_type(await double.enqueue(1).arefresh(), JobHandle[int])
    assert_type(double.enqueue(1).refresh(), JobHandle[int])
