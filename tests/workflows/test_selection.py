"""Selection of workflows by their parameters, and of definitions by their metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from ojster.client.client import HttpClient
from ojster.core.errors import InvalidRequest
from ojster.workflows.read import selection
from ojster.workflows.read.selection import WorkflowConditions, WorkflowFilter
from tests.client.in_memory import InMemoryTransport, connect
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, chain, job

pytestmark = pytest.mark.anyio

STEPS = [{"type": "a", "args": []}]
PARAMS: list[dict[str, Any]] = [
    {"day": 1, "zone": "eu"},
    {"day": 1.0, "zone": "us", "more": [1, {"a": None}]},
    {"day": "1", "zone": "eu"},
    {"day": True},
    {"Day": 1},
    {"day": None, "nul": "\u0000"},
    {},
]


@pytest.fixture
def small_windows() -> Iterator[None]:
    with mock.patch.object(selection, "_WINDOW", 2), mock.patch.object(selection, "MAX_WINDOWS", 2):
        yield


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"day": 1}, [1, 0]),
        ({"day": 1, "zone": "eu"}, [0]),
        ({"day": "1"}, [2]),
        ({"day": True}, [3]),
        ({"day": None}, [5]),
        ({"nul": "\u0000"}, [5]),
        ({"more": [1.0, {"a": None}]}, [1]),
        ({"more": [1]}, []),
        ({}, [6, 5, 4, 3, 2, 1, 0]),
    ],
)
async def test_workflows_are_selected_by_their_parameters(
    flow: WorkflowBench, wanted: dict[str, Any], expected: list[int]
) -> None:
    ids = [(await flow.create(chain(job("a")) | {"params": params})).id for params in PARAMS]
    page = await flow.service.workflows.select(WorkflowFilter(params=wanted))
    assert [ids.index(one.id) for one in page.workflows] == expected
    assert (page.total, page.next_before) == (len(expected), None)


@pytest.mark.usefixtures("small_windows")
async def test_a_page_looks_at_a_bounded_number_of_workflows_and_the_next_goes_on(flow: WorkflowBench) -> None:
    ids = [(await flow.create(chain(job("a")) | {"params": {"even": n % 2 == 0}})).id for n in range(9)]
    found, before, pages = [], None, 0
    while True:
        page = await flow.service.workflows.select(WorkflowFilter(params={"even": True}, limit=3, before=before))
        found += [ids.index(one.id) for one in page.workflows]
        pages, before = pages + 1, page.next_before
        if before is None:
            break
    assert found == [8, 6, 4, 2, 0]
    assert pages == 3


async def test_parameters_are_a_json_object_in_the_query(http: Http, flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")) | {"params": {"zone": "eu"}})
    await flow.create(chain(job("a")))
    path = "/ojs/v1/workflows"
    assert len((await http("GET", path, params={"params": '{"zone":"eu"}'})).json()["workflows"]) == 1
    for wrong in ("[1]", "{", '{"zone":1e999}'):
        assert (await http("GET", path, params={"params": wrong})).status_code == 400, wrong
    refused = await http("GET", path, params={"params": '{"zone":"eu"}', "offset": 10})
    assert "next_cursor" in refused.json()["error"]["message"]
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(http.client))
    assert len((await client.workflows.select(WorkflowFilter(params={"zone": "eu"}))).workflows) == 1


async def test_workflows_are_selected_by_their_ids_and_their_metadata(http: Http, flow: WorkflowBench) -> None:
    for id, zone in (("a,b", "eu"), ("c", "eu"), ("d", "us")):
        await flow.create(chain(job("a")) | {"id": id, "metadata": {"zone": zone}})
    client = HttpClient("http://test")
    connect(client, InMemoryTransport(http.client))

    async def listed(**conditions: Any) -> list[str]:
        return [one.id for one in (await client.workflows.select(WorkflowFilter(**conditions))).workflows]

    assert await listed(ids=("a,b", "c", "none")) == ["c", "a,b"]
    assert await listed(metadata={"zone": "eu"}, ids=("c", "d")) == ["c"]
    assert await listed(metadata={"Zone": "eu"}) == []
    query = {"id": r"a\,b,d"}
    found = (await http("GET", "/ojs/v1/workflows", params=query)).json()["workflows"]
    assert [one["id"] for one in found] == ["d", "a,b"]


async def test_definitions_are_selected_by_their_metadata(http: Http) -> None:
    for name, team in (("one", "mail"), ("two", "web")):
        body = {"name": name, "type": "chain", "steps": STEPS, "metadata": {"team": team, "level": 1}}
        assert (await http("POST", "/ojs/v1/definitions", body)).status_code == 201
    for wanted, names in (('{"team":"web"}', ["two"]), ('{"level":1.0}', ["one", "two"]), ('{"team":"x"}', [])):
        found = (await http("GET", "/ojs/v1/definitions", params={"metadata": wanted})).json()
        assert [one["name"] for one in found["definitions"]] == names


async def test_errors_name_only_members_that_are_accepted(http: Http) -> None:
    body = {"type": "chain", "steps": STEPS, "stepz": 1}
    definition = (await http("POST", "/ojs/v1/definitions", {"name": "d"} | body)).json()["error"]["message"]
    listed = definition.partition("it can have ")[2].rstrip(".").split(", ")
    assert {"steps", "on_error", "retry", "metadata"} <= set(listed)
    values = {"steps": STEPS, "type": "chain", "name": "d", "meta": {}, "metadata": {}, "options": {}, "retry": {}}
    for member in listed:
        given = {"name": "d", "type": "chain", "steps": STEPS, member: values.get(member)}
        if member == "metadata":
            given.pop("meta", None)
        refused = await http("POST", "/ojs/v1/definitions", given)
        assert "cannot be in a definition" not in refused.text, member
        await http("DELETE", "/ojs/v1/definitions/d")
    (workflow,) = (await http("POST", "/ojs/v1/workflows", body)).json()["warnings"]
    assert "retry" not in workflow
    for member in ("target", "locks", "definition_version", "params_schema", "retry"):
        refused = await http("POST", "/ojs/v1/workflows", {"type": "chain", "steps": STEPS, member: "x"})
        assert "needs a 'definition'" in refused.json()["error"]["message"]


def test_there_are_bounds_to_the_ids_of_a_filter_in_the_process_as_over_http() -> None:
    assert len(WorkflowFilter(ids=("a",) * 100).ids) == 100
    for filter_class in (WorkflowFilter, WorkflowConditions):
        with pytest.raises(InvalidRequest, match=r"'ids'.*<= 100"):
            filter_class(ids=("a",) * 101)


async def test_a_list_of_workflows_ends_with_the_last_match(flow: WorkflowBench) -> None:
    steps = chain(job("a"))
    only = (await flow.create(steps | {"name": "only"})).id
    for _ in range(3):
        await flow.create(steps | {"name": "other"})
    for wanted, matches, limit in (
        (WorkflowFilter(name="none"), [], 0),
        (WorkflowFilter(name="only"), [only], 1),
        (WorkflowFilter(name="only", offset=1), [], 0),
        (WorkflowFilter(name="only", offset=9), [], 0),
        (WorkflowFilter(limit=2, offset=3), [only], 1),
    ):
        with mock.patch.object(selection, "_older", wraps=selection._older) as older:
            page = await flow.service.workflows.select(wanted)
        assert [one.id for one in page.workflows] == matches
        assert [call.args[4] for call in older.call_args_list] == [limit], "it looks for no more than there are"
