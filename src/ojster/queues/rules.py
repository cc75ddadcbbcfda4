"""Rules that operators set for a queue: its depth bound, and defaults and limits for the resources of its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from ojster.fleet.ml_resources import ResourceLimits
from ojster.jobs.request import Members
from ojster.storage.memory import Memory, Remembered
from ojster.storage.transaction import Transaction


class Bound(msgspec.Struct, frozen=True):
    """How many jobs may wait in a queue, and what becomes of one too many (ojs-backpressure.md).

    Parameters
    ----------
    max_depth:
        How many.
    strategy:
        ``reject`` it; ``block``: the same, but a caller may ask to wait for a place; ``drop_oldest``: discard the
        oldest that is available.
    warning_threshold:
        From which share of ``max_depth`` on those who push are warned.
    """

    max_depth: int
    strategy: Literal["reject", "block", "drop_oldest"] = "reject"
    warning_threshold: float = 0.8


class Rules(msgspec.Struct, frozen=True):
    """What is set for a queue that matters to who pushes jobs into it or gets some from it.

    Parameters
    ----------
    ml_defaults:
        Attributes ``ext_ml_*`` of jobs that do not have them (ojs-ml-resources.md section 10.1).
    ml_limits:
        What jobs may need at most.
    """

    backpressure: Bound | None = None
    ml_defaults: dict[str, Any] = {}
    ml_limits: ResourceLimits = ResourceLimits()

    def apply(self, members: Members, queue: str) -> Members:
        """Return the attributes of a job of the queue, with the defaults for those that it does not have.

        Raises
        ------
        ResourcesRefused
            It needs more than is allowed.
        """
        defaults = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in self.ml_defaults.items()}
        completed = defaults | members
        self.ml_limits.check(completed, queue)
        return completed

    @property
    def are_about_resources(self) -> bool:
        """Whether they say something of what jobs need."""
        return bool(self.ml_defaults) or self.ml_limits != ResourceLimits()


_decode: Final = msgspec.json.Decoder(Rules).decode


def _read_rules(tx: Transaction) -> Mapping[str, Rules]:
    rows = tx.execute("SELECT name, config FROM queues WHERE config IS NOT NULL")
    return {name: rules for name, config in rows if (rules := _decode(config)) != Rules()}


queue_rules: Final = Remembered[Mapping[str, Rules]](_read_rules, in_callers={})
"""The rules of the queues that have some, by queue."""


def queue_bounds(tx: Transaction) -> Mapping[str, Bound]:
    """Return the depth bounds of the queues that have one."""
    rules = queue_rules(tx).items()
    return {queue: one.backpressure for queue, one in rules if one.backpressure is not None}


def may_be_bounded(memory: Memory, queue: str) -> bool:
    """Whether a queue has a depth bound, as far as this process knows."""
    known = queue_rules.known(memory)
    return known is None or (queue in known and known[queue].backpressure is not None)
