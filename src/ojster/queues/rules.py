"""Rules that operators set for a queue: its depth bound, and defaults and limits for the resources of its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from ojster.core.json_objects import Members
from ojster.core.parsing import matches_any
from ojster.core.refusals import JobTypeNotAllowed
from ojster.fleet.ml_resources import ResourceLimits
from ojster.jobs.job_types import defaults_by_type, with_defaults
from ojster.jobs.options_wire import queue_of
from ojster.storage.memory import Memory, Remembered
from ojster.storage.transaction import Transaction

OverflowStrategy = Literal["reject", "block", "drop_oldest"]
"""What becomes of a push to a full queue."""


class Bound(msgspec.Struct, frozen=True):
    """Maximum depth of a queue, and the strategy for pushes beyond it.

    Parameters
    ----------
    max_depth:
        Maximum number of waiting jobs.
    strategy:
        What a push to a full queue does. ``reject`` (the default): it is refused; ``block``: the same, but a caller may
        ask to wait for a place; ``drop_oldest``: the oldest available jobs are discarded.
    warning_threshold:
        Share of ``max_depth`` from which pushes get a warning; 0.8 by default.

    Spec: ojs-backpressure
    """

    max_depth: int
    strategy: OverflowStrategy = "reject"
    warning_threshold: float = 0.8


class Rules(msgspec.Struct, frozen=True):
    """Settings of a queue that affect pushes or claims.

    Parameters
    ----------
    backpressure:
        The bound of the queue, and what happens when it is full.
    ml_defaults:
        Default values of ``ext_ml_*`` attributes of jobs without them.
    ml_limits:
        Maximum resources that jobs may require.
    allowed_job_types:
        The job types that the queue takes; ``payment.*`` for all with a prefix. Empty: all.

    Spec: ojs-ml-resources 10.1
    """

    backpressure: Bound | None = None
    ml_defaults: dict[str, Any] = {}
    ml_limits: ResourceLimits = ResourceLimits()
    allowed_job_types: tuple[str, ...] = ()

    def check_type(self, type: str, queue: str) -> None:
        """Check that the queue takes a job type.

        Raises
        ------
        JobTypeNotAllowed
            It does not.
        """
        if self.allowed_job_types and not matches_any(type, self.allowed_job_types):
            raise JobTypeNotAllowed(
                f"The queue {queue!r} does not take jobs of type {type!r}, only {', '.join(self.allowed_job_types)}. "
                "Use another queue, or change its 'allowed_job_types'.",
                field="type",
                queue=queue,
                allowed_job_types=list(self.allowed_job_types),
            )

    def apply(self, members: Members, queue: str) -> Members:
        """Return the attributes of a job of the queue, with the queue's defaults for missing ones.

        Raises
        ------
        ResourcesRefused
            The job requires more than the queue allows.
        """
        defaults = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in self.ml_defaults.items()}
        completed = defaults | members
        self.ml_limits.check(completed, queue)
        return completed

    @property
    def are_about_resources(self) -> bool:
        """Whether the rules set resource defaults or limits."""
        return bool(self.ml_defaults) or self.ml_limits != ResourceLimits()


_decode: Final = msgspec.json.Decoder(Rules).decode


def _read_rules(tx: Transaction) -> Mapping[str, Rules]:
    rows = tx.execute("SELECT name, config FROM queues WHERE config IS NOT NULL")
    return {name: rules for name, config in rows if (rules := _decode(config)) != Rules()}


queue_rules: Final = Remembered[Mapping[str, Rules]](_read_rules, in_callers={})
"""The rules of the queues that have some, by queue."""


def _about_resources(tx: Transaction) -> Mapping[str, Rules]:
    return {queue: rules for queue, rules in queue_rules(tx).items() if rules.are_about_resources}


resource_rules: Final = Remembered[Mapping[str, Rules]](_about_resources, in_callers={})
"""Those of them that set resource defaults or limits of jobs."""


def completed(tx: Transaction, members: Members, tenant: str | None, otherwise: str = "") -> Members:
    """Return the request for a job that a transaction makes, with the defaults of its type and of its queue.

    Parameters
    ----------
    tenant, otherwise:
        The tenant of the job, as in ``read_job``.

    Raises
    ------
    InvalidRequest
        The request is malformed, or the job requires more than its queue allows.
    """
    members = with_defaults(defaults_by_type(tx), members, tenant, otherwise)
    if not (rules := resource_rules(tx)):
        return members
    queue = queue_of(members)
    return rules[queue].apply(members, queue) if queue in rules else members


def queue_bounds(tx: Transaction) -> Mapping[str, Bound]:
    """Return the depth bounds of the queues that have one."""
    rules = queue_rules(tx).items()
    return {queue: rule.backpressure for queue, rule in rules if rule.backpressure is not None}


def may_be_bounded(memory: Memory, queue: str) -> bool:
    """Whether a queue has a depth bound, as far as this process knows."""
    known = queue_rules.known(memory)
    return known is None or (queue in known and known[queue].backpressure is not None)
