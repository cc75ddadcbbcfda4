"""Token usage of agents over HTTP.

Spec: ojs-ai-agents
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Http

pytestmark = pytest.mark.anyio


async def push(http: Http, status: int = 201, **agent: Any) -> dict[str, Any]:
    body = {"type": "agent", "args": []} | {f"ext_agent_{name}": value for name, value in agent.items()}
    response = await http("POST", "/ojs/v1/jobs", body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def use(http: Http, job_id: str, status: int = 200, **body: Any) -> dict[str, Any]:
    response = await http("POST", f"/ojs/v1/jobs/{job_id}/agent/usage", body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_call_is_charged_by_estimate_and_corrected_afterwards(http: Http) -> None:
    id = (await push(http, token_budget=1000))["job"]["id"]
    await http.fetch(worker_id="w")
    charged = await use(http, id, tokens=800, is_estimate=True, worker_id="w", attempt=1)
    assert (charged["tokens_used"], charged["token_budget"], charged["tokens_left"]) == (800, 1000, 200)
    refused = (await use(http, id, 429, tokens=201, is_estimate=True))["error"]
    assert (refused["code"], refused["retryable"]) == ("AGENT_TOKEN_BUDGET_EXCEEDED", False)
    assert refused["details"]["ext_agent_token_budget"] == 1000
    assert (await use(http, id, tokens=500, estimated=800, model="large"))["tokens_left"] == 500
    assert (await http("GET", f"/ojs/v1/jobs/{id}")).json()["job"]["ext_agent_tokens_used"] == 500
    assert (await use(http, id, 400, tokens=-1))["error"]["code"] == "invalid_request"
    assert (await use(http, id, 400, estimated=1))["error"]["code"] == "AGENT_INVALID_PARAMETER"


async def test_refusals_have_the_codes_of_the_specification(http: Http) -> None:
    assert (await push(http, 400, temperature=3))["error"]["code"] == "AGENT_INVALID_PARAMETER"
    root = (await push(http, max_delegation_depth=1))["job"]["id"]
    await http.fetch(worker_id="w")
    for too_deep in ({"parent_id": root}, {"max_delegation_depth": 0}):
        assert (await push(http, 400, **too_deep))["error"]["code"] == "AGENT_MAX_DELEGATION_DEPTH"
    tool: dict[str, Any] = {"tool_call_id": "c", "name": "shell", "result": {}, "error": None}
    assert (await use(http, root, 400, tool_result=tool))["error"]["code"] == "AGENT_TOOL_NOT_FOUND"
    shaped = (await push(http, output_schema={"type": "object"}))["job"]["id"]
    await http.fetch(worker_id="w")
    response = await http("POST", "/ojs/v1/workers/ack", {"job_id": shaped, "result": 3, "worker_id": "w"})
    assert (response.status_code, response.json()["error"]["code"]) == (422, "AGENT_OUTPUT_SCHEMA_VIOLATION")
    assert (await http("GET", f"/ojs/v1/jobs/{shaped}")).json()["job"]["state"] == "retryable"
