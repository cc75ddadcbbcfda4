"""Progress of jobs: what is kept, that it extends the lease, and what late reports do.

Spec: ojs-progress
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio


async def report(http: Http, job_id: str, **body: Any) -> dict[str, Any]:
    """Report progress; return the answer, which must be a success."""
    answer = await http("PUT", f"/ojs/v1/jobs/{job_id}/progress", body)
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def test_data_is_kept_and_shown(http: Http) -> None:
    job = await http.push()
    await http.fetch()
    shown = await report(http, job["id"], progress=0.5, data={"rows": 7})
    assert (shown["progress"], shown["data"]) == (0.5, {"rows": 7})
    alone = await report(http, job["id"], data={"phase": "upload"})
    assert (alone["progress"], alone["data"]) == (0.5, {"phase": "upload"})
    answer = await http("GET", f"/ojs/v1/jobs/{job['id']}/progress")
    assert answer.json()["data"] == {"phase": "upload"}
    assert (answer.headers["x-ojs-progress"], answer.headers["cache-control"]) == ("0.5", "no-cache")
    assert answer.headers["last-modified"] == "Fri, 15 Jan 2027 08:00:00 GMT"


async def test_an_empty_report_is_refused(http: Http) -> None:
    job = await http.push()
    await http.fetch()
    refused = await http("PUT", f"/ojs/v1/jobs/{job['id']}/progress", {"message": "?"})
    assert (refused.status_code, "'progress' nor 'data'" in refused.text) == (400, True)


async def test_progress_never_goes_back(http: Http) -> None:
    job = await http.push()
    await http.fetch()
    await report(http, job["id"], progress=0.7)
    assert (await report(http, job["id"], progress=0.2))["progress"] == 0.7


async def test_a_report_extends_the_lease(bench: Bench, http: Http) -> None:
    job = await http.push(options={"visibility_timeout_ms": 30_000})
    await http.fetch(worker_id="w")
    for _ in range(4):
        await bench.run_due(after=20)
        await report(http, job["id"], progress=0.5, worker_id="w", attempt=1)
    assert (await bench.find(job["id"])).state == "active"
    await bench.run_due(after=31)
    assert (await bench.find(job["id"])).state != "active"


async def test_a_report_does_not_shorten_a_longer_lease(bench: Bench, http: Http) -> None:
    job = await http.push(options={"timeout_ms": 36_000_000})
    await http.fetch(worker_id="w", visibility_timeout_ms=18_000_000)
    await report(http, job["id"], progress=0.5)
    await bench.run_due(after=17_000)
    assert (await bench.find(job["id"])).state == "active"


async def test_a_late_report_changes_nothing(bench: Bench, http: Http) -> None:
    job = await http.push()
    await bench.ack(await bench.fetch_one())
    shown = await report(http, job["id"], progress=0.3)
    assert (shown["state"], shown["progress"]) == ("completed", None)


async def test_a_report_of_a_worker_that_has_lost_the_job_is_refused(bench: Bench, http: Http) -> None:
    job = await http.push()
    await bench.fetch_one(worker_id="w")
    for wrong in ({"worker_id": "other"}, {"worker_id": "w", "attempt": 2}):
        answer = await http("PUT", f"/ojs/v1/jobs/{job['id']}/progress", {"progress": 0.5} | wrong)
        assert answer.status_code == 409


async def test_a_completed_job_is_done_and_a_failed_one_keeps_its_progress(bench: Bench, http: Http) -> None:
    for done in (True, False):
        job = await http.push(options={"retry": {"max_attempts": 1}})
        claimed = await bench.fetch_one()
        await report(http, job["id"], progress=0.4, data={"rows": 3})
        await (bench.ack(claimed) if done else bench.fail(claimed))
        shown = (await http("GET", f"/ojs/v1/jobs/{job['id']}/progress")).json()
        assert (shown["progress"], shown["data"]) == (1.0 if done else 0.4, {"rows": 3})


async def test_the_next_attempt_begins_without_progress(bench: Bench, http: Http) -> None:
    job = await http.push()
    claimed = await bench.fetch_one()
    await report(http, job["id"], progress=0.9)
    await bench.fail(claimed)
    await bench.run_due(after=400)
    assert (await bench.fetch_one()).progress is None
    assert (await http("GET", f"/ojs/v1/jobs/{job['id']}/progress")).json()["progress"] is None


async def test_the_official_sdks_report_a_percentage(http: Http) -> None:
    job = await http.push()
    await http.fetch()
    body = {"job_id": job["id"], "percentage": 40, "message": "rows", "data": {"done": 4}}
    answer = await http("POST", "/ojs/v1/workers/progress", body)
    assert (answer.status_code, answer.json()["progress"], answer.json()["data"]) == (200, 0.4, {"done": 4})


async def test_a_checkpoint_in_a_report_is_given_to_the_next_attempt(bench: Bench, http: Http) -> None:
    job = await http.push()
    claimed = await bench.fetch_one()
    await report(http, job["id"], progress=0.5, checkpoint={"row": 14})
    await bench.fail(claimed)
    await bench.run_due(after=400)
    checkpoint = msgspec.json.decode((await bench.fetch_one()).checkpoint or b"null")
    assert checkpoint["state"] == {"row": 14}


async def test_a_checkpoint_of_a_report_that_is_refused_or_late_is_not_saved(bench: Bench, http: Http) -> None:
    job = await http.push()
    claimed = await bench.fetch_one(worker_id="w")
    path = f"/ojs/v1/jobs/{job['id']}/progress"
    refused = await http("PUT", path, {"progress": 0.5, "checkpoint": 1, "worker_id": "other"})
    assert refused.status_code == 409
    await bench.fail(claimed)
    await report(http, job["id"], progress=0.5, checkpoint=2)
    assert (await http("GET", f"/ojs/v1/jobs/{job['id']}/checkpoint")).status_code == 404


async def test_a_checkpoint_that_nobody_could_read_is_refused(bench: Bench, http: Http) -> None:
    job = await http.push()
    await bench.fetch_one()
    for method, path, body in (
        ("PUT", "progress", b'{"progress":0.5,"checkpoint":1e999}'),
        ("PUT", "checkpoint", b'{"state":1e999}'),
    ):
        assert (await http(method, f"/ojs/v1/jobs/{job['id']}/{path}", body)).status_code == 400
