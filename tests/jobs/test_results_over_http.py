"""Results of jobs over HTTP: one, several, and with a wait.

Spec: ojs-results 8
"""

from __future__ import annotations

import asyncio

import pytest

from ojster.jobs import service
from tests.conftest import Bench, Http
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def test_the_result_of_a_completed_job_is_shown(bench: Bench, http: Http) -> None:
    job = await bench.push()
    path = f"/ojs/v1/jobs/{job.id}/result"
    early = await http("GET", path)
    assert (early.json(), early.headers["retry-after"]) == (
        {"job_id": job.id, "state": "available", "result": None},
        "1",
    )
    assert (await http("GET", f"/ojs/v1/jobs/{job.id}")).headers["retry-after"] == "1"
    assert "retry-after" not in (await http("GET", f"/ojs/v1/jobs/{job.id}?wait_ms=1")).headers
    await bench.ack(await bench.fetch_one(), b'{"rows":3}')
    answer = await http("GET", path)
    stored = {"result_stored_at": "2027-01-15T08:00:00.000000Z", "result_size_bytes": 10}
    assert answer.json() == {"job_id": job.id, "state": "completed", "result": {"rows": 3}} | stored
    assert "retry-after" not in answer.headers
    assert "retry-after" not in (await http("GET", f"/ojs/v1/jobs/{job.id}")).headers


async def test_the_error_of_a_failed_job_is_shown(bench: Bench, http: Http) -> None:
    job = await bench.push(retry={"max_attempts": 1})
    await bench.fail(await bench.fetch_one(), type="TooBad")
    shown = (await http("GET", f"/ojs/v1/jobs/{job.id}/result?wait=true")).json()
    assert (shown["state"], shown["result"], shown["error"]["type"]) == ("discarded", None, "TooBad")


async def test_a_wait_ends_with_the_result(bench: Bench, http: Http) -> None:
    job = await bench.push()
    waiting = asyncio.create_task(http("GET", f"/ojs/v1/jobs/{job.id}/result?wait=true&timeout=30"))
    await bench.ack(await bench.fetch_one(), b"7")
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).json()["result"] == 7


async def test_a_wait_that_is_too_short_ends_with_408(bench: Bench, http: Http) -> None:
    job = await bench.push()
    answer = await http("GET", f"/ojs/v1/jobs/{job.id}/result?wait=true&timeout=0")
    assert (answer.status_code, answer.json()["error"]["retryable"]) == (408, True)


async def test_several_results_are_shown_at_once(bench: Bench, http: Http) -> None:
    done, open_ = await bench.push(), await bench.push()
    await bench.ack(await bench.fetch_one(), b'"ok"')
    missing = "01a20510-6568-7048-8263-0e7df0a02a34"
    answer = await http("POST", "/ojs/v1/jobs/results", {"ids": [done.id, open_.id, missing]})
    stored = {"result_stored_at": "2027-01-15T08:00:00.000000Z", "result_size_bytes": 4}
    assert answer.json()["results"] == {
        done.id: {"state": "completed", "result": "ok"} | stored,
        open_.id: {"state": "available", "result": None},
    }


async def test_results_beyond_what_an_answer_holds_are_left_to_the_next_request(
    bench: Bench, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LARGEST_RESULTS", 100)
    monkeypatch.setattr(service, "RESULTS_AT_ONCE", 2)
    ids = []
    for _ in range(5):
        ids.append((await bench.push()).id)
        await bench.ack(await bench.fetch_one(), b'"%b"' % (b"x" * 60))
    first = (await http("POST", "/ojs/v1/jobs/results", {"ids": ids})).json()
    assert (list(first["results"]), first["omitted"]) == (ids[:2], ids[2:])
    rest = (await http("POST", "/ojs/v1/jobs/results", {"ids": first["omitted"][:2]})).json()
    assert (list(rest["results"]), "omitted" in rest) == (ids[2:4], False)


@pytest.mark.parametrize("ids", [[], ["x"] * 1_001, "x", [1]])
async def test_malformed_lists_of_jobs_are_refused(http: Http, ids: object) -> None:
    assert (await http("POST", "/ojs/v1/jobs/results", {"ids": ids})).status_code == 400


async def test_the_result_of_no_job_is_not_found(http: Http) -> None:
    path = "/ojs/v1/jobs/01a20510-6568-7048-8263-0e7df0a02a34/result"
    assert (await http("GET", path)).status_code == 404
    assert (await http("GET", path + "?wait=true&timeout=1")).status_code == 404
