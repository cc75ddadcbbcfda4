"""Tracing: spans of jobs, linked to the span that enqueued them, as the OpenTelemetry SDK records them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from ojster import App
from ojster.service import Service
from ojster.worker.worker import Worker
from ojster.workflows import declaration as workflow
from tests.conftest import Http, http

pytestmark = pytest.mark.anyio

__all__ = ["http"]  # a fixture


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # as set_tracer_provider does, which works only once
    yield kept
    provider.shutdown()


async def work(app: App) -> None:
    await Worker(app).run(until_empty=True)


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def place_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


async def test_a_run_is_linked_to_the_span_that_enqueued_it(app: App, exporter: InMemorySpanExporter) -> None:
    seen: dict[str, Any] = {}

    @app.job("greet", queue="default", meta={"x": 1})
    def greet(name: str) -> str:
        seen["trace"] = trace.get_current_span().get_span_context().trace_id
        seen["baggage"] = baggage.get_baggage("customer")
        return name

    token = attach(baggage.set_baggage("customer", "acme"))
    with trace.get_tracer("test").start_as_current_span("request") as request:
        handle = await greet.aenqueue("you")
    detach(token)
    await work(app)
    enqueued, run = named(exporter, "default enqueue"), named(exporter, "default process")
    assert (enqueued.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert enqueued.parent is not None
    assert enqueued.parent.span_id == request.get_span_context().span_id
    assert run.parent is None
    (link,) = run.links
    assert link.context.span_id == place_of(enqueued).span_id
    assert place_of(run).trace_id != place_of(enqueued).trace_id
    assert seen == {"trace": place_of(run).trace_id, "baggage": "acme"}
    assert run.attributes is not None
    assert run.attributes["ojs.job.id"] == handle.id
    assert (run.attributes["ojs.job.type"], run.attributes["ojs.job.attempt"]) == ("greet", 1)
    assert run.status.status_code is StatusCode.OK
    meta = (await handle.arefresh()).job.meta
    assert meta["x"] == 1
    assert meta["traceparent"].split("-")[1] == f"{place_of(enqueued).trace_id:032x}"


async def test_a_plain_call_enqueues_in_the_trace_of_its_caller(app: App, exporter: InMemorySpanExporter) -> None:
    @app.job("many")
    def many(number: int) -> None:
        return None

    def enqueue() -> None:
        with trace.get_tracer("test").start_as_current_span("script"):
            many.enqueue_many([(1,), (2,)])

    await asyncio.to_thread(enqueue)
    batch, script = named(exporter, "default enqueue_batch"), named(exporter, "script")
    assert place_of(batch).trace_id == place_of(script).trace_id


async def test_a_failure_is_an_error_of_the_span(app: App, exporter: InMemorySpanExporter) -> None:
    @app.job("broken", retry=1)
    def broken() -> None:
        raise ValueError("no")

    await broken.aenqueue()
    await work(app)
    run = named(exporter, "default process")
    assert run.status.status_code is StatusCode.ERROR
    assert run.attributes is not None
    assert (run.attributes["error.type"], run.attributes["error.message"]) == ("ValueError", "no")
    (event,) = run.events
    assert event.attributes is not None
    assert "test_tracing.py" in str(event.attributes["exception.stacktrace"])


async def test_jobs_of_a_workflow_are_linked_to_the_span_of_its_start(app: App, exporter: InMemorySpanExporter) -> None:
    @app.job("step")
    def step(number: int) -> int:
        return number

    await app.astart(workflow.chain(step.s(1), step.s(2)))
    await work(app)
    started = named(exporter, "ojs.workflow.start")
    runs = [span for span in exporter.get_finished_spans() if span.name == "default process"]
    assert len(runs) == 2
    assert {link.context.span_id for run in runs for link in run.links} == {place_of(started).span_id}
    assert all(run.attributes is not None and run.attributes["ojs.workflow.id"] for run in runs)


async def test_an_invalid_traceparent_is_ignored(app: App, exporter: InMemorySpanExporter) -> None:
    @app.job("odd", meta={"traceparent": "nonsense", "baggage": 7})
    def odd() -> None:
        return None

    await odd.aenqueue()
    await work(app)
    assert named(exporter, "default process").status.status_code is StatusCode.OK


async def test_a_server_continues_the_trace_of_a_request(
    http: Http, service: Service, exporter: InMemorySpanExporter
) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    meta = {"traceparent": parent, "tracestate": "ojs=p:8"}
    answer = await http(
        "POST", "/ojs/v1/jobs", {"type": "t", "args": [], "meta": meta}, headers={"traceparent": parent}
    )
    assert json.loads(answer.content)["job"]["meta"] == meta
    span = named(exporter, "ojs.enqueue")
    assert span.kind is SpanKind.SERVER
    assert f"{place_of(span).trace_id:032x}" == parent.split("-")[1]


async def test_without_a_provider_no_span_is_begun(app: App, http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a span was begun")

    monkeypatch.setattr(trace, "get_tracer", refuse)

    @app.job("plain")
    def plain() -> None: ...

    handle = await plain.aenqueue()
    await work(app)
    assert (await handle.arefresh()).state == "completed"
    await http.push(type="plain", args=[])


async def test_without_a_provider_jobs_carry_what_their_producer_has_in_its_context(app: App) -> None:
    found: list[object] = []

    @app.job("plain")
    def plain() -> None:
        found.append(baggage.get_baggage("customer"))

    token = attach(baggage.set_baggage("customer", "acme"))
    try:
        await plain.aenqueue()
    finally:
        detach(token)
    await work(app)
    assert found == ["acme"]


@pytest.mark.parametrize("named", ["", "sdk_tracer_provider"])
def test_a_provider_counts_that_the_environment_names_or_that_is_set_at_any_time(named: str) -> None:
    script = """if True:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from ojster.handlers.tracing import records
        print(records())
        trace.set_tracer_provider(TracerProvider())
        print(records())
    """
    environment = os.environ | ({"OTEL_PYTHON_TRACER_PROVIDER": named} if named else {})
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [str(bool(named)), "True"]
