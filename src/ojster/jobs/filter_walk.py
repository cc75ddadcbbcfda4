"""Selection of jobs: a filter as an SQL condition, and a walk over all matches in bounded steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import msgspec

from ojster.core.json_objects import raw_list
from ojster.core.states import STATE_NAMES
from ojster.core.tenant import NOBODY, qualify
from ojster.jobs.failure import pattern_of
from ojster.jobs.names import OWN_TYPES, RESERVED_QUEUE_PREFIX
from ojster.jobs.sweeps import WalkMatch, WalkResult, WalkStep, parts, take_step
from ojster.storage.database import Database
from ojster.storage.transaction import Transaction

WINDOW: Final = 20_000
"""Maximum number of rows that one step of a walk scans, including rows that do not match."""

ERRORS_AT_ONCE: Final = 100
"""Number of jobs whose errors are read by one statement: errors can have long backtraces."""


class JobFilter(msgspec.Struct, frozen=True):
    """Criteria for jobs; those left out match all jobs. Times are microseconds since the epoch, bounds excluded.

    Parameters
    ----------
    states:
        Allowed states; empty: all.
    tenant:
        Tenant of the job; the empty string: no tenant.
    type:
        Job type, or a prefix that ends in ``*``.
    cron_name:
        Name of the cron job that enqueued the job, in its tenant.
    dead:
        Whether the job is a dead letter.
    error_type:
        Type of the error of the last failed attempt, or a prefix that ends in ``*``.
    error_pattern:
        Pattern of the message of its last error, as ``pattern_of`` returns it. Only walks apply it, because no index
        covers it.
    meta:
        Members that its ``meta`` must have, with these values. Only walks apply it, because no index covers it.
    finished_after:
        Lower bound of the time at which the job was completed, cancelled or discarded.
    """

    states: tuple[str, ...] = ()
    queue: str | None = None
    tenant: str | None = None
    type: str | None = None
    cron_name: str | None = None
    dead: bool | None = None
    error_type: str | None = None
    error_pattern: str | None = None
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
    """Whether a finished job outside workflows has a retention period of its own."""
    internal: bool = False
    """Whether jobs of Ojster's own work match, too, such as deliveries. A filter may also name their queue or type."""

    @property
    def hides_internal(self) -> bool:
        """Whether jobs of Ojster's own work are left out."""
        names_own = (self.type or "").startswith(OWN_TYPES)
        return self.queue is None and not self.internal and not names_own


IS_NOT_INTERNAL: Final = f"queue NOT LIKE '{RESERVED_QUEUE_PREFIX}%'"
"""SQL for jobs that are not of Ojster's own work. ``LIKE``, because the order of names depends on the database."""

_TIMES: Final = tuple(
    (f"{event}_{side}", f"{event}_at", sign)
    for event in ("created", "enqueued", "finished")
    for side, sign in (("after", ">"), ("before", "<"))
)


def conditions(chosen: JobFilter) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition of a filter, never empty, and its parameters.

    ``meta`` and ``error_pattern`` are left out.
    """
    parts, parameters = _equalities(chosen)
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
    if chosen.hides_internal:
        parts.append(IS_NOT_INTERNAL)
    return " AND ".join(parts) or "TRUE", parameters


def _equalities(chosen: JobFilter) -> tuple[list[str], dict[str, Any]]:
    """Return the conditions on columns that must have, or must not have, one of some values."""
    parts: list[str] = []
    parameters: dict[str, Any] = {}
    if chosen.states:
        if len(chosen.states) == 1 and chosen.states[0] in STATE_NAMES:
            parts.append(f"state = '{chosen.states[0]}'")  # as a parameter, it could not use the indexes of one state
        else:
            names = [f"state_{number}" for number in range(len(chosen.states))]
            parts.append(f"state IN (:{', :'.join(names)})")
            parameters |= dict(zip(names, chosen.states, strict=True))
    if chosen.dead is not None:
        parts.append(f"dead = {int(chosen.dead)}")
    if chosen.tenant:
        parts.append("tenant <> ''")  # for the index of jobs with a tenant
    if chosen.cron_name is not None:
        parts.append("cron_name = :cron_name")
        parameters["cron_name"] = qualify(chosen.tenant or NOBODY, chosen.cron_name)
    for name in ("queue", "tenant", "priority"):
        if (value := getattr(chosen, name)) is not None:
            parts.append(f"{name} = :{name}")
            parameters[name] = value
    for column in ("queue", "tenant"):
        if left_out := getattr(chosen, f"except_{column}s"):
            names = [f"except_{column}_{number}" for number in range(len(left_out))]
            parts.append(f"{column} NOT IN (:{', :'.join(names)})")
            parameters |= dict(zip(names, left_out, strict=True))
    return parts, parameters


def walk(tx: Transaction, steps: Sequence[WalkStep[JobFilter]]) -> list[WalkResult[JobFilter]]:
    """Execute one step of each walk. A step scans at most ``WINDOW`` rows, however few match."""
    return [take_step(tx, step, "jobs", WINDOW, _select) for step in steps]


def _select(tx: Transaction, chosen: JobFilter, rows: str, bounds: dict[str, Any]) -> list[WalkMatch]:
    where, parameters = conditions(chosen)
    matches: dict[int, str]
    if chosen.meta:
        with_envelopes = tx.execute(
            f"""
            SELECT j.seq, j.id, {tx.envelope}
            FROM (SELECT seq, id FROM {rows} AS looked_at WHERE {where}) AS j
            JOIN payloads AS p ON p.seq = j.seq
            ORDER BY j.seq
            """,
            bounds | parameters,
        )
        matches = {seq: id for seq, id, envelope in with_envelopes if _has(envelope, chosen.meta)}
    else:
        matches = dict(
            tx.execute(f"SELECT seq, id FROM {rows} AS looked_at WHERE {where} ORDER BY seq", bounds | parameters)
        )
    if (pattern := chosen.error_pattern) is not None:
        errors = last_errors(tx, list(matches))
        matches = {seq: matches[seq] for seq, last in errors if pattern_of(str(last.get("message", ""))) == pattern}
    return [WalkMatch(id) for id in matches.values()]


def last_errors(tx: Transaction, seqs: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the ``seq`` of each job with its last error; an empty one if it has none."""
    for first in range(0, len(seqs), ERRORS_AT_ONCE):
        part = seqs[first : first + ERRORS_AT_ONCE]
        errors: dict[int, bytes | None] = dict(
            tx.execute(f"SELECT seq, errors FROM jobs WHERE seq {tx.among}", (tx.integers(part),))
        )
        for seq in part:
            known = raw_list(errors.get(seq) or b"[]")
            yield seq, (_entry(known[-1]) if known else {})


_entry: Final = msgspec.json.Decoder(dict[str, Any]).decode


async def batches(database: Database, chosen: JobFilter, size: int) -> AsyncIterator[list[str]]:
    """Yield the ids of all jobs that match now, oldest first, at most ``size`` at a time."""
    async for ids, _ in parts(database, walk, chosen, size):
        yield ids


class _Meta(msgspec.Struct):
    meta: dict[str, msgspec.Raw]


_meta_of: Final = msgspec.json.Decoder(_Meta).decode


def _has(envelope: bytes, wanted: dict[str, Any]) -> bool:
    meta = _meta_of(envelope).meta
    return all(name in meta and _is(meta[name], value) for name, value in wanted.items())


def _is(raw: msgspec.Raw, wanted: Any) -> bool:
    try:
        return bool(msgspec.json.decode(raw) == wanted)
    except msgspec.DecodeError:
        return False  # a number out of range, which nothing is equal to
