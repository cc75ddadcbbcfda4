"""A filter that says nothing is refused where it would choose all jobs; a null says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.errors import InvalidRequest
from ojster.jobs.bulk import Action
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.filters import filter_of
from tests.conftest import Bench, Http


def test_an_unknown_member_is_refused_even_if_it_is_null() -> None:
    with pytest.raises(InvalidRequest):
        filter_of({"job_tpye": None})


@pytest.mark.anyio
@pytest.mark.parametrize("chosen", [{}, {"": None}, {"queue": None}])
async def test_a_filter_that_says_nothing_deletes_no_jobs(http: Http, chosen: dict[str, Any]) -> None:
    job = await http.push()
    assert (await http("POST", f"/ojs/v1/jobs/{job['id']}/cancel", {})).status_code == 200
    answer = await http("POST", "/ojs/v1/jobs/bulk/delete", {"filter": chosen})
    assert answer.status_code == 400, answer.text
    assert (await http("GET", f"/ojs/v1/jobs/{job['id']}")).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize("chosen", [JobFilter(), JobFilter(internal=True)])
async def test_a_service_refuses_a_filter_that_says_nothing_as_a_server_does(bench: Bench, chosen: JobFilter) -> None:
    job = await bench.push()
    for sweep in (
        bench.service.bulk.sweep(Action.CANCEL, chosen),
        bench.service.bulk.sweep_part(Action.CANCEL, chosen, None),
    ):
        with pytest.raises(InvalidRequest, match="would select all jobs"):
            await sweep
    assert (await bench.find(job)).state == "available"


def test_an_unknown_state_is_no_filter() -> None:
    with pytest.raises(InvalidRequest, match="Unknown state 'done'"):
        JobFilter(states=("done",))
