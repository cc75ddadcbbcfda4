"""Times at the ends of the calendar: what is accepted can be shown, and read again."""

from __future__ import annotations

import pytest

from ojster.core.errors import InvalidRequest
from ojster.core.timestamps import format_timestamp, parse_timestamp
from tests.conftest import Http

pytestmark = pytest.mark.anyio

EXTREMES = ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z", "0999-12-31T23:59:59Z"]


@pytest.mark.parametrize("text", EXTREMES)
def test_a_time_that_is_accepted_can_be_shown_and_read_again(text: str) -> None:
    try:
        moment = parse_timestamp(text)
    except InvalidRequest:
        return
    assert parse_timestamp(format_timestamp(moment)) == moment


@pytest.mark.parametrize("name", ["scheduled_at", "expires_at"])
@pytest.mark.parametrize("text", EXTREMES)
async def test_no_time_of_a_workflow_spoils_the_list_of_all_workflows(http: Http, name: str, text: str) -> None:
    created = await http(
        "POST", "/ojs/v1/workflows", {"type": "chain", "steps": [{"type": "a", "args": []}], name: text}
    )
    assert created.status_code in (201, 400), created.text
    listed = await http("GET", "/ojs/v1/workflows")
    assert listed.status_code == 200, listed.text
