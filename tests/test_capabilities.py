"""A capability whose line in the register is deleted is gone: its endpoints, commands, metrics and job attributes."""

from __future__ import annotations

from importlib import import_module

import pytest

from ojster.capabilities import CAPABILITIES, Capability, attribute_readers, event_metrics, extensions_of
from ojster.cli.main import COMMANDS, commands_of
from ojster.server.endpoints import MODULES, routes_of
from ojster.server.gauges import GAUGES
from ojster.server.metrics import Metrics


def names_of(part: object) -> str:
    return type(part).__module__.split(".")[1]


@pytest.mark.parametrize("left_out", CAPABILITIES, ids=lambda one: one.name)
def test_nothing_of_a_capability_is_left_without_its_line(left_out: Capability) -> None:
    kept = [capability for capability in CAPABILITIES if capability != left_out]
    own_routes = [
        route
        for name in MODULES.get(left_out.name, ())
        for route in import_module(f"ojster.server.endpoints.{name}").ROUTES
    ]
    assert not {route.handler for route in routes_of(kept)} & {route.handler for route in own_routes}
    assert {place.capability for place in commands_of(kept).values()} <= {None, *(other.name for other in kept)}
    own_metrics = {metric.name for metric in event_metrics([left_out]).all()}
    assert not own_metrics & {metric.name for metric in event_metrics(kept).all()}
    assert GAUGES.get(left_out.name) not in Metrics(kept).gauges
    assert left_out.name not in map(names_of, [*extensions_of(kept), *attribute_readers(kept)])


def test_each_part_of_the_register_belongs_to_a_capability() -> None:
    names = {capability.name for capability in CAPABILITIES}
    assert MODULES.keys() == names
    assert GAUGES.keys() <= names
    assert {place.capability for place in COMMANDS.values()} <= {None, *names}
    everything = routes_of()
    assert len({(route.method, route.path) for route in everything}) == len(everything)
