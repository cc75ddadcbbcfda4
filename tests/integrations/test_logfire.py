"""Jobs in logfire: what enqueues them, their run, and what their handlers say, as one trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

PROGRAM = """
import logfire
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ojster import App
from ojster.testing import JobTester

kept = InMemorySpanExporter()
logfire.configure(
    send_to_logfire=False,
    console=False,
    distributed_tracing=True,
    additional_span_processors=[SimpleSpanProcessor(kept)],
)
app = App("sqlite:///:memory:")


@app.job("order.ship")
def ship(order: int) -> int:
    logfire.info("ships {order}", order=order)
    return order


with JobTester(app) as jobs:
    with logfire.span("request"):
        ship.enqueue(7)
    jobs.drain()

spans = {one.context.span_id: one for one in kept.get_finished_spans()}
for one in spans.values():
    above = [one.parent.span_id] if one.parent else [link.context.span_id for link in one.links]
    print(one.name, "<", *(spans[id].name for id in above if id in spans))
"""
"""It configures logfire for the whole process, so it has one of its own."""


def test_a_job_is_part_of_the_trace_of_what_has_enqueued_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"  # logfire reads the source of what calls it
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "default enqueue < request",
        "default process < default enqueue",
        "request <",
        "ships {order} < default process",
    ]
