"""Selection of jobs: a filter as an SQL condition, and a walk over all matches in bounded steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import msgspec

from ojster.core.job import NODE_BITS
from ojster.core.json_objects import raw_list
from ojster.core.parsing import refuse_unknown
from ojster.core.states import STATE_NAMES
from ojster.core.tenant import qualify
from ojster.jobs import search
from ojster.jobs.names import OWN_TYPES, RESERVED_QUEUE_PREFIX
from ojster.jobs.sweeps import WalkMatch, WalkResult, WalkStep, parts, take_step
from ojster.storage.database import Database
from ojster.storage.transaction import Transaction

WINDOW: Final = 20_000
"""Maximum number of rows that one step of a walk scans, including rows that do not match."""

ERRORS_AT_ONCE: Final = 100
"""Number of jobs whose errors are read by one statement: errors can have long backtraces."""


Values = str | tuple[str, ...] | None
"""A value that a job must have, or several of which it must have one; ``None``: any."""


def values_of(value: Values) -> tuple[str, ...]:
    """Return the values of a condition; none if there is no condition."""
    return () if value is None else (value,) if isinstance(value, str) else value


class JobFilter(msgspec.Struct, frozen=True):
    """Criteria for jobs; those left out match all jobs. Times are microseconds since the epoch, bounds excluded.

    Parameters
    ----------
    states:
        Allowed states; empty: all.
    tenant:
        Tenant of the job; the empty string: no tenant.
    type:
        Job types, or prefixes that end in ``*``.
    cron_name:
        Names of cron jobs, in their tenant, one of which enqueued the job.
    dead:
        Whether the job is a dead letter.
    error_type:
        Types of the error of the last failed attempt, or prefixes that end in ``*``.
    error_text:
        Text in the type or the message of the last error, in upper or lower case.
    error_pattern:
        Pattern of the message of the last error, as ``pattern_of`` returns it.
    worker:
        Names of workers, one of which runs the job or has ended it.
    workflow:
        Ids of workflows, one of which the job is a step of.
    tag:
        Tags, one of which the job has.
    where:
        Members of arguments and metadata, all with the values that follow them: ``args.order_id=42``,
        ``meta.customer=17`` (``search.Member``).
    id:
        The beginning or the end of the id.
    meta:
        Members that its ``meta`` must have, with these values.
    finished_after:
        Lower bound of the time at which the job was completed, cancelled or discarded.

    Raises
    ------
    InvalidRequest
        There is no such state, or a condition of ``where`` is malformed.
    """

    states: tuple[str, ...] = ()
    queue: Values = None
    tenant: str | None = None
    type: Values = None
    cron_name: Values = None
    dead: bool | None = None
    error_type: Values = None
    error_text: str | None = None
    error_pattern: str | None = None
    worker: Values = None
    workflow: Values = None
    tag: Values = None
    where: tuple[str, ...] = ()
    id: str | None = None
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

    def __post_init__(self) -> None:
        for state in self.states:
            refuse_unknown("state", state, STATE_NAMES)
        for condition in self.where:
            search.member_of(condition)

    @property
    def hides_internal(self) -> bool:
        """Whether jobs of Ojster's own work are left out."""
        names_own = any(type.startswith(OWN_TYPES) for type in values_of(self.type))
        return not (values_of(self.queue) or self.internal) and not names_own

    @property
    def is_searched(self) -> bool:
        """Whether it has conditions that are about the contents of jobs, which the database does not look into."""
        contents = (self.error_text, self.error_pattern, self.tag)
        return bool(self.where or self.meta) or any(condition is not None for condition in contents)

    @property
    def contents(self) -> search.Contents:
        """The conditions about the contents of jobs."""
        members = tuple(map(search.member_of, self.where))
        return search.Contents(self.error_text, self.error_pattern, values_of(self.tag), members, self.meta)

    @property
    def has_index(self) -> bool:
        """Whether an index finds all jobs that match."""
        return not (self.is_searched or self.worker is not None or self.id is not None)


IS_NOT_INTERNAL: Final = f"queue NOT LIKE '{RESERVED_QUEUE_PREFIX}%'"
"""SQL for jobs that are not of Ojster's own work. ``LIKE``, because the order of names depends on the database."""

_TIMES: Final = tuple(
    (f"{event}_{side}", f"{event}_at", sign)
    for event in ("created", "enqueued", "finished")
    for side, sign in (("after", ">"), ("before", "<"))
)


def conditions(chosen: JobFilter) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition of a filter, never empty, and its parameters.

    What it says of the contents of jobs is left out: see ``search``.
    """
    parts, parameters = _equalities(chosen)
    if chosen.has_own_expiration is not None:
        parts.append(f"node IS NULL AND due_at IS {'NOT ' * chosen.has_own_expiration}NULL")
    for name in ("type", "error_type"):
        if patterns := values_of(getattr(chosen, name)):
            exact = [value for value in patterns if not value.endswith("*")]
            choices = [_one_of(name, exact, parameters)] if exact else []
            for place, prefix in enumerate(value[:-1] for value in patterns if value.endswith("*")):
                choices.append(f"{name} >= :{name}_from_{place} AND {name} < :{name}_end_{place}")
                parameters |= {f"{name}_from_{place}": prefix, f"{name}_end_{place}": prefix + "\U0010ffff"}
            parts.append(choices[0] if len(choices) == 1 else f"({' OR '.join(choices)})")
    parts += _whereabouts(chosen, parameters)
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
        if len(chosen.states) == 1:
            parts.append(f"state = '{chosen.states[0]}'")  # as a parameter, it could not use the indexes of one state
        else:
            names = [f"state_{number}" for number in range(len(chosen.states))]
            parts.append(f"state IN (:{', :'.join(names)})")
            parameters |= dict(zip(names, chosen.states, strict=True))
    if chosen.dead is not None:
        parts.append(f"dead = {int(chosen.dead)}")
    if chosen.tenant:
        parts.append("tenant <> ''")  # for the index of jobs with a tenant
    if crons := values_of(chosen.cron_name):
        own = crons if chosen.tenant is None else [qualify(chosen.tenant, name) for name in crons]
        parts.append(_one_of("cron_name", own, parameters))
    if queues := values_of(chosen.queue):
        parts.append(_one_of("queue", queues, parameters))
    for name in ("tenant", "priority"):
        if (value := getattr(chosen, name)) is not None:
            parts.append(f"{name} = :{name}")
            parameters[name] = value
    for column in ("queue", "tenant"):
        if left_out := getattr(chosen, f"except_{column}s"):
            names = [f"except_{column}_{number}" for number in range(len(left_out))]
            parts.append(f"{column} NOT IN (:{', :'.join(names)})")
            parameters |= dict(zip(names, left_out, strict=True))
    return parts, parameters


def _one_of(column: str, values: Sequence[str], parameters: dict[str, Any]) -> str:
    """Return the condition that a column has one of some values, and add them to the parameters."""
    if len(values) == 1:
        parameters[column] = values[0]
        return f"{column} = :{column}"
    names = [f"{column}_{place}" for place in range(len(values))]
    parameters |= dict(zip(names, values, strict=True))
    return f"{column} IN (:{', :'.join(names)})"


def _whereabouts(chosen: JobFilter, parameters: dict[str, Any]) -> list[str]:
    """Return the conditions on workers, workflows and ids, and add their values to the parameters."""
    parts = []
    if workers := values_of(chosen.worker):
        # A worker of a tenant has a qualified name; one of all tenants runs jobs of this one under its plain name.
        known = [*workers, *(qualify(chosen.tenant, name) for name in workers if chosen.tenant)]
        choices = [_one_of("worker_id", known, parameters)]
        for place, name in enumerate(workers if chosen.tenant is None else ()):  # and those of any tenant
            choices.append(
                f"worker_id LIKE '/tenant/%' "
                f"AND substr(worker_id, length(worker_id) - :length_{place}) = :of_any_{place}"
            )
            parameters |= {f"length_{place}": len(name), f"of_any_{place}": f"/{name}"}
        parts.append(f"({' OR '.join(choices)})")
    if workflows := values_of(chosen.workflow):
        choices = []
        for place, id in enumerate(workflows):  # the nodes of a workflow are a range of numbers
            number = f"(SELECT seq FROM workflows WHERE id = :workflow_{place})"
            choices.append(f"node >= {number} << {NODE_BITS} AND node < ({number} + 1) << {NODE_BITS}")
            parameters[f"workflow_{place}"] = id
        parts.append(f"({' OR '.join(choices)})")
    if chosen.id is not None:
        parts.append("CAST(id AS TEXT) LIKE :id_start OR CAST(id AS TEXT) LIKE :id_end")
        parameters |= {"id_start": f"{chosen.id}%", "id_end": f"%{chosen.id}"}
        parts[-1] = f"({parts[-1]})"
    return parts


def walk(tx: Transaction, steps: Sequence[WalkStep[JobFilter]]) -> list[WalkResult[JobFilter]]:
    """Execute one step of each walk. A step scans at most ``WINDOW`` rows, however few match."""
    return [take_step(tx, step, "jobs", WINDOW, _select) for step in steps]


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


def _select(tx: Transaction, chosen: JobFilter, rows: str, bounds: dict[str, Any]) -> list[WalkMatch]:
    where, parameters = conditions(chosen)
    of_rows = f"SELECT * FROM {rows} AS looked_at WHERE {where}"
    if chosen.is_searched:
        searched = search.parts(tx, chosen.contents, of_rows, bounds | parameters)
        return [WalkMatch(match.id) for part in searched for match in part.matches]
    matches = tx.execute(f"SELECT id FROM ({of_rows}) AS matching ORDER BY seq", bounds | parameters)
    return [WalkMatch(id) for (id,) in matches]


async def batches(database: Database, chosen: JobFilter, size: int) -> AsyncIterator[list[str]]:
    """Yield the ids of all jobs that match now, oldest first, at most ``size`` at a time."""
    async for ids, _ in parts(database, walk, chosen, size):
        yield ids
