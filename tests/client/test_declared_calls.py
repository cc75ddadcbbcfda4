"""Declared calls: a service implements each, a server has an endpoint for each, and a client makes each."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from ojster.client.client import HttpClient
from ojster.core.calls import Arguments, Calls, Declared, Deletion, Handled, calls_of
from ojster.server.application import Application
from ojster.server.endpoints import routes_of
from ojster.server.route import BASE
from ojster.service import Service
from tests.client.in_memory import InMemoryTransport, connect, to
from tests.conftest import Http

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
