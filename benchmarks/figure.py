"""Figures: measured values with their floors (the raw parts measured in the same run)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Figure:
    """A measured value, and the floor that was measured in the same run.

    ``value`` and ``floor`` are in ``unit``. ``floor`` is the value of the comparison named by ``floor_name``. A goal is
    a share of it, so that it means the same on any machine: ``least_share`` is the minimum of ``value / floor``. Only
    what users feel has an absolute goal: ``most``, the maximum of ``value``.
    """

    name: str
    value: float
    unit: str = "/s"
    floor: float | None = None
    floor_name: str = ""
    least_share: float | None = None
    most: float | None = None
    spread: tuple[float, float] | None = None
    """The lowest and the highest of several measurements, whose median is ``value``."""

    @classmethod
    def median_of(cls, name: str, values: Sequence[float], unit: str = "/s", **more: Any) -> Figure:
        """Return the median of several measurements as a figure, with their spread."""
        return cls(name, statistics.median(values), unit, spread=(min(values), max(values)), **more)

    @property
    def misses(self) -> bool:
        """Whether the figure misses its goal."""
        if self.most is not None and self.value > self.most:
            return True
        return self.least_share is not None and bool(self.floor) and self.value / (self.floor or 1) < self.least_share

    @property
    def shown(self) -> str:
        """The value as text."""
        return _number(self.value, self.unit)

    @property
    def shown_spread(self) -> str:
        """The lowest and the highest measurement, as text."""
        return "" if self.spread is None else " - ".join(_number(value, "") for value in self.spread)

    @property
    def shown_floor(self) -> str:
        """The floor as text."""
        return f"{self.floor_name} {_number(self.floor, self.unit)}" if self.floor is not None else ""

    @property
    def shown_share(self) -> str:
        """The ratio of value to floor, and its minimum, as text."""
        if not self.floor:
            return ""
        least = f" (≥ {self.least_share:.2f})" if self.least_share is not None else ""
        return f"{self.value / self.floor:.2f}{least}"

    def to_json(self) -> dict[str, Any]:
        """Return the figure as a JSON object."""
        return asdict(self) | {"misses": self.misses}


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.2f} {unit}".rstrip()


def percentile(values: list[float], share: float) -> float:
    """Return the percentile of the values at ``share``, from 0 to 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median_rate(measure: Callable[[], float], rounds: int = 3) -> float:
    """Return the median of ``rounds`` measurements of a rate (default 3)."""
    return statistics.median(measure() for _ in range(rounds))


def timed(work: Callable[[], int]) -> float:
    """Return the rate of ``work`` per second; ``work`` returns the number of operations that it did."""
    started = time.perf_counter()
    done = work()
    return done / (time.perf_counter() - started)
