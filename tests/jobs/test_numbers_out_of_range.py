"""Numbers that no double holds, such as 1e999: refused, or kept as they are, but never an internal error."""

from __future__ import annotations

import pytest

from ojster.core.json_objects import read_members
from ojster.jobs.contents import carries_code, objects_in
from tests.conftest import Http

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs", b'{"type":"a","args":[],"meta":{"trace_id":1e999}}'),
        ("/jobs", b'{"type":"a","args":[],"meta":{"traceparent":1e999}}'),
        ("/jobs/batch", b'{"mode":"partial","jobs":[{"type":"a","args":[],"meta":{"trace_id":1e999}}]}'),
        ("/workflows", b'{"type":"chain","steps":[{"type":"a","args":[],"meta":{"trace_id":1e999}}]}'),
        ("/cron", b'{"name":"n","expression":"@daily","type":"t","meta":{"trace_id":1e999}}'),
    ],
)
async def test_a_trace_that_is_a_number_out_of_range_is_no_internal_error(http: Http, path: str, body: bytes) -> None:
    answer = await http("POST", f"/ojs/v1{path}", body)
    assert answer.status_code < 500, answer.text


async def test_such_a_number_in_meta_does_not_stop_bulk_operations_by_meta(http: Http) -> None:
    await http("POST", "/ojs/v1/jobs", b'{"type":"a","args":[],"meta":{"n":1e999}}')
    wanted = await http.push(meta={"n": 1})
    answer = await http("POST", "/ojs/v1/jobs/bulk/cancel", {"filter": {"meta": {"n": 1}}})
    assert answer.status_code == 200, answer.text
    assert [item["job_id"] for item in answer.json()["items"]] == [wanted["id"]]


@pytest.mark.parametrize("body", [b'{"type":"m","args":[1e999]}', b'{"type":"m","args":[],"version":1e999}'])
async def test_such_a_number_in_arguments_with_a_schema_is_no_internal_error(http: Http, body: bytes) -> None:
    await http("POST", "/ojs/v1/schemas", {"job_type": "m", "version": 1, "schema": {"type": "array"}})
    answer = await http("POST", "/ojs/v1/jobs", body)
    assert answer.status_code < 500, answer.text


def test_such_a_number_does_not_keep_a_token_without_the_role_coder_from_pushing() -> None:
    body = b'{"type":"a","args":[1e999]}'
    assert read_members(body)
    assert not carries_code(objects_in(body))
