"""Declared calls: a service implements each, a server has an endpoint for each, and a client makes each."""

from __future__ import annotations

import inspect
from typing import Annotated, Any
from urllib.parse import parse_qsl

import httpx
import msgspec
import pytest

from ojster.audit.entries import AuditQuery
from ojster.audit.wire import show_entry
from ojster.client.client import HttpClient
from ojster.client.connection import query_of
from ojster.core.calls import (
    MOMENT,
    SET_BY_SERVICE,
    Arguments,
    Call,
    Calls,
    Declared,
    Deletion,
    Handled,
    Whole,
    calls_of,
)
from ojster.core.errors import BackendError, InvalidRequest, OjsterError
from ojster.core.rate_limit import Limits, Rate
from ojster.fleet.ml_resources import ResourceLimits
from ojster.queues.wire import BackpressureBody, QueueConfigBody
from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from ojster.server.route import BASE
from ojster.service import Service
from tests.client.in_memory import InMemoryTransport, answering, connect, to
from tests.conftest import Bench, Http

CAPABILITIES: list[tuple[str, type[Calls]]] = sorted(
    (name, declaring)
    for name, part in vars(Service).items()
    if hasattr(part, "func")
    for declaring in inspect.get_annotations(part.func, eval_str=True)["return"].__mro__
    if issubclass(declaring, Calls) and any(calls_of(declaring))
)
"""The parts of a service, and the classes that declare their calls."""

DECLARED = [(name, call) for name, declaring in CAPABILITIES for call in calls_of(declaring)]


def named(value: Any) -> str | None:
    return value.call.id if isinstance(value, Declared) else None


def implementation(part: type[Any], call: Declared) -> Any:
    return inspect.getattr_static(part, call.name)


@pytest.mark.parametrize(("name", "call"), DECLARED, ids=named)
def test_each_declared_call_is_made_by_a_service_and_by_a_client(name: str, call: Declared) -> None:
    part = inspect.get_annotations(getattr(Service, name).func, eval_str=True)["return"]
    assert not hasattr(implementation(part, call), "__declared_call__"), "the service implements it"
    remote = type(getattr(HttpClient("http://127.0.0.1:1"), name))
    sends_body = call.call.body is None or issubclass(call.call.body, Arguments)
    assert sends_body or not hasattr(implementation(remote, call), "__declared_call__"), "the client makes the body"


@pytest.mark.parametrize(("name", "call"), DECLARED, ids=named)
def test_each_declared_call_has_an_endpoint(name: str, call: Declared) -> None:
    routes = {(route.method, route.path): route for route in routes_of()}
    for path in (call.call.path, *call.call.also):
        route = routes[call.call.method, BASE + path]
        assert route.handler.__name__ == call.call.id
        is_made = route.handler.__qualname__.startswith("_handler")
        assert not (isinstance(call.call, Handled) and is_made), "its endpoint is written by hand"
        assert len(call.in_path) == path.count("{")
        assert set(call.in_query) <= set(route.query)
        assert not call.call.needs or route.needs == call.call.needs
    if isinstance(call.call, Deletion):
        assert len(call.call.answer(*call.in_path).__struct_fields__) >= len(call.in_path)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "call"), [(name, call) for name, call in DECLARED if isinstance(call.call, Deletion)], ids=named
)
async def test_nothing_counts_as_deleted_if_something_else_answers(name: str, call: Declared) -> None:
    client = HttpClient("http://test")
    connect(client, answering(lambda sent: httpx.Response(200, text="<html>Log in</html>")))
    with pytest.raises(BackendError, match="without JSON"):
        await getattr(getattr(client, name), call.name)(*(["x"] * len(call.in_path)))
    await client.close()


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "call"), [(name, call) for name, call in DECLARED if call.bounds], ids=named)
async def test_each_bounded_argument_is_checked_in_the_process_as_well(bench: Bench, name: str, call: Declared) -> None:
    for argument in call.bounds:
        with pytest.raises(InvalidRequest, match=f"'{argument}'"):
            await getattr(getattr(bench.service, name), call.name)(**{argument: object()})


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [
        QueueConfigBody(overflow_policy="drop-oldest"),  # type: ignore[arg-type]
        QueueConfigBody(max_size=-1),
        QueueConfigBody(max_size="5"),  # type: ignore[arg-type]
        QueueConfigBody(allowed_job_types="mail.send"),  # type: ignore[arg-type]
        QueueConfigBody(allowed_job_types=[1]),  # type: ignore[list-item]
        QueueConfigBody(backpressure=BackpressureBody(strategy="drop-oldest")),  # type: ignore[arg-type]
        QueueConfigBody(ml_limits=ResourceLimits(max_gpu_count="x")),  # type: ignore[arg-type]
        Limits(throttle=Rate(0, 1)),
        Limits(rate=Rate(1, 0)),
        Limits(concurrency=-1),
    ],
    ids=str,
)
async def test_wrong_settings_of_a_queue_change_nothing(bench: Bench, body: QueueConfigBody | Limits) -> None:
    queues = bench.service.queues
    with pytest.raises(InvalidRequest):
        await (queues.limit("q", body) if isinstance(body, Limits) else queues.configure("q", body))
    assert await queues.all() == []
    await bench.push(queue="q")


class Chosen(msgspec.Struct, frozen=True):
    owner: str
    name: str | None = None
    after: int = msgspec.field(name="cursor", default=0)
    has_end: bool = True
    data: dict[str, Any] = {}
    since: Annotated[int | None, MOMENT] = None
    tenant: Annotated[str | None, SET_BY_SERVICE] = None


class Answered(Whole):
    pass


class ChosenCalls(Calls):
    @Call("GET", "/owners/{owner}/things", "list_things", "Things", Answered)
    async def things(self, chosen: Chosen) -> Answered:
        raise NotImplementedError


@pytest.mark.parametrize(
    "chosen",
    [
        Chosen("ada"),
        Chosen("ada", "x&y=", 17, False, {"a": [1, None, "é"]}, 1_800_000_000_000_001),
    ],
)
def test_members_of_a_struct_are_in_path_and_query_and_come_back_as_they_were(chosen: Chosen) -> None:
    (declared,) = calls_of(ChosenCalls)
    parameters = declared.bind(ChosenCalls(), msgspec.structs.replace(chosen, tenant="acme"))
    assert declared.path_of(parameters) == "/owners/ada/things"
    sent = dict(parse_qsl(query_of(declared.query_of(parameters))))
    assert sent.keys() <= {"name", "cursor", "has_end", "data", "since"} == set(declared.in_query)
    read = {"owner": "ada"} | declared.read_query(sent, lambda: 0)
    assert declared.folded(read) == {"chosen": chosen}, "all but the tenant, which the service sets"


def test_a_moment_in_a_query_may_be_a_duration_from_now() -> None:
    (declared,) = calls_of(ChosenCalls)
    assert declared.read_query({"since": "+PT5S"}, lambda: 7) == {"since": 5_000_007}


@pytest.mark.parametrize("query", ["cursor=two", "has_end=perhaps", "data=[1]", "data={", "since=yesterday"])
def test_a_member_of_a_struct_that_is_malformed_in_a_query_is_refused(query: str) -> None:
    (declared,) = calls_of(ChosenCalls)
    with pytest.raises(InvalidRequest):
        declared.read_query(dict(parse_qsl(query)), lambda: 0)


@pytest.mark.anyio
async def test_a_query_parameter_that_is_missing_or_of_another_type_is_refused(http: Http) -> None:
    every_hour = "expression=0+*+*+*+*"
    for query, field in ((f"{every_hour}&count=0", "count"), (f"{every_hour}&count=two", "count"), ("", "expression")):
        answered = await http("GET", f"{BASE}/cron-preview?{query}")
        assert answered.status_code == 400
        assert answered.json()["error"]["details"]["field"] == field


@pytest.mark.anyio
async def test_the_runs_of_a_cron_expression_are_the_same_in_process_and_over_http(service: Service) -> None:
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(to(Application(service))))
    runs = await service.schedules.preview("0 9 * * *", "Europe/Berlin", 3)
    assert len(runs) == 3
    assert await client.schedules.preview("0 9 * * *", "Europe/Berlin", 3) == runs
    await client.close()


@pytest.mark.anyio
@pytest.mark.parametrize("query", ["cursor=x", "limit=0", "since=yesterday", "offset=1"])
async def test_an_audit_log_refuses_what_it_cannot_select_by(http: Http, query: str) -> None:
    answered = await http("GET", f"{BASE}/admin/audit?{query}")
    assert answered.status_code == 400


@pytest.mark.anyio
async def test_the_audit_log_and_the_tasks_are_the_same_in_process_and_over_http(service: Service) -> None:
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(to(Application(service))))
    for number in range(3):
        await client.queues.create(f"q{number}")
    for query in (
        AuditQuery(),
        AuditQuery(limit=2),
        AuditQuery(before=2),
        AuditQuery(object="q1"),
        AuditQuery(until=0),
    ):
        over_http, in_process = await client.audit.select(query), await service.audit.select(query)
        assert [entry.hash for entry in over_http] == [entry.hash for entry in in_process]
        assert list(map(show_entry, over_http)) == list(map(show_entry, in_process))
    check = await client.audit.verify()
    assert check == await service.audit.verify()
    assert await client.audit.verify(str(check.last)) == check
    for part in (client, service):
        with pytest.raises(OjsterError, match="as in '17:9f86"):
            await part.audit.verify("17")
    assert not await client.tasks.runs("package.test", limit=5)
    assert not await client.tasks.statistics(subject="a")
    await client.close()
