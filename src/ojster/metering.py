"""OpenTelemetry metrics of jobs, in each process that commits their transactions.

Without OpenTelemetry (the extra ``otel``) or a configured meter provider, nothing is recorded, at almost no cost.

Spec: ojs-observability 8
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ojster.capabilities import event_metrics
from ojster.core.event_metrics import EventMetrics
from ojster.core.events import Event
from ojster.core.version import __version__
from ojster.jobs.queries import count_jobs
from ojster.storage.database import Database

try:
    from opentelemetry import metrics

    ENABLED = True
except ImportError:  # it is optional
    ENABLED = False

SCOPE: Final = "ojster"
_API: Final = "opentelemetry.metrics"
READ_TIMEOUT_SECONDS: Final = 5.0
"""How long an exporter waits for the numbers of jobs."""


def record_events(database: Database) -> None:
    """Record the events that this process commits, once for each database."""
    if ENABLED and not any(isinstance(listener, _Meter) for listener in database.on_events):
        database.on_events.append(_Meter())


@contextmanager
def observed_depth(database: Database) -> Iterator[None]:
    """Report the number of jobs by queue and state whenever metrics are exported, while the block runs."""
    if not ENABLED:
        yield
        return
    loop = asyncio.get_running_loop()
    is_open = True

    def observe(options: Any) -> Iterable[metrics.Observation]:  # an exporter's thread calls it
        if not is_open:
            return []
        counts = asyncio.run_coroutine_threadsafe(database.read(count_jobs, None), loop).result(READ_TIMEOUT_SECONDS)
        return [
            metrics.Observation(number, {"queue": queue, "state": state})
            for queue, states in counts.items()
            for state, number in states.items()
        ]

    meter = metrics.get_meter(SCOPE, __version__)
    meter.create_observable_gauge("ojs.queue.depth", [observe], "{job}", "Jobs by queue and state.")
    try:
        yield
    finally:
        is_open = False


class _Meter:
    """Records the metrics of events, once a meter provider is configured."""

    def __init__(self) -> None:
        self._provider: object = None
        self._record: dict[str, Callable[..., None]] = {}
        self._events = EventMetrics(())

    def __call__(self, events: Sequence[Event]) -> None:
        """Record what a transaction's events add to the metrics. Any thread may call this."""
        provider = metrics.get_meter_provider()
        if provider is not self._provider:
            self._use(provider)
        if not self._record:
            return
        for metric, labels, values in self._events.measure(events):
            attributes = dict(zip(metric.labels, labels, strict=True))
            for value in values:
                self._record[metric.name](value, attributes)

    def _use(self, provider: metrics.MeterProvider) -> None:
        """Create the instruments, unless the provider is one of the API's own, which record nothing."""
        record: dict[str, Callable[..., None]] = {}
        if not type(provider).__module__.startswith(_API):
            self._events = event_metrics()
            meter = provider.get_meter(SCOPE, __version__)
            for metric in self._events.all():
                if metric.milliseconds is None:
                    record[metric.name] = meter.create_counter(metric.name, description=metric.help).add
                else:
                    record[metric.name] = meter.create_histogram(
                        metric.name,
                        unit="s",
                        description=metric.help,
                        explicit_bucket_boundaries_advisory=metric.buckets,
                    ).record
        self._record = record
        self._provider = provider
