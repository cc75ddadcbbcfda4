"""What a change of a queue's settings would change, and what that means for the jobs that the queue has now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from ojster.core.rate_limit import Limits
from ojster.core.wire import Json
from ojster.queues.answer_wire import SettingChange, show_configuration
from ojster.queues.backpressure import depth_of
from ojster.queues.configuration import Configuration, QueueConfig, changed, read_config
from ojster.queues.limits import Limit, count_active, find_limit, key_of_queue
from ojster.queues.rules import Bound
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction

_INNER: Final = ("retention", "dead_letter", "backpressure", "ml_limits", "ml_defaults")
"""Settings whose members are changed one by one."""


@for_each
@returns_refusal
def preview(tx: Transaction, change: Configuration) -> list[SettingChange]:
    """Return what each change would change. The queue need not exist."""
    limit = find_limit(tx, key_of_queue(change.queue)) or Limit(key_of_queue(change.queue))
    config = read_config(tx, change.queue)
    limits = msgspec.structs.replace(limit.own, **change.limits)
    changed_config = changed(config, change)
    before, after = _settings(limit.own, config), _settings(limits, changed_config)
    effects = dict(_effects(tx, change.queue, limit, limits, changed_config.backpressure))
    return [
        SettingChange(name, before.get(name), after.get(name), effects.get(name.partition(".")[0]))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _settings(limits: Limits, config: QueueConfig) -> dict[str, Json]:
    """Return the settings that are set, by name."""
    return dict(_flat(msgspec.to_builtins(show_configuration(limits, config))))


def _flat(members: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in members.items():
        if isinstance(value, dict) and (outer or name in _INNER):
            yield from _flat(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value


def _effects(
    tx: Transaction, queue: str, limit: Limit, limits: Limits, bound: Bound | None
) -> Iterator[tuple[str, str]]:
    """Yield what limits, and the bound, mean for the jobs that the queue has now, each with the setting."""
    active, depth = count_active(tx, key_of_queue(queue)), depth_of(tx, queue)
    runs, waits = _some(active, "run"), _some(depth, "wait")
    if limits.concurrency is None:
        yield "concurrency", f"As many jobs run as workers take; {runs} now."
    elif limits.concurrency == 0:
        yield "concurrency", "No job starts. What runs now goes on."
    elif active >= limits.concurrency:
        fewer = f"none starts until fewer than {limits.concurrency} run"
        yield "concurrency", f"{runs.capitalize()} now. They go on, and {fewer}."
    else:
        yield "concurrency", f"{runs.capitalize()} now: up to {limits.concurrency - active} more may start."
    if limits.rate is None:
        yield "rate_limit", "Jobs start as fast as workers take them."
    else:
        used = 0 if limit.own.rate is None else limit.used(limit.own.rate, tx.now)
        yield "rate_limit", f"{max(0, limits.rate.limit - used)} more may start in the present window; {waits}."
    if limits.throttle is not None:
        yield "throttle", f"Jobs start evenly spread; {waits}."
    if bound is None:
        yield "backpressure", f"The queue takes every push; {waits} now."
    elif depth < bound.max_depth:
        yield "backpressure", f"{waits.capitalize()} now: there is room for {bound.max_depth - depth} more."
    elif bound.strategy == "drop_oldest":
        excess = depth - bound.max_depth + 1
        yield "backpressure", f"{waits.capitalize()} now: the next push discards up to {excess} of them, the oldest."
    else:
        yield "backpressure", f"{waits.capitalize()} now: pushes are refused until fewer than {bound.max_depth} do."
    yield "retention", "Maintenance deletes the jobs that ended longer ago; it cannot be undone."
    yield "dead_letter", "Maintenance deletes the dead letters beyond it, the oldest first; it cannot be undone."
    yield "allowed_job_types", "Pushes of other types are refused. The jobs that the queue has stay."


def _some(jobs: int, verb: str) -> str:
    return f"1 job {verb}s" if jobs == 1 else f"{jobs or 'no'} jobs {verb}"
