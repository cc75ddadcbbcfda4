"""Argument schemas: registration in versions, and validation when a job is pushed.

Spec: ojs-schema-registry
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.errors import InvalidRequest
from ojster.core.json_schema import breaking_changes, compile_schema, parse_version
from ojster.core.refusals import SchemaViolation
from ojster.jobs.schemas import Mode, Schema, register_schemas
from ojster.service import Service
from ojster.storage.open import open_database
from tests.conftest import Clock, Http, request
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

PERSON = {
    "type": "array",
    "prefixItems": [
        {"type": "object", "required": ["to"], "properties": {"to": {"type": "string", "format": "email"}}}
    ],
    "minItems": 1,
}


async def put(http: Http, version: Any, schema: Any = PERSON, type: str = "email.send", **more: Any) -> Any:
    return await http("PUT", f"/ojs/v1/admin/schemas/{type}/{version}", {"schema": schema} | more)


async def push(http: Http, *args: Any, **more: Any) -> Any:
    return await http("POST", "/ojs/v1/jobs", {"type": "email.send", "args": args} | more)


async def test_a_strict_schema_refuses_what_violates_it_and_says_why(http: Http) -> None:
    await put(http, 1, mode="strict")
    refused = await push(http, {"to": "nobody"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "validation_error")
    (wrong,) = refused.json()["error"]["details"]["validation_errors"]
    assert wrong.startswith("args[0].to: ")
    assert (await push(http)).status_code == 422
    assert (await push(http, {"to": "ada@example.com"})).status_code == 201
    batch = {"jobs": [{"type": "email.send", "args": []}], "mode": "partial"}
    assert (await http("POST", "/ojs/v1/jobs/batch", batch)).status_code == 422


async def test_a_warning_comes_with_the_job(http: Http) -> None:
    await put(http, 1)
    warned = await push(http, {"to": "nobody"})
    assert warned.status_code == 201
    assert len(warned.json()["warnings"]) == 1
    assert "warnings" not in (await push(http, {"to": "ada@example.com"})).json()
    await put(http, 2, {"type": "array", "maxItems": 0}, mode="off")
    assert "warnings" not in (await push(http, 5)).json()


async def test_steps_of_a_workflow_are_checked_when_it_is_created(http: Http) -> None:
    await put(http, 1, mode="strict")
    good, bad = ({"type": "email.send", "args": [{"to": to}]} for to in ("a@example.com", 5))
    later = {"type": "email.send", "args": [{"$ref": "steps.first.result"}]}
    for steps, status in (([good], 201), ([good | {"id": "first"}, later], 201), ([good, bad, bad], 400)):
        response = await http("POST", "/ojs/v1/workflows", {"type": "chain", "steps": steps})
        assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == "invalid_workflow"
    assert [one["path"] for one in error["details"]["validation_errors"]] == ["step 1", "step 2"]


async def test_a_job_keeps_to_the_schema_of_its_version_or_the_latest(http: Http) -> None:
    await put(http, "1.0", {"type": "array", "maxItems": 1}, mode="strict")
    await put(http, "2.0", {"type": "array", "maxItems": 2}, mode="strict")
    assert (await push(http, 1, 2)).status_code == 201
    assert (await push(http, 1, 2, version="1.0")).status_code == 422
    assert (await push(http, 1, 2, version=1)).status_code == 422
    assert (await push(http, 1, 2, 3, version="3.0")).status_code == 201, "there is no schema of this version"
    assert (await push(http, 1, version="latest")).status_code == 400
    named = await http("POST", "/ojs/v1/jobs", {"type": "email.send@1.0", "args": [1, 2]})
    assert named.status_code == 422
    kept = (await http("POST", "/ojs/v1/jobs", {"type": "email.send@1.0", "args": [1]})).json()["job"]
    assert (kept["type"], kept["version"]) == ("email.send", "1.0")
    both = (await push(http, 1, type="email.send@1.0", version="2.0")).json()["job"]
    assert both["version"] == "2.0"
    for wrong in ("email@send!", "email@", "@1.0", "email@1.0.0.0", "a@1@2"):
        assert (await push(http, 1, type=wrong)).status_code in (400, 422)


async def test_versions_are_listed_latest_first_whatever_the_order_they_came_in(http: Http) -> None:
    for version in ("1.2.0", "10.0.0", "1.10.0", "2.0.0"):
        await put(http, version, {"type": "array"})
    listed = (await http("GET", "/ojs/v1/schemas/email.send/versions")).json()["versions"]
    assert [one["version"] for one in listed] == ["10.0.0", "2.0.0", "1.10.0", "1.2.0"]
    assert [one["is_latest"] for one in listed] == [True, False, False, False]
    assert (await http("GET", "/ojs/v1/admin/schemas/email.send")).json()["version"] == "10.0.0"
    assert (await http("DELETE", "/ojs/v1/schemas/email.send/10.0.0")).status_code == 200
    assert (await http("GET", "/ojs/v1/schemas/email.send")).json()["registered"]["version"] == "2.0.0"
    assert (await http("GET", "/ojs/v1/schemas/nothing")).status_code == 404
    assert (await http("GET", "/ojs/v1/schemas/nothing/versions")).status_code == 404
    assert len((await http("GET", "/ojs/v1/schemas")).json()["schemas"]) == 3


async def test_a_version_is_registered_once(http: Http) -> None:
    body = {"job_type": "email.send", "version": "1.0.0", "schema": PERSON}
    assert (await http("POST", "/ojs/v1/schemas", body)).status_code == 201
    assert (await http("POST", "/ojs/v1/schemas", body)).status_code == 409
    assert (await put(http, 1)).status_code == 409, "1 and 1.0.0 are the same"


@pytest.mark.parametrize(
    "schema",
    [
        5,
        {"type": "nonsense"},
        {"type": "array", "minItems": -1},
        {"$ref": "http://example.com/elsewhere.json"},
        {"type": "string", "pattern": "(unclosed"},
    ],
)
async def test_what_is_no_schema_is_refused(http: Http, schema: Any) -> None:
    assert (await put(http, 1, schema)).status_code == 400
    assert (await http("PUT", "/ojs/v1/admin/schemas/email.send/1", {})).status_code == 400
    assert (await put(http, "latest")).status_code == 400
    assert (await put(http, 1, type="Not A Type")).status_code == 400


async def test_a_breaking_schema_change_needs_a_new_major_version(http: Http) -> None:
    await put(http, "1.0.0", {"type": "array", "maxItems": 5})
    refused = await put(http, "1.1.0", {"type": "array", "maxItems": 4})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "validation_error")
    assert refused.json()["error"]["details"]["breaking_changes"] == ["maxItems of args was narrowed to 4."]
    assert (await put(http, "1.1.0", {"type": "array", "maxItems": 6})).status_code == 201
    assert (await put(http, "2.0.0", {"type": "array", "maxItems": 4})).status_code == 201


@pytest.mark.parametrize(
    ("old", "new", "breaks"),
    [
        ({}, {"type": "object"}, True),
        ({"type": "integer"}, {"type": "number"}, False),
        ({"type": "number"}, {"type": "integer"}, True),
        ({"type": ["string", "null"]}, {"type": "string"}, True),
        ({"required": ["a"]}, {"required": ["a", "b"]}, True),
        ({"required": ["a", "b"]}, {"required": ["a"]}, False),
        ({"properties": {"a": {}}}, {"properties": {}}, True),
        ({"properties": {"a": {}}}, {"properties": {"a": {}, "b": {}}}, False),
        ({"enum": ["a", "b"]}, {"enum": ["a", "b", "c"]}, False),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, True),
        ({"minLength": 3}, {"minLength": 2}, False),
        ({"minLength": 3}, {"minLength": 4}, True),
        ({}, {"additionalProperties": False}, True),
        ({"additionalProperties": False}, {"additionalProperties": True}, False),
        ({"properties": {"a": {"maximum": 5}}}, {"properties": {"a": {"maximum": 4}}}, True),
        ({"prefixItems": [{"type": "string"}]}, {"prefixItems": [{"type": "integer"}]}, True),
        ({"items": {"maxLength": 5}}, {"items": {"maxLength": 6}}, False),
        ({"items": {"maxLength": 5}}, {"items": {"maxLength": 4}}, True),
    ],
)
async def test_breaking_changes_are_seen(old: Any, new: Any, breaks: bool) -> None:
    assert bool(breaking_changes(old, new)) is breaks


Values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=8)


@given(value=Values, args=Values)
async def test_an_enumeration_accepts_its_value_and_nothing_else(value: Any, args: Any) -> None:
    same = msgspec.json.encode(value) == msgspec.json.encode(args)
    for schema in ({"enum": [value]}, {"items": {"enum": [value]}, "type": "array", "minItems": 1}):
        check = compile_schema(schema)
        given_args = args if "enum" in schema else [args]
        messages = check(given_args)
        assert (messages == []) == same
        assert all(isinstance(one, str) for one in messages)


@given(schema=Values)
async def test_what_is_no_schema_is_rejected(schema: Any) -> None:
    if isinstance(schema, bool):
        return
    with pytest.raises(InvalidRequest):
        compile_schema(schema)


async def test_versions_are_three_numbers() -> None:
    assert parse_version(2) == parse_version("2") == parse_version("2.0") == parse_version("2.0.0") == (2, 0, 0)
    for bad in ("", "v1", "1.2.3.4", "01", -1, 1.5, True, None, "1." + "9" * 20):
        with pytest.raises(InvalidRequest):
            parse_version(bad)


async def test_other_processes_hear_of_a_new_schema(shared_url: str, clock: Clock) -> None:
    engines = [Service(open_database(shared_url, clock=clock)) for _ in range(2)]
    for service in engines:
        await service.jobs.enqueue([request()])
    schema = Schema("test.job", (1, 0, 0), "1", Mode.STRICT, b'{"type":"array","minItems":1}')
    await engines[0].scope.do(register_schemas, schema)
    async with asyncio.timeout(PATIENCE):
        for service in engines:
            while True:
                try:
                    await service.jobs.enqueue([request()])
                except SchemaViolation:
                    break
                await asyncio.sleep(0.01)
    for service in engines:
        await service.close()


URI = "urn:ojs:schema:email.send:v1"


async def test_a_schema_is_registered_found_and_deleted_by_its_uri(http: Http) -> None:
    body = {"uri": URI, "type": "email.send", "version": 1, "schema": PERSON, "mode": "strict"}
    made = await http("POST", "/ojs/v1/schemas", body)
    assert made.status_code == 201
    assert made.json()["schema"]["uri"] == URI
    path = "/ojs/v1/schemas/urn%3Aojs%3Aschema%3Aemail.send%3Av1"
    shown = (await http("GET", path)).json()["schema"]
    assert (shown["uri"], shown["type"], shown["version"], shown["schema"]) == (URI, "email.send", 1, PERSON)
    listed = (await http("GET", "/ojs/v1/schemas?limit=1")).json()
    assert (listed["schemas"][0]["uri"], listed["pagination"]["total"]) == (URI, 1)
    assert (await http("POST", "/ojs/v1/schemas", body | {"version": 2})).status_code == 409
    gone = await http("DELETE", path)
    assert (gone.json()["deleted"], gone.json()["uri"]) == (True, URI)
    assert (await http("GET", path)).status_code == 404
    assert (await http("DELETE", path)).status_code == 404
    assert (await http("DELETE", "/ojs/v1/schemas/email.send")).status_code == 400


async def test_the_uri_of_a_schema_may_have_slashes(http: Http) -> None:
    uri = "https://example.com/schemas/email.send/v1.json"
    body = {"uri": uri, "type": "email.send", "version": 1, "schema": PERSON}
    assert (await http("POST", "/ojs/v1/schemas", body)).status_code == 201
    path = f"/ojs/v1/schemas/{quote(uri, safe='')}"
    assert (await http("GET", path)).json()["uri"] == uri
    assert (await http("GET", path.replace("%2F", "%2f"))).json()["uri"] == uri
    assert (await http("DELETE", path)).json()["deleted"] is True
    gone = await http("GET", path)
    assert gone.status_code == 404
    assert uri in gone.text


async def test_a_schema_without_a_uri_has_that_of_its_type_and_version(http: Http) -> None:
    await put(http, 1)
    shown = (await http("GET", "/ojs/v1/schemas/urn:ojs:schema:email.send:v1")).json()["schema"]
    assert (shown["type"], shown["schema"]) == ("email.send", PERSON)


async def test_a_job_is_validated_against_the_schema_that_it_names(http: Http) -> None:
    await put(http, 1, mode="strict")
    await put(http, 2, {"type": "array", "maxItems": 0}, mode="strict")
    assert (await push(http, {"to": "ada@example.com"})).status_code == 422, "the latest holds"
    assert (await push(http, {"to": "ada@example.com"}, schema=URI)).status_code == 201
    refused = await push(http, {"to": "nobody"}, schema=URI)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "validation_error")
    other = await http("POST", "/ojs/v1/jobs", {"type": "another", "args": [], "schema": URI})
    assert other.status_code == 422
    kept = (await push(http, schema="urn:ojs:schema:email.send:v2")).json()["job"]
    assert kept["schema"] == "urn:ojs:schema:email.send:v2"


async def test_a_schema_that_nobody_registered_is_kept_with_a_warning(http: Http) -> None:
    made = (await push(http, schema="https://example.com/schemas/email")).json()
    assert made["job"]["schema"] == "https://example.com/schemas/email"
    assert "https://example.com/schemas/email" in made["warnings"][0]


@pytest.mark.parametrize("given", ["not a uri", "", 7, {"type": "array"}, "urn:" + "x" * 600])
async def test_what_is_no_uri_is_no_schema_of_a_job(http: Http, given: Any) -> None:
    answer = await push(http, schema=given)
    assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (400, "schema")


async def test_a_step_is_validated_against_the_schema_that_it_names(http: Http) -> None:
    await put(http, 1, mode="strict")
    step = {"type": "another", "args": [{"to": "nobody"}], "schema": URI}
    answer = await http("POST", "/ojs/v1/workflows", {"type": "chain", "steps": [step]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_workflow")
