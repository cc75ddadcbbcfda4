"""Schemas with numbers out of range, and with parts that no draft checks, are refused or registered."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.errors import InvalidRequest
from ojster.core.json_schema import compile_schema
from tests.conftest import Http

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("number", [b"1e999", b"1" + b"0" * 5_000])
async def test_a_number_out_of_range_in_a_schema_is_no_internal_error(http: Http, number: bytes) -> None:
    body = b'{"job_type":"a","version":1,"schema":{"type":"array","minItems":%b}}' % number
    answer = await http("POST", "/ojs/v1/schemas", body)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("part", [{"properties": "x"}, {"required": [["to"]]}, {"type": [["string"]]}])
async def test_no_part_of_a_schema_that_is_accepted_stops_the_comparison_with_the_next(http: Http, part: Any) -> None:
    for version, minimum in (("1.0", 1), ("1.1", 0)):
        schema = {"type": "array", "prefixItems": [part], "minItems": minimum}
        answer = await http("POST", "/ojs/v1/schemas", {"job_type": "a", "version": version, "schema": schema})
        assert answer.status_code in (201, 400), answer.text


def test_a_mistake_in_a_schema_of_the_current_draft_is_not_hidden_by_an_older_one() -> None:
    with pytest.raises(InvalidRequest):
        compile_schema({"type": "array", "prefixItems": [{"type": "strin"}]})
