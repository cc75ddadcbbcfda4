"""Metrics that are made from events, as capabilities declare them. Prometheus and OpenTelemetry show the same ones.

Spec: ojs-observability 8
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ojster.core.events import Event

DURATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the durations of jobs, in seconds. Spec: ojs-observability 8.2"""

QUEUE_TIME_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)
"""Upper bounds of the times that jobs wait in their queue, in seconds. Spec: ojs-observability 8.2"""

QUEUE_AND_TYPE: Final = ("queue", "type")
"""The labels of most metrics of jobs."""


class EventMetric(NamedTuple):
    """A counter of events, or a histogram of a duration in their data.

    Parameters
    ----------
    name:
        Name in OpenTelemetry; in Prometheus, dots become underscores, and histograms end in ``_seconds``.
    labels:
        Names of the labels: ``queue``, ``type`` or ``job_type``, ``key`` (the subject), ``state`` (the
        new one), or members of the event's data.
    only:
        A member of the event's data and the value that it must have.
    milliseconds:
        The member of the event's data with the duration of a histogram; ``None`` for a counter.
    buckets:
        Upper bounds of the histogram, in seconds.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    only: tuple[str, Any] | None = None
    milliseconds: str | None = None
    buckets: tuple[float, ...] = ()


Measurement = tuple[EventMetric, tuple[str, ...], Sequence[float]]
"""A metric, the values of its labels, and what is added to it: a number to a counter, seconds to a histogram."""


class EventMetrics:
    """The metrics of all capabilities, by type of event. Events that are alike are measured together."""

    def __init__(self, declared: Iterable[Mapping[str, tuple[EventMetric, ...]]]) -> None:
        self._by_type = {type: metrics for of_capability in declared for type, metrics in of_capability.items()}

    def all(self) -> Iterable[EventMetric]:
        """Return each metric once."""
        return dict.fromkeys(metric for metrics in self._by_type.values() for metric in metrics)

    def measure(self, events: Sequence[Event]) -> Iterator[Measurement]:
        """Yield what a transaction's events add to the metrics."""
        alike: dict[tuple[str, str | None, str | None, str | None], list[Event]] = {}
        for event in events:
            if event[0] in self._by_type:
                alike.setdefault((event[0], event[3], event[4], event[5].get("to")), []).append(event)
        for (type, *_), group in alike.items():
            for metric in self._by_type[type]:
                for part in (group,) if _SHARED.issuperset(metric.labels) else [(event,) for event in group]:
                    if values := _values(metric, part):
                        yield metric, tuple([_label(name, part[0]) for name in metric.labels]), values


_SHARED: Final = frozenset({"queue", "type", "job_type", "state"})
"""Labels that events which are measured together have in common."""

_ABSENT: Final = object()


def _values(metric: EventMetric, events: Sequence[Event]) -> Sequence[float]:
    if metric.only is not None:
        name, wanted = metric.only
        events = [event for event in events if event[5].get(name, _ABSENT) == wanted]
    if (name_of_ms := metric.milliseconds) is None:
        return (float(len(events)),) if events else ()
    return [ms / 1000 for event in events if (ms := event[5].get(name_of_ms)) is not None]


def _label(name: str, event: Event) -> str:
    match name:
        case "queue":
            return event[3] or ""
        case "type" | "job_type":
            return event[4] or ""
        case "state":
            return str(event[5]["to"])
        case "key":
            return event[2]
        case _:
            return str(event[5].get(name) or "")
