"""Jobs as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rich.console import Console

from ojster import App, JobContext
from ojster.testing import JobTester

app = App("sqlite:///unused.db")


@app.job("report.build", retry=1, meta={"by": "<ada>"})
def build(context: JobContext, fails: bool = False) -> dict[str, int]:
    context.progress(1, 2, "half")
    if fails:
        raise ValueError("no data")
    return {"pages": 3}


def test_a_job_is_read_with_values_and_times() -> None:
    at = datetime(2026, 12, 1, 10, tzinfo=UTC)
    with JobTester(app, at=at) as jobs:
        good, bad, later = build.enqueue(), build.enqueue(True), build.using(delay=60).enqueue()
        jobs.drain(check=False)
        done, failed, waits = good.refresh().info, bad.refresh().info, later.info
        assert (done.state, done.result, done.error, done.is_finished) == ("completed", {"pages": 3}, None, True)
        assert done.created_at - at < timedelta(minutes=1)
        assert done.started_at is not None
        assert done.finished_at is not None
        assert done.created_at <= done.started_at <= done.finished_at
        assert (failed.args, failed.result, failed.meta) == ([True], None, {"by": "<ada>"})
        assert failed.error is not None
        assert [error["message"] for error in failed.errors] == ["no data"]
        assert waits.next_at is not None
        assert timedelta(seconds=59) < waits.next_at - waits.created_at <= timedelta(seconds=61)
        assert (waits.finished_at, waits.is_finished) == (None, False)
        shown = Console(width=200)
        with shown.capture() as captured:
            shown.print(done)
        assert "'pages': 3" in captured.get()
        assert "worker_id" in captured.get()
        assert "&lt;ada&gt;" in good._repr_html_()
        assert "<td>completed</td>" in good._repr_html_()
