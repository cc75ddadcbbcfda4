"""What is a figure? A name, what was measured, the goal, and the floor: what the raw parts do in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Figure:
    """Something that was measured.

    ``value`` is in ``unit``; more is better for rates, less for the others. ``floor`` is what the raw parts reach, and
    ``floor_name`` says which.
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
        """Whether a larger value is better."""
        return self.unit.endswith("/s")

    @property
    def misses(self) -> bool:
        """Whether the figure misses its goal."""
        if self.least_share is not None and self.floor and self.value / self.floor < self.least_share:
            return True
        if self.goal is None:
            return False
        return self.value < self.goal if self.more_is_better else self.value > self.goal

    @property
    def shown(self) -> str:
        """The value, for people."""
        return _number(self.value, self.unit)

    @property
    def shown_goal(self) -> str:
        """The goal, for people."""
        if self.goal is None:
            return ""
        return ("≥ " if self.more_is_better else "≤ ") + _number(self.goal, self.unit)

    @property
    def shown_floor(self) -> str:
        """The floor, for people."""
        return f"{self.floor_name} {_number(self.floor, self.unit)}" if self.floor is not None else ""

    @property
    def shown_share(self) -> str:
        """How much of the floor is reached, for people."""
        if not self.floor:
            return ""
        least = f" (≥ {self.least_share:.2f})" if self.least_share is not None else ""
        return f"{self.value / self.floor:.2f}{least}"

    def to_json(self) -> dict[str, Any]:
        """The figure, for machines."""
        return asdict(self) | {"misses": self.misses}


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.2f} {unit}"


def percentile(values: list[float], share: float) -> float:
    """The value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median_rate(measure: Callable[[], float], rounds: int = 3) -> float:
    """The median of several measurements of a rate."""
    return statistics.median(measure() for _ in range(rounds))


def timed(work: Callable[[], int]) -> float:
    """How many a second: ``work`` does something and returns how many."""
    started = time.perf_counter()
    done = work()
    return done / (time.perf_counter() - started)
