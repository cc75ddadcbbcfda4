"""Which jobs are meant? A filter, as a condition of SQL, and a walk over all that match in bounded steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.storage.transaction import Transaction

WINDOW: Final = 20_000
"""How many rows one step of a walk looks at, whether they match or not."""


class JobFilter(msgspec.Struct, frozen=True):
    """What jobs have in common; what is left out matches all. Times are microseconds since the epoch, ends excluded.

    Parameters
    ----------
    states:
        The states that a job may be in; none: any.
    tenant:
        Whose it is; the empty string: nobody's.
    type:
        A job type, or a prefix that ends in ``*``.
    dead:
        Whether the job is a dead letter.
    error_type:
        The type of the error of the last failed attempt, or a prefix that ends in ``*``.
    meta:
        Members that its ``meta`` must have, with these values. Only a walk heeds it: no index knows.
    finished_after:
        When the job was completed, cancelled or discarded.
    """

    states: tuple[str, ...] = ()
    queue: str | None = None
    tenant: str | None = None
    type: str | None = None
    dead: bool | None = None
    error_type: str | None = None
    priority: int | None = None
    created_after: int | None = None
    created_before: int | None = None
    enqueued_after: int | None = None
    enqueued_before: int | None = None
    finished_after: int | None = None
    finished_before: int | None = None
    meta: dict[str, Any] = {}
    except_queues: tuple[str, ...] = ()
    except_tenants: tuple[str, ...] = ()
    has_own_expiration: bool | None = None
    """Whether a finished job, which is not one of a workflow, says itself how long it is to be kept."""


_TIMES: Final = tuple(
    (f"{event}_{side}", f"{event}_at", sign)
    for event in ("created", "enqueued", "finished")
    for side, sign in (("after", ">"), ("before", "<"))
)


def conditions(chosen: JobFilter) -> tuple[str, dict[str, Any]]:
    """Return the condition that jobs match, ``TRUE`` if all do, and its parameters; it does not know of ``meta``."""
    parts: list[str] = []
    parameters: dict[str, Any] = {}
    if chosen.states:
        names = [f"state_{number}" for number in range(len(chosen.states))]
        parts.append("state = :state_0" if len(names) == 1 else f"state IN (:{', :'.join(names)})")
        parameters |= dict(zip(names, chosen.states, strict=True))
    if chosen.dead is not None:
        parts.append(f"dead = {int(chosen.dead)}")
    if chosen.tenant:
        parts.append("tenant <> ''")  # for the index of those that are somebody's
    for name in ("queue", "tenant", "priority"):
        if (value := getattr(chosen, name)) is not None:
            parts.append(f"{name} = :{name}")
            parameters[name] = value
    for column in ("queue", "tenant"):
        if left_out := getattr(chosen, f"except_{column}s"):
            names = [f"except_{column}_{number}" for number in range(len(left_out))]
            parts.append(f"{column} NOT IN (:{', :'.join(names)})")
            parameters |= dict(zip(names, left_out, strict=True))
    if chosen.has_own_expiration is not None:
        parts.append(f"node IS NULL AND due_at IS {'NOT ' * chosen.has_own_expiration}NULL")
    for name in ("type", "error_type"):
        if (pattern := getattr(chosen, name)) is None:
            continue
        if pattern.endswith("*"):
            parts.append(f"{name} >= :{name} AND {name} < :{name}_end")
            parameters |= {name: pattern[:-1], f"{name}_end": pattern[:-1] + "\U0010ffff"}
        else:
            parts.append(f"{name} = :{name}")
            parameters[name] = pattern
    for name, column, sign in _TIMES:
        if (moment := getattr(chosen, name)) is not None:
            parts.append(f"{column} {sign} :{name}")
            parameters[name] = moment
    return " AND ".join(parts) or "TRUE", parameters


class Step(msgspec.Struct, frozen=True):
    """One step of a walk over all jobs that match, the oldest first.

    Parameters
    ----------
    after:
        Where the step before it ended; 0 at the beginning.
    until:
        Where the walk ends, so that it does end although jobs keep coming; ``None``: at the last that there is now.
    """

    chosen: JobFilter
    after: int = 0
    until: int | None = None


class Stretch(msgspec.Struct, frozen=True):
    """What a step has found: the ids of the jobs that match, and the next step, if there is one."""

    ids: list[str]
    next: Step | None


def walk(tx: Transaction, steps: Sequence[Step]) -> list[Stretch]:
    """Take a step of each walk. It looks at no more than ``WINDOW`` rows, however few of them match."""
    return [_walk(tx, step) for step in steps]


def _walk(tx: Transaction, step: Step) -> Stretch:
    until = step.until
    if until is None:
        ((until,),) = tx.execute("SELECT coalesce(max(seq), 0) FROM jobs")
    bounds = {"after": step.after, "until": until, "window": WINDOW}
    window = "SELECT seq FROM jobs WHERE seq > :after AND seq <= :until ORDER BY seq LIMIT :window"
    ((last, rows),) = tx.execute(f"SELECT max(seq), count(*) FROM ({window}) AS looked_at", bounds)
    if not rows:
        return Stretch([], None)
    where, parameters = conditions(step.chosen)
    bounds["last"] = last
    if step.chosen.meta:
        found = tx.execute(
            "SELECT j.id, p.envelope FROM "
            f"(SELECT seq, id FROM jobs WHERE seq > :after AND seq <= :last AND {where}) AS j "
            "JOIN payloads AS p ON p.seq = j.seq ORDER BY j.seq",
            bounds | parameters,
        )
        ids = [id for id, envelope in found if _has(envelope, step.chosen.meta)]
    else:
        rows_found = tx.execute(
            f"SELECT id FROM jobs WHERE seq > :after AND seq <= :last AND {where} ORDER BY seq", bounds | parameters
        )
        ids = [id for (id,) in rows_found]
    return Stretch(ids, Step(step.chosen, last, until) if rows == WINDOW else None)


class _Meta(msgspec.Struct):
    meta: dict[str, Any]


_meta_of: Final = msgspec.json.Decoder(_Meta).decode


def _has(envelope: bytes, wanted: dict[str, Any]) -> bool:
    meta = _meta_of(envelope).meta
    return all(name in meta and meta[name] == value for name, value in wanted.items())
