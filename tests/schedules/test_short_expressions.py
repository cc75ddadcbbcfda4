"""Cron expressions with too few fields are refused in every time zone."""

from __future__ import annotations

import pytest

from ojster.core.errors import InvalidRequest
from ojster.schedules.cron_expression import CronSchedule
from tests.conftest import Http


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("expression", ["", " ", "*", "* * *"])
def test_an_expression_with_too_few_fields_is_refused(expression: str, zone: str) -> None:
    with pytest.raises(InvalidRequest):
        CronSchedule(expression, zone)


@pytest.mark.anyio
async def test_it_is_refused_over_http(http: Http) -> None:
    body = {"name": "n", "expression": "0 2", "timezone": "Europe/Berlin", "type": "t"}
    assert (await http("POST", "/ojs/v1/cron", body)).status_code == 400
