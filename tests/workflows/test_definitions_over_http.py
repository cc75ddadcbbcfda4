"""Workflow definitions over HTTP."""

from __future__ import annotations

import pytest

from tests.conftest import Http
from tests.workflows.test_definitions import BODY, SCHEMA

pytestmark = pytest.mark.anyio


async def test_definitions_over_http(http: Http) -> None:
    made = await http("POST", "/ojs/v1/definitions", {"name": "gist", "params_schema": SCHEMA} | BODY)
    assert (made.status_code, made.headers["location"]) == (201, "/ojs/v1/definitions/gist")
    shown = made.json()["definition"]
    assert (shown["name"], shown["version"], shown["workflow"]["type"]) == ("gist", 1, "chain")
    assert set(shown["hashes"]) == {"steps", "on_error"}
    assert (await http("PUT", "/ojs/v1/definitions/gist", BODY)).json()["definition"]["version"] == 2
    assert (await http("GET", "/ojs/v1/definitions/gist/versions/1")).json()["definition"] == shown
    assert (await http("GET", "/ojs/v1/definitions/gist/versions/x")).status_code == 400
    listed = (await http("GET", "/ojs/v1/definitions")).json()
    assert ([one["version"] for one in listed["definitions"]], listed["pagination"]["total"]) == ([2], 1)
    start = {"definition": "gist", "target": "/gists", "params": {"what": "x"}}
    workflow = (await http("POST", "/ojs/v1/workflows", start)).json()["workflow"]
    assert (workflow["definition"], workflow["definition_version"], workflow["target"]) == ("gist", 2, "/gists")
    refused = await http("POST", "/ojs/v1/workflows", start)
    assert refused.status_code == 409
    assert refused.json()["error"]["details"]["existing_workflow_id"] == workflow["id"]
    assert (await http("DELETE", "/ojs/v1/definitions/gist")).status_code == 409
    assert (await http("DELETE", "/ojs/v1/definitions/gist?force=true")).status_code == 200
    assert (await http("GET", "/ojs/v1/definitions/gist")).status_code == 404
    await http("POST", "/ojs/v1/definitions", {"name": "gist", "params_schema": SCHEMA} | BODY)
    for raw in (
        b'{"definition":"gist","target":"t","params":{"what":1e999}}',
        b'{"definition":"gist","params":{"what":"\\ud800"}}',
    ):
        refused = await http("POST", "/ojs/v1/workflows", raw)
        assert refused.status_code == 400, refused.text
    for body in ({}, {"name": 3}):
        assert (await http("POST", "/ojs/v1/definitions", body | BODY)).status_code == 400
