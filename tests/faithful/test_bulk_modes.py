"""``mode`` and ``atomicity`` mean the same on both bulk endpoints, and unknown values are refused."""

from __future__ import annotations

import pytest

from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

GOOD, BAD = {"type": "a", "args": []}, {"type": "not a type", "args": []}


@pytest.mark.parametrize("name", ["mode", "atomicity"])
@pytest.mark.parametrize("family", ["batch", "bulk"])
async def test_both_names_mean_the_same(http: Http, bench: Bench, family: str, name: str) -> None:
    path = f"/ojs/v1/jobs/{family}"
    assert (await http("POST", path, {"jobs": [GOOD, BAD], name: "atomic"})).status_code == 422
    assert len(await bench.fetch(count=10)) == 0
    assert (await http("POST", path, {"jobs": [GOOD, BAD], name: "partial"})).status_code == 207
    (job,) = await bench.fetch(count=10)
    await bench.fail(job)
    ids = [job.id, "0190f2c1-0000-7000-8000-000000000000"]
    assert (await http("POST", f"{path}/cancel", {"job_ids": ids, name: "atomic"})).status_code == 422
    assert (await bench.find(job)).state == "retryable"
    assert (await http("POST", f"{path}/cancel", {"job_ids": ids, name: "partial"})).status_code == 207
    assert (await bench.find(job)).state == "cancelled"


@pytest.mark.parametrize("family", ["batch", "bulk"])
@pytest.mark.parametrize("modes", [{"mode": "all"}, {"atomicity": 1}, {"mode": "atomic", "atomicity": "partial"}])
async def test_unknown_and_contradictory_values_are_refused(http: Http, family: str, modes: dict[str, object]) -> None:
    for end, body in (("", {"jobs": [GOOD]}), ("/retry", {"job_ids": ["x"]})):
        answer = await http("POST", f"/ojs/v1/jobs/{family}{end}", body | modes)
        assert answer.status_code == 400, answer.text
