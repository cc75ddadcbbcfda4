"""OpenTelemetry metrics of jobs, as the OpenTelemetry SDK reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from ojster.metering import observed_depth
from tests.conftest import Bench

pytestmark = pytest.mark.anyio


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    made = InMemoryMetricReader()
    provider = MeterProvider([made])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    yield made
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """Return the attributes and the value, or the sum and bounds, of each point by the name of its metric."""
    found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    data = reader.get_metrics_data()
    for resource in [] if data is None else data.resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points:
                if isinstance(point, HistogramDataPoint):
                    value: Any = (point.sum, tuple(point.explicit_bounds[:2]))
                else:
                    assert isinstance(point, NumberDataPoint)
                    value = point.value
                found.setdefault(metric.name, []).append((dict(point.attributes or {}), value))
    return found


async def test_jobs_are_counted_and_timed_once_a_provider_is_configured(
    bench: Bench, reader: InMemoryMetricReader
) -> None:
    await bench.push("mail.send", queue="mail")
    bench.clock.advance(2)
    job = await bench.fetch_one("mail")
    bench.clock.advance(0.25)
    await bench.ack(job)
    found = points(reader)
    labels = {"queue": "mail", "type": "mail.send"}
    assert found["ojs.job.enqueued"] == [(labels, 1)]
    assert found["ojs.job.completed"] == [(labels, 1)]
    assert found["ojs.job.queue_time"] == [(labels, (2.0, (0.01, 0.05)))]
    assert found["ojs.job.duration"] == [(labels | {"state": "completed"}, (0.25, (0.005, 0.01)))]


async def test_a_server_reports_the_depth_of_queues(bench: Bench, reader: InMemoryMetricReader) -> None:
    with observed_depth(bench.service.database):
        await bench.push(queue="mail")
        depth = (await asyncio.to_thread(points, reader))["ojs.queue.depth"]
    assert ({"queue": "mail", "state": "available"}, 1) in depth
    assert "ojs.queue.depth" not in points(reader), "the server has stopped"
