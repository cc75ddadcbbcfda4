"""Workflows and flows started in the caller's transaction: they exist if it commits and leave no trace otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import psycopg
import pytest

from ojster import (
    App,
    Flow,
    InvalidRequest,
    InvalidWorkflow,
    JobType,
    NotFound,
    NotInTransaction,
    Unique,
    Worker,
    chain,
    group,
)
from ojster.api.flows import FlowType
from ojster.api.workflow_handle import Run
from ojster.core.errors import TenantLimitExceeded
from ojster.jobs.claim_policy import Claim
from ojster.reactions import enqueue
from ojster.service import Service
from ojster.tenancy.tenants import TenantChange, put_tenants
from ojster.workflows.read.selection import WorkflowConditions, WorkflowFilter
from tests.client.test_enqueue_in_transaction import (
    Caller,
    Undone,
    app,
    elsewhere,
    guest,
    parts,
    psycopg_async,
    psycopg_connection,
)
from tests.waiting import LONG_WAIT

__all__ = ["app", "elsewhere", "guest"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:A blocking call in a coroutine"),  # the tests run in an event loop
]


def declare(app: App, **options: Any) -> JobType[Any, Any]:
    @app.job("order.ship", **options)
    async def ship(order: int) -> int:
        return order + 1

    return ship


def declare_flow(app: App, ship: JobType[Any, Any]) -> FlowType[Any, Any]:
    @app.flow("order.fulfil")
    async def fulfil(flow: Flow, order: int) -> int:
        shipped: int = await flow.run(ship, order)
        return shipped * 10

    return fulfil


async def start_in(caller: Caller, starts: Any, connection: Any, *args: Any, **options: Any) -> Run:
    """Start something by the method that serves the kind of connection."""
    if caller.waits:
        run: Run = await starts.astart_in(connection, *args, **options)
    else:
        run = starts.start_in(connection, *args, **options)
    return run


async def count(service: Service) -> int:
    return (await service.workflows.select(WorkflowFilter())).total


async def test_a_workflow_is_visible_after_commit_and_wakes_parked_fetches(
    app: App, guest: Caller, elsewhere: Service
) -> None:
    ship = declare(app)
    waiting = asyncio.create_task(elsewhere.jobs.fetch(Claim(("default",)), wait=LONG_WAIT))
    await asyncio.sleep(0.05)
    async with guest.transaction() as connection:
        run = await start_in(guest, app, connection, chain(ship.s(7), ship.s(8)), name="§ %s $1 :p1")
        assert (run.info.state, run.info.name) == ("running", "§ %s $1 :p1")
        with pytest.raises(NotFound):
            await elsewhere.workflows.show(run.id)
        assert not waiting.done()
    (job,) = await waiting
    assert (job.type, job.args) == ("order.ship", [7])
    assert (await elsewhere.workflows.show(run.id)).state == "running"


async def test_nothing_is_left_when_the_transaction_is_undone(app: App, guest: Caller, elsewhere: Service) -> None:
    fulfil = declare_flow(app, declare(app))

    async def start_and_fail() -> None:
        async with guest.transaction() as connection:
            await start_in(guest, fulfil, connection, 7)
            raise Undone

    with pytest.raises(Undone):
        await start_and_fail()
    assert await count(elsewhere) == 0
    assert await elsewhere.jobs.count() == {}


async def test_a_flow_runs_after_the_commit(app: App, guest: Caller) -> None:
    fulfil = declare_flow(app, declare(app))
    async with guest.transaction() as connection:
        run = await start_in(guest, fulfil, connection, 7)
    await Worker(app).run(until_empty=True)
    assert await run.aresult() == 80
    assert run.info.name == "order.fulfil"


Make = Callable[[App, JobType[Any, Any]], Any]
MAKERS: dict[str, Make] = {
    "a step": lambda app, ship: ship.s(1),
    "a chain": lambda app, ship: chain(ship.s(1), ship.s(2)),
    "a group": lambda app, ship: group(ship.s(1), ship.s(2)),
    "a flow": lambda app, ship: declare_flow(app, ship).s(1),
    "a definition": lambda app, ship: "order.defined",
    "more steps than are created at once": lambda app, ship: group(*[ship.s(number) for number in range(300)]),
    "a chain of more steps": lambda app, ship: chain(*[ship.s(number) for number in range(210)]),
}
LARGE = {"more steps than are created at once", "a chain of more steps"}


@pytest.mark.parametrize("what", MAKERS)
async def test_whatever_can_be_started_can_be_started_in_a_transaction(app: App, elsewhere: Service, what: str) -> None:
    ship = declare(app)
    await app.adefine("order.defined", chain(ship.s(1)))
    workflow = MAKERS[what](app, ship)
    alone = (await app.astart(workflow, params={"a": 1})).info
    with psycopg_connection() as connection:
        run = app.start_in(connection, workflow, params={"a": 1})
        assert await count(elsewhere) == 1
    stored = await elsewhere.workflows.show(run.id)
    assert (stored.type, stored.state, stored.metadata["job_count"]) == (
        alone.type,
        alone.state,
        alone.metadata["job_count"],
    )
    if what not in LARGE:
        await Worker(app).run(until_empty=True)
        assert (await elsewhere.workflows.show(run.id)).state == "completed"


async def test_a_scheduled_workflow_waits_and_is_announced_at_the_commit(app: App, elsewhere: Service) -> None:
    ship = declare(app)
    async with psycopg_async() as connection:
        run = await app.astart_in(connection, chain(ship.s(1)), delay=3_600)
    assert (await elsewhere.workflows.show(run.id)).state == "pending"
    assert (await elsewhere.workflow_bulk.cancel(WorkflowConditions(states=("pending",)))).succeeded == 1


async def test_changes_of_the_callers_own_and_several_starts_are_one_transaction(app: App, elsewhere: Service) -> None:
    ship = declare(app)
    with psycopg_connection() as connection:
        connection.execute("CREATE TEMPORARY TABLE orders (id int)")
        connection.execute("INSERT INTO orders VALUES (1)")
        runs = [app.start_in(connection, chain(ship.s(number))) for number in range(3)]
        ship.enqueue_in(connection, 9)
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert await count(elsewhere) == 3
    assert len({run.id for run in runs}) == 3


async def test_what_is_refused_leaves_the_transaction_usable(app: App, elsewhere: Service) -> None:
    ship = declare(app)
    await app.adefine("order.defined", chain(ship.s(1)))
    tells = ship.using(reactions={"on_creation": [enqueue(ship.s(5))]})
    with psycopg_connection() as connection:
        refused: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
            ("order.defined", {"target": "x"}, InvalidRequest, "Start it after the commit"),
            (chain(tells.s(1)), {}, InvalidRequest, "cannot have reactions to on_creation"),
            ("order.missing", {}, NotFound, "order.missing"),
            (group(), {}, InvalidWorkflow, "jobs"),
        ]
        for workflow, options, error, message in refused:
            with pytest.raises(error, match=message):
                app.start_in(connection, workflow, **options)
        run = app.start_in(connection, chain(ship.s(1)))
    assert await count(elsewhere) == 1
    assert (await elsewhere.workflows.show(run.id)).state == "running"
    assert {state: number for state, number in (await elsewhere.jobs.count())["default"].items() if number} == {
        "available": 1
    }


async def test_a_connection_without_a_transaction_is_refused(app: App) -> None:
    ship = declare(app)
    with psycopg.connect(**parts(), autocommit=True) as connection, pytest.raises(NotInTransaction):  # type: ignore[arg-type]
        app.start_in(connection, chain(ship.s(1)))
    with pytest.raises(TypeError, match="is not a synchronous connection"):
        app.start_in(object(), chain(ship.s(1)))
    with pytest.raises(TypeError, match="is not a synchronous connection"):
        await app.astart_in(object(), chain(ship.s(1)))


@pytest.fixture
async def refusing(request: pytest.FixtureRequest, file_url: str) -> AsyncIterator[App]:
    made = App(file_url if request.param == "sqlite" else "http://127.0.0.1:1")
    yield made
    await made.aclose()


@pytest.mark.parametrize("refusing", ["sqlite", "http"], indirect=True)
async def test_other_databases_and_servers_are_refused(refusing: App) -> None:
    ship = declare(refusing)
    fulfil = declare_flow(refusing, ship)
    with pytest.raises(InvalidRequest, match=r"requires an App with a PostgreSQL URL, not .* Use start instead"):
        refusing.start_in(object(), chain(ship.s(1)))
    with pytest.raises(InvalidRequest, match="Use start instead"):
        await refusing.astart_in(object(), chain(ship.s(1)))
    with pytest.raises(InvalidRequest, match="Use start instead"):
        fulfil.start_in(object(), 1)
    with pytest.raises(InvalidRequest, match="Use start instead"):
        await fulfil.astart_in(object(), 1)


async def test_middleware_and_the_tenant_are_those_of_the_application(postgres_url: str, elsewhere: Service) -> None:
    app = App(postgres_url, tenant="acme")
    ship = declare(app)

    async def stamp(members: Any, following: Any) -> Any:
        return await following(members | {"meta": msgspec.Raw(b'{"stamped":true}')})

    app.enqueue_middleware.append(stamp)
    with psycopg_connection() as connection:
        run = app.start_in(connection, chain(ship.s(1)))
    (job,) = await elsewhere.jobs.fetch(Claim(("default",)))
    assert (job.tenant, job.meta["stamped"]) == ("acme", True)
    assert (await elsewhere.workflows.select(WorkflowFilter(tenant="acme"))).workflows[0].id == run.id
    await app.aclose()


async def test_bounds_refuse_nothing_in_a_transaction_and_count_what_it_starts(
    postgres_url: str, elsewhere: Service
) -> None:
    """As for jobs: the bound of a tenant would have to be locked until the end of the transaction."""
    await elsewhere.scope.do(put_tenants, TenantChange("acme", {"max_queue_depth": 1}))
    app = App(postgres_url, tenant="acme")
    ship = declare(app)
    with psycopg_connection() as connection:
        app.start_in(connection, group(ship.s(1), ship.s(2)))
        ship.enqueue_in(connection, 3)
    with pytest.raises(TenantLimitExceeded) as refused:
        await app.astart(chain(ship.s(1)))
    assert refused.value.details["current"] == 3
    await app.aclose()


async def test_a_unique_step_waits_for_its_key_or_needs_an_isolation_level_that_sees_others(
    app: App, elsewhere: Service
) -> None:
    ship = declare(app, unique=Unique(keys=["args"]))
    with psycopg.connect(**parts()) as connection:  # type: ignore[arg-type]
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(InvalidRequest, match="Use 'read committed'"):
            app.start_in(connection, chain(ship.s(1)))
        connection.execute("SELECT 1")
    assert await count(elsewhere) == 0
    first, second = psycopg.connect(**parts()), psycopg.connect(**parts())  # type: ignore[arg-type]
    with first, second:
        app.start_in(first, chain(ship.s(1)))
        waiting = asyncio.create_task(app.astart_in(second, chain(ship.s(1))))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        first.commit()
        run = await waiting
        second.commit()
    assert (await elsewhere.workflows.show(run.id)).state in ("running", "failed")
