"""Figures: measured values with their goals and floors (the raw parts measured in the same run)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Figure:
    """A measured value with its goal and floor.

    ``value``, ``goal`` and ``floor`` are in ``unit``. Larger is better for rates (units that end with ``/s``),
    smaller for all others. ``floor`` is the value of the comparison named by ``floor_name``. ``least_share`` is the
    minimum of ``value / floor``.
    """

    name: str
    value: float
    unit: str = "/s"
    goal: float | None = None
    floor: float | None = None
    floor_name: str = ""
    least_share: float | None = None

    @property
    def more_is_better(self) -> bool:
        """Whether a larger value is better: true for rates."""
        return self.unit.endswith("/s")

    @property
    def misses(self) -> bool:
        """Whether the figure misses its goal or its minimum share of the floor."""
        if self.least_share is not None and self.floor and self.value / self.floor < self.least_share:
            return True
        if self.goal is None:
            return False
        return self.value < self.goal if self.more_is_better else self.value > self.goal

    @property
    def shown(self) -> str:
        """The value as text."""
        return _number(self.value, self.unit)

    @property
    def shown_goal(self) -> str:
        """The goal as text."""
        if self.goal is None:
            return ""
        return ("≥ " if self.more_is_better else "≤ ") + _number(self.goal, self.unit)

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
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.2f} {unit}"


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
