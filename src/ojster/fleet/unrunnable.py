"""Available jobs that no present worker can run, with the reasons.

Workers that send no heartbeats are unknown: a queue without known workers in which jobs run has some, and Ojster's own
queues have each server.

Spec: ojs-ml-resources 11
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.core.tenant import TENANT_NAMES_RANGE
from ojster.fleet.abilities import PLAIN, Abilities, decode_abilities, worker_rules_by_id
from ojster.fleet.matching import find_needs
from ojster.fleet.requirements import Needs, Operator, ProvidedFacts
from ojster.jobs.names import RESERVED_QUEUE_PREFIX
from ojster.jobs.versions import shown_version
from ojster.storage.transaction import Transaction

MAX_UNRUNNABLE_GROUPS: Final = 1_000
"""Maximum number of entries returned. An entry groups the jobs of a queue by type, version and requirements."""

MAX_EXAMINED: Final = 20_000
"""Maximum number of available jobs of a queue that are looked at, unless a worker takes all of them."""


class Unrunnable(msgspec.Struct, frozen=True):
    """A group of available jobs in a queue that no present worker can run.

    Parameters
    ----------
    jobs, job_id:
        Number of jobs, among the first ``MAX_EXAMINED`` of the queue, and the id of the oldest.
    is_complete:
        Whether all jobs of the queue were examined; otherwise there may be more.
    reasons:
        What the closest worker lacks, or that no worker takes jobs of the queue.
    type:
        Their type; ``None``: any type.
    """

    queue: str
    jobs: int
    job_id: str
    reasons: list[str]
    type: str | None = None
    is_complete: bool = True


def list_unrunnable(tx: Transaction, requests: Sequence[None]) -> list[list[Unrunnable]]:
    """Return the unrunnable jobs, for each request, ordered by queue and type."""
    present = PresentWorkers(tx)
    groups = [*_with_needs(tx, present), *_without_needs(tx, present)]
    groups.sort(key=lambda group: (group.queue, group.type or "", group.job_id))
    return [groups[:MAX_UNRUNNABLE_GROUPS] for _ in requests]


def why_unrunnable(tx: Transaction, job: Job) -> list[str]:
    """Return what the closest of the present workers lacks for a job; an empty list if one of them can run it."""
    needs = None if job.needs is None else find_needs(tx, job.needs, job.seq)
    return PresentWorkers(tx).reasons(job.queue, job.type, job.version, needs) or []


class PresentWorkers:
    """The capabilities of the known workers that are not disabled, by queue."""

    def __init__(self, tx: Transaction) -> None:
        rules = worker_rules_by_id(tx)
        self._workers: list[tuple[set[str], Abilities]] = []
        for id, queues, said in tx.execute("SELECT id, queues, abilities FROM workers"):
            rule = rules.get(id)
            if rule is None or rule.enabled:
                abilities = (PLAIN if said is None else decode_abilities(said)).under(rule)
                self._workers.append((set(msgspec.json.decode(queues, type=list[str])), abilities))
        running = tx.execute("SELECT queue FROM job_counts WHERE state = 'active' AND jobs > 0")
        self._running = {queue for (queue,) in running}

    def of(self, queue: str) -> list[Abilities]:
        """Return the capabilities of the workers that take jobs of a queue."""
        return [abilities for queues, abilities in self._workers if queue in queues]

    def has_unknown(self, queue: str) -> bool:
        """Return whether there may be workers of a queue that send no heartbeats: its jobs run, or servers do them."""
        return queue in self._running or queue.startswith(RESERVED_QUEUE_PREFIX)

    def reasons(self, queue: str, type: str | None, version: int | None, needs: Needs | None) -> list[str] | None:
        """Return why no worker can run a job; ``None`` if one can, or if that is unknown."""
        workers = self.of(queue)
        if not workers:
            return None if self.has_unknown(queue) else ["no worker takes jobs of this queue"]
        if type is None:
            return None
        lacks = [_unmet_requirements(worker, type, version, needs) for worker in workers]
        return min(lacks, key=len) if all(lacks) else None


def _with_needs(tx: Transaction, present: PresentWorkers) -> list[Unrunnable]:
    rows = tx.execute(
        """
        SELECT queue, needs, type, version, count(*), min(seq)
        FROM jobs
        WHERE state = 'available' AND needs IS NOT NULL
        GROUP BY queue, needs, type, version
        ORDER BY queue, needs, type, version
        LIMIT :most
        """,
        {"most": MAX_UNRUNNABLE_GROUPS},
    )
    groups = []
    for queue, key, type, version, jobs, seq in rows:
        reasons = present.reasons(queue, type, version, find_needs(tx, key, seq))
        if reasons:
            groups.append(_unrunnable(tx, queue, jobs, seq, reasons, type))
    return groups


_LOOKED_AT: Final = " UNION ALL ".join(
    f"""
    SELECT *
    FROM (
        SELECT type, version, seq
        FROM jobs
        WHERE queue = :queue AND state = 'available' AND needs IS NULL AND limit_key IS {limited}
        LIMIT :most
    ) AS {name}
    """
    for limited, name in (("NULL", "free"), ("NOT NULL", "limited"))
)
"""Reads the first jobs of a queue by the indexes of those without a rate limit and of those with one."""


def _without_needs(tx: Transaction, present: PresentWorkers) -> list[Unrunnable]:
    first, end = TENANT_NAMES_RANGE
    rows = tx.execute(
        """
        SELECT queue
        FROM job_counts
        WHERE state = 'available' AND jobs > 0 AND NOT (queue >= :first AND queue < :end)
        ORDER BY queue
        """,
        {"first": first, "end": end},
    )
    groups: list[Unrunnable] = []
    for (queue,) in rows:
        if len(groups) >= MAX_UNRUNNABLE_GROUPS:
            break
        workers = present.of(queue)
        if any(worker.takes_all for worker in workers) or (not workers and present.has_unknown(queue)):
            continue  # one worker takes all jobs, or is unknown, so the jobs need not be read
        kinds, group = ("type, version", "GROUP BY type, version") if workers else ("NULL, NULL", "")
        looked_at = tx.execute(
            f"""
            SELECT {kinds}, count(*), min(seq)
            FROM ({_LOOKED_AT}) AS looked_at
            {group}
            """,
            {"queue": queue, "most": MAX_EXAMINED},
        )
        is_complete = sum(jobs for _, _, jobs, _ in looked_at) < MAX_EXAMINED
        for type, version, jobs, seq in looked_at:
            reasons = present.reasons(queue, type, version, None)
            if jobs and reasons:
                groups.append(_unrunnable(tx, queue, jobs, seq, reasons, type, is_complete))
    return groups


def _unrunnable(
    tx: Transaction,
    queue: str,
    jobs: int,
    seq: int,
    reasons: list[str],
    type: str | None,
    is_complete: bool = True,
) -> Unrunnable:
    ((id,),) = tx.execute("SELECT id FROM jobs WHERE seq = :seq", {"seq": seq})
    return Unrunnable(queue, jobs, str(id), reasons, type, is_complete)


def _unmet_requirements(worker: Abilities, type: str, version: int | None, needs: Needs | None) -> list[str]:
    """Return what keeps a worker from running a job; empty if nothing does."""
    lacks = [] if worker.types.accepts(type) else [f"a worker rule excludes the type {type!r}"]
    if worker.runs is not None and type not in worker.runs:
        lacks.append(f"it has no handler for {type!r}")
    accepted = [handler for handler in worker.handled if handler.type == type]
    if version is not None and accepted and not any(handler.low <= version < handler.high for handler in accepted):
        ranges = " or ".join(handler.versions for handler in accepted)
        lacks.append(f"it handles {ranges} of {type!r}, not {shown_version(version)}")
    return lacks if needs is None or worker.provided.meets(needs) else lacks + _missing(worker.provided, needs)


_WORDS: Final[dict[Operator, str]] = {
    "In": "",
    "NotIn": "anything but",
    "Exists": "any value",
    "DoesNotExist": "no value",
    "Gt": "more than",
    "Gte": "at least",
    "Lt": "less than",
    "Lte": "at most",
}
"""What operators say in front of the values that they compare with."""


def _missing(provided: ProvidedFacts, needs: Needs) -> list[str]:
    """Return the requirements of a job that a worker does not meet."""
    lacks = []
    for condition in needs.required:
        facts = provided.facts.get(condition.key, ())
        if not condition.holds(facts):
            wanted = " ".join(filter(None, [_WORDS[condition.operator], " or ".join(condition.values)]))
            has = ", ".join(facts) if facts else "none"
            lacks.append(f"{condition.key}: {'not ' * condition.negated}{wanted} is required; the worker has {has}")
    for name, amount in needs.used:
        if provided.amount(name) < amount:
            lacks.append(f"{name}: {amount:g} is required; the worker provides {provided.amount(name):g}")
    return lacks or ["the worker provides none of the required resources"]
