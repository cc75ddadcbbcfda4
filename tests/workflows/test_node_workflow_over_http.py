"""HTTP scenarios of node-workflow. Each test bears the number of its scenario."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Http

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"
UNKNOWN_ID = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
FLOW = {
    "name": "A workflow",
    "type": "chain",
    "steps": [{"body": "def body(job): return 'OK'"}, {"type": "mail", "args": []}],
    "on_error": {"type": "mend", "args": []},
}


@pytest.fixture
def url(shared_url: str) -> str:
    """URL of each database: a file and PostgreSQL."""
    return shared_url


async def define(http: Http, name: str = "flow", **more: Any) -> Any:
    return await http("POST", f"{BASE}/definitions", FLOW | {"name": name} | more)


async def start(http: Http, **more: Any) -> Any:
    return await http("POST", f"{BASE}/workflows", {"definition": "flow"} | more)


async def test_080_there_are_no_definitions_at_first(http: Http) -> None:
    answer = await http("GET", f"{BASE}/definitions")
    assert (answer.status_code, answer.json()["definitions"]) == (200, [])


async def test_081_a_definition_is_made(http: Http) -> None:
    made = await http("POST", f"{BASE}/definitions", FLOW | {"name": "flow"}, headers={"X-Request-Id": "mine"})
    assert (made.status_code, made.headers["location"]) == (201, f"{BASE}/definitions/flow")
    assert made.headers["x-request-id"] == "mine"
    shown = made.json()["definition"]
    assert [len(value) for value in shown["hashes"].values()] == [64, 64]
    assert shown["workflow"]["steps"][0]["body"].startswith("def body")


async def test_082_a_name_is_taken_once(http: Http) -> None:
    await define(http)
    refused = await define(http)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "duplicate")


async def test_083_a_task_without_a_body_or_a_type_is_refused(http: Http) -> None:
    for branch in ("steps", "on_error", "on_cancel"):
        wrong: dict[str, Any] = {branch: [{"args": []}] if branch == "steps" else {"args": []}}
        refused = await define(http, **wrong)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_workflow")
    no_name = await http("POST", f"{BASE}/definitions", {"type": "chain", "steps": FLOW["steps"]})
    assert no_name.status_code == 400


async def test_084_definitions_are_listed_and_found_by_name(http: Http) -> None:
    await define(http)
    for query, names in (("", ["flow"]), ("?name=flow", ["flow"]), ("?name=whatever", [])):
        answer = await http("GET", f"{BASE}/definitions{query}")
        assert [one["name"] for one in answer.json()["definitions"]] == names


async def test_085_a_definition_is_shown_or_is_not_there(http: Http) -> None:
    await define(http)
    assert (await http("GET", f"{BASE}/definitions/flow")).json()["definition"]["version"] == 1
    missing = await http("GET", f"{BASE}/definitions/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


async def test_086_a_definition_is_replaced_by_a_new_version(http: Http) -> None:
    await define(http)
    steps = [*FLOW["steps"], {"type": "more", "args": []}]
    changed = (await http("PUT", f"{BASE}/definitions/flow", {"type": "chain", "steps": steps})).json()["definition"]
    assert (changed["version"], len(changed["workflow"]["steps"]), set(changed["hashes"])) == (2, 3, {"steps"})
    assert (await http("PUT", f"{BASE}/definitions/other", {"type": "chain", "steps": steps})).status_code == 404
    assert (await http("PUT", f"{BASE}/definitions/flow", {"type": "chain", "steps": [{}]})).status_code == 400


async def test_087_there_are_no_jobs_at_first_and_only_states_that_are_there_are_asked_for(http: Http) -> None:
    for query in ("", "?state=running", "?state=retried"):
        answer = await http("GET", f"{BASE}/workflows{query}")
        assert (answer.status_code, answer.json()["workflows"]) == (200, [])
    refused = await http("GET", f"{BASE}/workflows?state=sleepy")
    assert (refused.status_code, "sleepy" in refused.json()["error"]["message"]) == (400, True)


async def test_088_a_job_needs_a_definition_that_is_there(http: Http) -> None:
    assert (await http("POST", f"{BASE}/workflows", {"target": "x"})).status_code == 400
    assert (await start(http)).status_code == 404


async def test_089_a_job_is_made(http: Http) -> None:
    await define(http)
    made = await start(http, target="/foo", params={"foo": "bar"}, properties={"extra": 1}, locks="^/never$")
    shown = made.json()["workflow"]
    assert (made.status_code, made.headers["location"]) == (201, f"{BASE}/workflows/{shown['id']}")
    assert (shown["state"], shown["definition"], shown["target"]) == ("running", "flow", "/foo")
    assert (shown["params"], shown["locks"]) == ({"foo": "bar"}, "^/never$")


async def test_090_a_target_is_taken_for_the_same_parameters(http: Http) -> None:
    await define(http)
    await start(http, target="/foo", params={"n": 1})
    refused = await start(http, target="/foo", params={"n": 1})
    assert (refused.status_code, "same definition, target and params" in refused.text) == (409, True)
    assert (await start(http, target="/foo", params={"n": 2})).status_code == 201


async def test_091_jobs_are_listed_by_state_and_target(http: Http) -> None:
    await define(http)
    first = (await start(http, target="/a")).json()["workflow"]["id"]
    await start(http, target="/b")
    await http("DELETE", f"{BASE}/workflows/{first}")
    for query, count in (
        ("", 2),
        ("?state=running", 1),
        ("?state=cancelled&target=/a", 1),
        ("?target=/b&definition=flow", 1),
        ("?state=cancelled&target=/b", 0),
    ):
        assert (await http("GET", f"{BASE}/workflows{query}")).json()["pagination"]["total"] == count, query


async def test_092_statistics_have_four_spans_of_time(http: Http) -> None:
    await define(http)
    await start(http)
    found = (await http("GET", f"{BASE}/workflows/statistics")).json()["statistics"]
    assert set(found) == {"current", "past_hour", "past_24h", "all_time"}
    assert found["current"]["running"] == 1
    assert (await http("GET", f"{BASE}/workflows/statistics?definition=other")).json()["statistics"]["current"][
        "running"
    ] == 0


async def test_093_a_job_is_shown_or_is_not_there(http: Http) -> None:
    await define(http)
    id = (await start(http)).json()["workflow"]["id"]
    assert (await http("GET", f"{BASE}/workflows/{id}")).json()["workflow"]["id"] == id
    missing = await http("GET", f"{BASE}/workflows/{UNKNOWN_ID}")
    assert (missing.status_code, UNKNOWN_ID in missing.json()["error"]["message"]) == (404, True)


async def test_094_information_is_added_and_listed(http: Http) -> None:
    await define(http)
    id = (await start(http)).json()["workflow"]["id"]
    for method in ("GET", "POST"):
        body = {"note": 1} if method == "POST" else None
        assert (await http(method, f"{BASE}/workflows/{UNKNOWN_ID}/info", body)).status_code == 404
        assert (await http(method, f"{BASE}/jobs/{UNKNOWN_ID}/info", body)).status_code == 404
    assert (await http("GET", f"{BASE}/workflows/{id}/info")).json()["notes"] == []
    await http("POST", f"{BASE}/workflows/{id}/info", {"note": {"10%": "so far"}})
    assert [note["note"] for note in (await http("GET", f"{BASE}/workflows/{id}/info")).json()["notes"]] == [
        {"10%": "so far"}
    ]


async def test_095_a_job_is_cancelled_once(http: Http) -> None:
    await define(http)
    id = (await start(http)).json()["workflow"]["id"]
    assert (await http("DELETE", f"{BASE}/workflows/{UNKNOWN_ID}")).status_code == 404
    assert (await http("DELETE", f"{BASE}/workflows/{id}")).json()["workflow"]["state"] == "cancelled"
    assert (await http("DELETE", f"{BASE}/workflows/{id}")).status_code == 409


async def test_096_only_a_job_that_waits_is_resumed(http: Http) -> None:
    await define(http, steps=[{"type": "mail", "args": []}])
    assert (await http("POST", f"{BASE}/workflows/{UNKNOWN_ID}/resume", {})).status_code == 404
    for body, state in (({"result": "sent"}, "completed"), ({"error": "bounced"}, "failed")):
        id = (await start(http)).json()["workflow"]["id"]
        refused = await http("POST", f"{BASE}/workflows/{id}/resume", body)
        assert (refused.status_code, "it has no suspended job" in refused.text) == (409, True)
        (job,) = await http.fetch()
        await http("POST", f"{BASE}/workers/release", {"job_id": job["id"], "then": "wait"})
        resumed = await http("POST", f"{BASE}/workflows/{id}/resume", body)
        assert resumed.status_code == 200, resumed.text
        (result,) = (await http("GET", f"{BASE}/workflows/{id}/status")).json()["status"]["results"]["steps"]
        assert result.get("result", result.get("error", {}).get("message")) == next(iter(body.values()))
        for left in await http.fetch():
            await http("POST", f"{BASE}/workers/ack", {"job_id": left["id"]})
        assert (await http("GET", f"{BASE}/workflows/{id}")).json()["workflow"]["state"] == state


async def test_097_a_definition_is_deleted_once_and_not_while_it_is_used(http: Http) -> None:
    await define(http)
    id = (await start(http)).json()["workflow"]["id"]
    assert (await http("DELETE", f"{BASE}/definitions/flow")).status_code == 409
    await http("DELETE", f"{BASE}/workflows/{id}")
    assert (await http("DELETE", f"{BASE}/definitions/flow")).status_code == 200
    assert (await http("DELETE", f"{BASE}/definitions/flow")).status_code == 404


async def test_113_a_ping_is_answered_and_503_if_the_database_is_away(http: Http, service: Any) -> None:
    assert (await http("GET", f"{BASE}/ping")).json()["backend"] == "up"
    service.database.close()
    away = await http("GET", f"{BASE}/ping")
    assert away.status_code == 503
