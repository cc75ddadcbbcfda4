"""Counters of events, as capabilities declare them."""

from __future__ import annotations

from typing import NamedTuple


class EventCounter(NamedTuple):
    """The counter of a type of event: metric name, help text and labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
