"""Misspelt parameters and members: they are refused, because ignoring them would do something else than was meant."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.server.endpoints import routes_of
from ojster.server.route import BASE
from tests.conftest import Bench, Http
from tests.workflows.bench import chain, job

pytestmark = pytest.mark.anyio

LISTS = sorted(
    route.path
    for route in routes_of()
    if route.method == "GET" and route.path.startswith(BASE) and "{" not in route.path
    if not (route.streams or route.any_query)
)


@pytest.mark.parametrize("path", LISTS)
async def test_unknown_query_parameters_are_refused(http: Http, path: str) -> None:
    answer = await http("GET", path, params={"exekution": "1"})
    assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (400, "exekution")


@pytest.mark.parametrize(
    ("path", "body", "meant"),
    [
        ("/workers/ack", {"results": 7}, "result"),
        ("/workers/ack", {"result_": 1}, "result"),
        ("/workers/nack", {"errors": {"message": "x"}}, "error"),
    ],
)
async def test_misspelt_members_are_refused(
    http: Http, bench: Bench, path: str, body: dict[str, Any], meant: str
) -> None:
    await bench.push()
    active = await bench.fetch_one()
    answer = await http("POST", f"{BASE}{path}", {"job_id": active.id} | body)
    assert answer.status_code == 400
    assert f"did you mean '{meant}'?" in answer.json()["error"]["message"]
    assert (await bench.find(active)).state == "active"


async def test_other_unknown_members_are_accepted(http: Http, bench: Bench) -> None:
    await bench.push()
    active = await bench.fetch_one()
    answer = await http("POST", f"{BASE}/workers/ack", {"job_id": active.id, "duration_ms": 7, "colour": "red"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("dependencies", "depends_on"),
        ("needs", "depends_on"),
        ("needs_input", "manual"),
        ("workflow_data", "allow_failure"),
    ],
)
async def test_words_of_other_systems_are_refused_with_the_name_to_use(http: Http, word: str, meant: str) -> None:
    answer = await http("POST", f"{BASE}/workflows", chain(job("a", **{word: True})))
    assert answer.status_code == 400
    assert f"did you mean '{meant}'?" in answer.text
