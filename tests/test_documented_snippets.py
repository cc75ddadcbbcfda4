"""The snippets of the pages run and do what the page says, with stand-ins for what is the reader's own."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import re
import socket
import sys
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import psycopg
import pytest
import sqlalchemy
from fastapi.testclient import TestClient
from flask import Flask
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import ojster
from ojster import App, Conflict, Flow, JobContext, Worker, chain, found, param
from ojster.flask import Ojster
from ojster.handlers.agent import Reply
from ojster.reactions import collect
from ojster.testing import JobTester
from tests.client.test_enqueue_in_transaction import django_connection, parts, sqlalchemy_url

DOCS = Path(__file__).parent.parent / "docs"

COMMON = {name: getattr(ojster, name) for name in ojster.__all__ if name != "__version__"} | {
    one.__name__: one for one in (UUID, Decimal, dataclass, date, datetime, timedelta, uuid4)
}


class Page:
    """The snippets of a page, which share their names, as a reader sees them."""

    def __init__(self, name: str) -> None:
        self._snippets = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
        self._done: set[str] = set()
        self.leave: Callable[[], object] = lambda: None
        """Called at the end of a snippet with coroutines, in their event loop."""
        module = types.ModuleType("snippets_of_" + name.removesuffix(".md").replace("-", "_"))
        sys.modules[module.__name__] = module  # where annotations are looked up
        self.names = vars(module)
        self.names |= COMMON | {"UTC": UTC}

    def code(self, begins: str) -> types.CodeType:
        """Return the snippet that begins so; it counts as run."""
        (snippet,) = [one for one in self._snippets if one.startswith(begins)]
        self._done.add(snippet)
        code: types.CodeType = compile(snippet, begins, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return code

    def run(self, begins: str, **names: Any) -> types.SimpleNamespace:
        """Run the snippet that begins so, with further names; return all names of the page."""
        self.names |= names
        code = self.code(begins)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(self._await(types.FunctionType(code, self.names)()))
        else:
            exec(code, self.names)
        return types.SimpleNamespace(**self.names)

    async def _await(self, snippet: Awaitable[None]) -> None:
        try:
            await snippet
        finally:
            self.leave()

    def all_have_run(self) -> None:
        """Check that each snippet of the page has run."""
        assert [one.partition("\n")[0] for one in self._snippets if one not in self._done] == []


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OJSTER_DATABASE_URL", raising=False)
    return tmp_path


class Names:
    """Something whose attributes are looked up when they are used: modules that a snippet divides among files."""

    def __init__(self, **attributes: Any) -> None:
        self._attributes = attributes

    def __getattr__(self, name: str) -> Any:
        found = self._attributes[name]
        return found() if callable(found) else found


def test_the_guide(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page("guide.md")
    handlers_and_arguments(page)
    dependencies_and_life(page)
    kinds_of_jobs(page)
    enqueuing(page)
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # the snippet shows four kinds of connections in one
    in_transactions(page, postgres_url)
    what_is_around_handlers(page)
    page.run("from datetime import date\n\nfrom ojster import App")
    page.run('from ojster import App\n\napp = App("postgresql://jobs@db/jobs")')
    page.all_have_run()


def handlers_and_arguments(page: Page) -> None:
    names = page.run("from ojster import App, JobContext")
    with JobTester(names.app) as jobs:
        names.build_report.enqueue(42)
        jobs.drain()
        assert jobs.all("report.build")[0].result == b'{"pages":10}'
    tasks = Names(jobs=lambda: page.names["jobs"])
    names = page.run("jobs = App()", shop=Names(mail=Names(tasks=tasks)))
    assert names.send.type in names.app.handlers

    @dataclass
    class Parcel:
        weight: Decimal

    app = App()
    with JobTester(app) as jobs, jobs.eager():
        names = page.run("@dataclass\nclass Order", app=app, Parcel=Parcel, ship=None)
    assert names.parcels is None  # a body of dots returns nothing


def dependencies_and_life(page: Page) -> None:
    opened: list[str] = []

    class FakePool:
        pass

    @asynccontextmanager
    async def create_pool(dsn: str) -> AsyncIterator[FakePool]:
        opened.append(dsn)
        yield FakePool()
        opened.append("closed")

    app = App()
    with JobTester(app) as jobs:
        fake = types.SimpleNamespace(Pool=FakePool, create_pool=create_pool)
        names = page.run("from typing import Annotated", app=app, asyncpg=fake, DSN="here")
        names.close_account.using(meta={"tenant": "acme"}).enqueue(8)
        done = jobs.drain(check=False)
    assert (len(done.completed), len(done.failed)) == (1, 1), "the one without a tenant fails"
    assert set(opened) == {"here", "closed"}

    class Model:
        async def close(self) -> None:
            opened.append("model closed")

    async def load_model() -> Model:
        return Model()

    with JobTester(app) as jobs:
        page.run("@app.lifespan", load_model=load_model)
        names.close_account.using(meta={"tenant": "acme"}).enqueue(9)
        jobs.drain()
    assert "model closed" in opened


def kinds_of_jobs(page: Page) -> None:
    app = App()
    page.names["app"] = app
    rows: list[int] = []

    def import_some(file: str, row: int) -> int:
        rows.append(row)
        if len(rows) == 2:
            raise ConnectionError
        return row + 10

    names = page.run('@app.job("import")', ROWS=30, import_some=import_some)
    with JobTester(app) as jobs:
        names.import_rows.using(retry=3).enqueue("rows.csv")
        jobs.drain()
        assert rows == [0, 10, 10, 20], "the second attempt goes on at the checkpoint"

    assert page.run('log = logging.getLogger("shop")', logging=logging).send_invoice.keep_logs == "info"

    async def call_stripe(order: int) -> Any:
        answers.append(order)
        return types.SimpleNamespace(status_code=429 if len(answers) == 1 else 200, headers={"Retry-After": "3"})

    answers: list[int] = []
    names = page.run('@app.job("charge"', call_stripe=call_stripe)
    with JobTester(app) as jobs:
        names.charge.enqueue(7)
        jobs.drain()
        jobs.advance(10)
        jobs.drain()
        assert answers == [7, 7]
    keys = {"old_key": bytes(32), "new_key": bytes(range(32))}
    names = page.run("app = App(url, codecs=", url="sqlite:///:memory:", **keys)
    assert names.app is not app
    page.names["app"] = app
    page.run('@app.job("invoice"')
    page.run('@app.job("train"')
    search = {"name": "search", "description": "Finds pages.", "parameters": {"type": "object"}}

    async def use(topic: str) -> str:
        return f"pages about {topic}"

    names = page.run('@app.job("research"', SEARCH=search, Reply=Reply, search=use, JobContext=JobContext)
    assert {"import", "charge", "invoice", "train", "research"} <= set(app.handlers)


def enqueuing(page: Page) -> None:
    app = page.names["app"]
    with JobTester(app) as jobs:
        page.run('app = App("postgresql://…", tenant="acme")')
        assert jobs.all("invoice")[0].meta["tenant_id"] == "acme"
    page.names["app"] = app = App()
    job = app.job("report.build", queue="reports")(lambda account: {"pages": account})
    with JobTester(app) as jobs, jobs.eager():
        # The snippet shows both kinds of code in one, and cancels at its end a job that has run here.
        with pytest.warns(RuntimeWarning, match="aenqueue"), pytest.raises(Conflict):
            page.run("job = build_report.enqueue(42)", build_report=job)
        assert len(jobs.all("report.build")) == 6


def in_transactions(page: Page, url: str) -> None:
    app = App(url)

    @app.job("order.ship")
    def ship(order: int) -> None: ...

    class Pool:
        @asynccontextmanager
        async def acquire(self) -> AsyncIterator[Any]:
            where = parts()
            user, database = where["user"], where["dbname"]
            connection = await asyncpg.connect(
                host=where["host"], port=int(where["port"]), user=user, database=database
            )
            yield connection
            await connection.close()

    with django_connection():  # configures Django
        import django.db
        from django.db import transaction
    page.leave = django.db.connections.close_all
    engine = sqlalchemy.create_engine(sqlalchemy_url("psycopg"))
    conninfo = psycopg.conninfo.make_conninfo(**parts())
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (number int)")
        try:
            stand_ins = {"psycopg": psycopg, "url": conninfo, "pool": Pool(), "ship": ship, "Session": Session}
            page.run("with psycopg.connect(url)", engine=engine, transaction=transaction, django=django, **stand_ins)
            assert connection.execute("SELECT number FROM orders").fetchall() == [(42,)]
        finally:
            connection.execute("DROP TABLE orders")
            engine.dispose()
    assert len(asyncio.run(run_all(App(url)))) == 4


async def run_all(app: App) -> list[int]:
    """Run the jobs of the type ``order.ship`` that there are; return their arguments."""
    seen: list[int] = []
    app.job("order.ship")(seen.append)
    async with app:
        await Worker(app).run(until_empty=True)
    return seen


def cron_jobs_of_workflows(page: Page) -> None:
    app = App()

    @app.job
    def extract() -> None: ...

    @app.flow()
    async def fulfil(flow: Flow, order: int) -> None: ...

    page.run('app.cron("0 3', app=app, chain=chain, extract=extract, load=extract, fulfil=fulfil)
    assert [cron.starts for cron in app.crons] == ["chain", "definition backup", "flow fulfil"]


def what_is_around_handlers(page: Page) -> None:
    cron_jobs_of_workflows(page)
    app = App()
    page.names["app"] = app

    @app.job
    def bill(total: int) -> int:
        return total

    @app.job
    def tell(message: str) -> None: ...

    names = page.run("from ojster.reactions", bill=bill, tell=tell)
    page.run('@app.cron("0 9')
    cleaned: list[str] = []
    around = {"time": time, "log": logging.getLogger("snippets"), "socket": socket}
    page.run("@app.execution_middleware.append", **around)
    page.run("@app.thread_middleware.append", close_old_connections=lambda: cleaned.append("closed"))
    with JobTester(app) as jobs:
        bill.enqueue(7)
        jobs.drain()
        (job,) = jobs.all("bill")
        assert (job.result, job.meta["host"]) == (b"7", socket.gethostname())
        assert cleaned == ["closed", "closed"]
    assert names.pay.type == "order.pay"
    shop = App()

    @shop.job("email.send")
    def send(to: str) -> None: ...

    @shop.job("ship", queue="warehouse")
    def ship(to: str) -> None:
        send.enqueue(to)
        send.using(delay=timedelta(days=13)).enqueue("them")

    stand_ins = {"place_order": lambda to, book: ship.enqueue(to), "book": "a book", "ship": ship}
    names = page.run("def test_an_order_is_shipped", **stand_ins)
    with JobTester(shop) as jobs:
        names.test_an_order_is_shipped_and_the_customer_is_told(jobs)


def test_the_page_about_workflows(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page("workflows.md")
    app = App()
    page.names |= {"app": app, "JobContext": JobContext, "collect": collect, "found": found, "param": param}

    @app.job
    def check(order: int) -> dict[str, str]:
        return {"address": "here"}

    @app.job
    def charge() -> None: ...

    @app.job
    def reserve() -> None: ...

    @app.job
    def ship(*about: str) -> str:
        return "shipped"

    @app.job
    def test(name: str, number: int) -> None: ...

    jobs_of_steps = {"check": check, "charge": charge, "reserve": reserve, "ship": ship, "test": test}
    with JobTester(app) as jobs:
        begin = app.start

        def start(*args: Any, **more: Any) -> Any:  # a worker runs beside it
            run = begin(*args, **more)
            jobs.drain()
            return run

        with monkeypatch.context() as patch:
            patch.setattr(app, "start", start)
            names = page.run("from ojster import Graph", **jobs_of_steps)
        assert names.run.result() == "shipped"
        page.run("ship.s(result_of(")
    made = page.run("@app.job(\n    reactions=")
    made = page.run('release = Graph("release")', archs=["arm64", "amd64"], build=made.build)
    assert made.release.wire["type"] == "graph"

    class Packages(msgspec.Struct):
        names: list[str]

    def build(name: str) -> dict[str, int]:
        return {"tests": 2}

    with JobTester(app) as jobs:
        names = page.run('@app.orchestrator("nightly")', Packages=Packages, build=app.job("build.package")(build))
        jobs.drain()
        assert len(jobs.all("test")) == 4
    page.all_have_run()


def test_the_page_about_frameworks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page("frameworks.md")
    shop = App()

    @shop.job("order.ship")
    def ship(order: int) -> str:
        return "shipped"

    names = page.run("from fastapi import FastAPI")
    page.names["ship"] = names.jobs.job("order.ship")(lambda order: "shipped")
    with TestClient(names.app) as client:
        events = client.post("/orders/7").json()["events"]
        assert "shipped" in client.get(events).text
    names = page.run("jobs = App()", Flask=Flask, Ojster=Ojster)
    assert names.create_app().extensions["ojster"]
    names = page.run("INSTALLED_APPS")
    assert "ojster.django" in names.INSTALLED_APPS
    page.code("from django.test import TestCase")  # it runs with the tests of the example
    page.code("from pydantic_ai import Agent")  # it needs a key; patterns.md has one that runs

    class Base(DeclarativeBase): ...

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)

    engine = sqlalchemy.create_engine(f"sqlite:///{folder}/orders.db")

    def session(engine: sqlalchemy.Engine) -> Session:
        Base.metadata.create_all(engine)
        return Session(engine)

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ojster.sqlalchemy.time.sleep", stop)
    with JobTester(shop) as jobs:
        stand_ins = {"app": shop, "Base": Base, "engine": engine, "order": Order(), "ship": ship, "Session": session}
        with pytest.raises(KeyboardInterrupt):  # it runs for ever
            page.run("from ojster.sqlalchemy import Outbox", **stand_ins)
        assert [job.args for job in jobs.all()] == [[1], [1]]
    page.all_have_run()


def test_the_first_page_and_that_about_the_dashboard() -> None:
    page = Page("index.md")
    names = page.run("from ojster import App")
    with names.app:
        assert names.handle.job.state == "available"
    page.all_have_run()
    page = Page("dashboard.md")
    names = page.run("from fastapi import FastAPI")
    with TestClient(names.site, base_url="http://127.0.0.1") as client:
        assert client.get("/ops/dashboard/").status_code == 200
    page.all_have_run()


def test_shared_properties() -> None:
    page = Page("node-workflow.md")
    app = App()
    seen: list[object] = []

    @app.job
    async def share(job: JobContext) -> None:
        page.names["job"] = job
        code = page.code("await job.properties.aset")
        await types.FunctionType(code, page.names)()
        seen.append(await job.properties.aget("count"))
        seen.append(await job.properties.aget("gist_id"))

    with JobTester(app) as jobs:
        app.start(chain(share.s()))
        jobs.drain()
    assert seen == [1, None]
    page.all_have_run()


def test_the_readme(postgres_url: str) -> None:
    page = Page("../README.md")
    names = page.run("# myapp.py", __name__="myapp")
    orders = page.run("# orders.py", __name__="orders")
    with JobTester(orders.app) as jobs:
        flow = orders.fulfil.start(42)
        flow.send("approval", False)
        jobs.drain(check=False)
        assert jobs.all("card.refund"), "who does not approve sets off the refund"
        run = page.run("# more of orders.py", **vars(orders) | {"__name__": "__main__"}).run
        assert "release" in run.draw()
        jobs.drain()
        assert not jobs.all("order.ship"), "the last step waits for the gate"
    send = App(postgres_url).job("email.send")(names.send_email.function)
    conninfo = psycopg.conninfo.make_conninfo(**parts())
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (number int)")
        try:
            page.run("with psycopg.connect(url)", psycopg=psycopg, url=conninfo, send_email=send)
            assert connection.execute("SELECT number FROM orders").fetchall() == [(42,)]
        finally:
            connection.execute("DROP TABLE orders")
    page.all_have_run()
