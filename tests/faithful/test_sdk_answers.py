"""Answers to the official SDKs, which send the header ``OJS-Version``, and to everybody else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Http

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"
SDK = {"OJS-Version": "1.0", "Accept": "application/openjobspec+json"}


async def ask(http: Http, method: str, path: str, body: Any = None, headers: dict[str, str] = SDK) -> dict[str, Any]:
    answer = await http(method, f"{BASE}{path}", body, headers=headers)
    assert answer.status_code < 400, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def test_an_object_in_a_wrapper_is_beside_it_for_sdks_alone(http: Http) -> None:
    made = await ask(http, "POST", "/jobs", {"type": "a", "args": [{"to": "é", "n": 12345678901234567890}]})
    assert made["job"].items() <= made.items()
    path = f"/jobs/{made['id']}"
    assert (await ask(http, "GET", path))["args"] == [{"to": "é", "n": 12345678901234567890}]
    assert (await ask(http, "GET", path, headers={})).keys() == {"job"}

    steps = [{"type": "a", "args": []}, {"type": "b", "args": []}]
    flow = await ask(http, "POST", "/workflows", {"type": "chain", "steps": steps})
    shown = await ask(http, "GET", f"/workflows/{flow['id']}")
    assert shown["workflow"].items() <= shown.items()
    assert (await ask(http, "GET", f"/workflows/{flow['id']}", headers={})).keys() == {"workflow"}

    cancelled = await ask(http, "DELETE", path)
    assert (cancelled["id"], cancelled["state"]) == (made["id"], "cancelled")


@pytest.mark.parametrize(
    "other", [{}, {"Accept": "application/json"}, {"Accept": "*/*"}, {"User-Agent": "Go-http-client-of-mine/1.0"}]
)
async def test_the_command_line_gets_the_answers_of_sdks(http: Http, other: dict[str, str]) -> None:
    command_line = {"User-Agent": "Go-http-client/1.1", "Accept": "application/openjobspec+json"}
    headers = command_line | other
    made = await ask(http, "POST", "/jobs", {"type": "a", "args": []}, headers=headers)
    assert ("id" in made) is (headers == command_line)


async def test_what_the_answer_says_itself_takes_precedence(http: Http) -> None:
    body = {"type": "a", "args": [], "deduplicated": "mine", "options": {"unique": {"on_conflict": "ignore"}}}
    first, second = [await ask(http, "POST", "/jobs", body) for _ in range(2)]
    assert (first["deduplicated"], second["deduplicated"]) == ("mine", True)
    assert first["job"] == second["job"]


async def test_a_cron_job_and_statistics_have_the_members_that_sdks_name_like_the_wrapper(http: Http) -> None:
    body = {"name": "nightly", "cron": "@daily", "type": "a", "args": []}
    made = await ask(http, "POST", "/cron", body)
    assert (made["cron"], made["cron_job"]["cron"], made["name"], made["is_new"]) == (
        "@daily",
        "@daily",
        "nightly",
        True,
    )
    assert (await ask(http, "GET", "/cron/nightly", headers={}))["cron"]["name"] == "nightly"

    await http.push(type="a")
    stats = await ask(http, "GET", "/queues/default/stats")
    assert stats["stats"]["available"] == 1
    assert {name: stats[name] for name in ("queue", "available", "depth", "paused")} == {
        "queue": "default",
        "available": 1,
        "depth": 1,
        "paused": False,
    }
    assert (await ask(http, "GET", "/queues/default/stats", headers={}))["queue"]["name"] == "default"
    assert (await ask(http, "POST", "/queues/default/pause"))["queue"]["name"] == "default"


async def test_an_error_and_a_list_are_the_same_for_sdks(http: Http) -> None:
    await http.push(type="a")
    for path in ("/jobs/nowhere", "/jobs?limit=1"):
        to_sdk, to_others = [
            (await http("GET", f"{BASE}{path}", headers=headers | {"X-Request-Id": "r"})).json()
            for headers in (SDK, {"Accept": SDK["Accept"]})
        ]
        assert to_sdk == to_others


async def test_the_sdks_for_python_and_javascript_find_their_checkpoints_again(http: Http) -> None:
    job = await http.push(type="a")
    path = f"{BASE}/checkpoints/{job['id']}"
    assert await ask(http, "GET", f"{path}/resume") == {"has_checkpoint": False}
    saved = {"state": {"row": 7}, "step_index": 2, "metadata": {"_replay_log": "[]", "attempt": "1"}}
    assert (await ask(http, "POST", path, saved))["sequence"] == 1
    resumed = await ask(http, "GET", f"{path.replace(job['id'], job['id'].upper())}/resume")
    assert resumed == {"has_checkpoint": True, "checkpoint": saved}
    assert (await ask(http, "GET", f"/jobs/{job['id']}/checkpoint"))["state"] == saved
    assert (await http.fetch())[0]["checkpoint"]["state"] == saved

    alike = {"state": 1, "step_index": "two", "metadata": []}
    for plain in ([7], {"state": 7}, alike):
        await ask(http, "PUT", f"/jobs/{job['id']}/checkpoint", {"state": plain})
        assert (await ask(http, "GET", f"{path}/resume"))["checkpoint"]["state"] == plain
    await ask(http, "DELETE", path)
    assert await ask(http, "GET", f"{path}/resume") == {"has_checkpoint": False}


async def test_a_checkpoint_of_no_job_is_refused_at_either_address(http: Http) -> None:
    for method, path in (("POST", ""), ("GET", "/resume"), ("DELETE", "")):
        answer = await http(method, f"{BASE}{BASE}/checkpoints/nowhere{path}", {"state": 1}, headers=SDK)
        assert answer.status_code == 404


async def test_unknown_parameters_of_lists_bring_warnings_to_sdks_and_are_refused_for_others(http: Http) -> None:
    await http.push(type="a")
    listed = await ask(
        http, "GET", "/jobs?label=x&limit=1&order=created_at&type=b&type=&type=a&queue=default&queue=default"
    )
    assert len(listed["jobs"]) == 1
    assert [warning.partition(".")[0] for warning in listed["warnings"]] == [
        "This endpoint has no query parameter 'label'",
        "This endpoint has no query parameter 'order'",
        "The query parameter 'type' occurs with several values",
    ]
    refused = await http("GET", f"{BASE}/jobs?order=created_at")
    assert (refused.status_code, "It has cron_name" in refused.text) == (400, True)
    changing = await http("DELETE", f"{BASE}/jobs/{listed['jobs'][0]['id']}?order=x", headers=SDK)
    assert changing.status_code == 400, "what changes something is refused for SDKs as well"


async def test_a_list_of_queues_without_parameters_of_pages_has_as_many_as_a_page_can_have(http: Http) -> None:
    for number in range(60):
        await http.push(options={"queue": f"q{number}"})
    listed = await ask(http, "GET", "/queues", headers={})
    assert (len(listed["queues"]), listed["pagination"]["limit"]) == (60, 200)


async def test_members_of_drafts_are_kept_and_shown(http: Http) -> None:
    members = {
        "ext_agent_v2": {"state": "running", "tool_retry": {"max_attempts": 2}},
        "ext_attest": {"enabled": True, "algorithm": "ed25519"},
        "ext_wasi": {"module": "m"},
    }
    job = await http.push(**members, meta={"ojs.ext_runtime": {"name": "wasi:ojs"}})
    (fetched,) = await http.fetch()
    shown = await ask(http, "GET", f"/jobs/{job['id']}", headers={})
    for seen in (job, fetched, shown["job"]):
        assert members.items() <= seen.items()
