"""Lists of jobs and workflows, and the history of a workflow, are files for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from ojster.core.csv_text import csv_line
from ojster.core.errors import BackendUnavailable
from ojster.server.endpoints import job_export, jobs, workflow_export
from ojster.server.streaming import StreamInterruptedError
from ojster.workflows.filters import WORKFLOW_FILTER_PARAMETERS
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"

NONE: dict[str, str] = {
    "state": "scheduled",
    "queue": "none",
    "type": "none",
    "error_type": "None",
    "cron_name": "none",
    "worker": "none",
    "workflow": "01a220e5-8f4e-75f7-ae1d-9294ef3f9e56",
    "tag": "none",
    "error_text": "none",
    "where": "args.none=1",
    "id": "ffffffff",
    "since": "2099-01-01T00:00:00Z",
    "until": "1999-01-01T00:00:00Z",
}
"""Conditions that no job of a test meets."""

NO_WORKFLOWS: dict[str, str] = {
    "state": "cancelled",
    "type": "group",
    "name": "none",
    "definition": "none",
    "target": "none",
    "cron_name": "none",
    "waiting_for": "gate",
    "held": "true",
    "params": '{"none": 1}',
    "metadata": '{"none": 1}',
    "id": "none",
    **dict.fromkeys(("created_after", "finished_after"), "2099-01-01T00:00:00Z"),
    **dict.fromkeys(("created_before", "finished_before"), "1999-01-01T00:00:00Z"),
}


async def rows(http: Http, path: str, **query: str) -> list[dict[str, str]]:
    answer = await http("GET", f"{BASE}{path}", params=query | {"format": "csv"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


async def test_all_jobs_that_match_are_exported_however_many_pages_they_are(
    bench: Bench, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_export, "LARGEST_PAGE", 2)
    pushed = [(await bench.push("mail.send", number)).id for number in range(5)]
    failed = await bench.fetch_one()
    await bench.fail(failed, message="=1+1")
    await bench.push("other", meta={"tenant_id": "acme"})
    exported = await rows(http, "/job-export", type="mail.*")
    assert [row["id"] for row in exported] == pushed[::-1]
    first = exported[-1]
    assert (first["args"], first["error_message"], first["queue"]) == ("[0]", "'=1+1", "default")
    whole = (await http("GET", f"{BASE}/job-export?type=mail.send")).json()
    assert [job["id"] for job in whole] == pushed[::-1]
    assert whole[-1]["error"]["message"] == "=1+1"
    assert [row["type"] for row in await rows(http, "/job-export", internal="true")] == ["other"] + ["mail.send"] * 5
    theirs = await http("GET", f"{BASE}/job-export?format=json", headers={"X-OJS-Tenant": "acme"})
    assert [job["type"] for job in theirs.json()] == ["other"]
    assert NONE.keys() | {"internal"} == set(jobs.LIST_FILTERS)
    for name, value in NONE.items():
        assert await rows(http, "/job-export", **{name: value}) == [], name
    for refused in ("format=xml", "colour=red", "state=lost"):
        assert (await http("GET", f"{BASE}/job-export?{refused}")).status_code == 400


async def test_the_history_of_a_workflow_is_exported_with_times_errors_and_decisions(
    bench: Bench, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow_export, "MOST_STEPS", 1)
    monkeypatch.setattr(workflow_export, "WORKFLOWS_PER_PAGE", 1)
    steps: list[dict[str, Any]] = [
        {"id": "build", "type": "do.build", "args": []},
        {"type": "gate", "id": "review"},
        {"id": "ship", "type": "do.ship", "args": [], "options": {"retry": {"max_attempts": 1}}},
    ]
    made = await http("POST", f"{BASE}/workflows", {"type": "chain", "name": "@release", "steps": steps})
    id = made.json()["workflow"]["id"]
    await bench.ack(await bench.fetch_one())
    await http("POST", f"{BASE}/workflows/{id}/steps/review/review", {"action": "approve", "notes": "go"})
    await bench.fail(await bench.fetch_one(), message="disk full")
    build, review, ship = await rows(http, f"/workflows/{id}/export")
    assert (build["path"], build["state"], build["attempt"]) == ("build", "completed", "1")
    assert build["enqueued_at"] <= build["started_at"] <= build["completed_at"]
    assert '"approve"' in review["reviews"]
    assert (ship["state"], ship["error_message"]) == ("failed", "disk full")
    answer = await http("GET", f"{BASE}/workflows/{id}/export?format=json")
    assert answer.headers["content-disposition"] == f'attachment; filename="workflow-{id}.json"'
    shown = answer.json()
    assert (shown["workflow"]["state"], [step["path"] for step in shown["steps"]]) == (
        "failed",
        ["build", "review", "ship"],
    )
    assert "review': go" in str(shown["notes"])
    assert (await http("GET", f"{BASE}/workflows/none/export?format=csv")).status_code == 404
    other = await http("POST", f"{BASE}/workflows", {"type": "chain", "steps": steps[:1]})
    listed = await rows(http, "/workflow-export")
    assert [row["id"] for row in listed] == [other.json()["workflow"]["id"], id]
    assert (listed[1]["name"], listed[1]["job_count"], listed[1]["state"]) == ("'@release", "2", "failed")
    assert NO_WORKFLOWS.keys() == set(WORKFLOW_FILTER_PARAMETERS)
    for name, value in NO_WORKFLOWS.items():
        assert await rows(http, "/workflow-export", **{name: value}) == [], name


async def test_an_export_that_breaks_off_does_not_end_as_if_it_were_whole(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pages(*_: Any) -> AsyncGenerator[list[dict[str, Any]], None]:
        yield [{"a": 1}]
        raise BackendUnavailable("The database is away.")

    monkeypatch.setattr(job_export, "_pages", pages)
    with pytest.raises(StreamInterruptedError, match="The database is away"):
        await http("GET", f"{BASE}/job-export?format=csv")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝"])  # noqa: RUF001
def test_no_text_of_csv_is_a_formula_and_numbers_stay_numbers(start: str) -> None:
    ((cell, *rest),) = csv.reader(io.StringIO(csv_line([f"{start}1", -1, None, True, {"a": "="}])))
    assert cell == f"'{start}1"
    assert rest == ["-1", "", "true", '{"a":"="}']
