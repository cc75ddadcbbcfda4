"""What needs the attention of an operator: findings, the worst first, each with what it concerns."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from ojster.core.durations import HOUR, MINUTE
from ojster.core.tenant import TENANT_NAMES_RANGE, called
from ojster.core.timestamps import format_optional, format_timestamp
from ojster.fleet.unrunnable import MAX_EXAMINED, list_unrunnable
from ojster.insight.flow_troubles import find_flow_troubles, unrunnable_flows
from ojster.insight.readiness import why_not_ready
from ojster.insight.receivers import FailingReceiver, failing_receivers
from ojster.jobs.filter_walk import IS_NOT_INTERNAL
from ojster.jobs.names import is_internal
from ojster.jobs.queries import count_jobs
from ojster.jobs.statistics import Work, work_by_queue
from ojster.jobs.waiting import oldest_waiting
from ojster.queues.backpressure import DEPTH_STATES
from ojster.queues.maintenance import find_maintenance
from ojster.queues.overview import LATENCY_MINUTES
from ojster.queues.queues import list_queues
from ojster.queues.rules import queue_bounds
from ojster.storage.database import Database
from ojster.storage.memory import Local
from ojster.storage.transaction import Transaction
from ojster.workflows.read.waiting import waits_for
from ojster.workflows.wait import WaitingFor

SLOW_US: Final = 5 * MINUTE
"""Time after which the oldest job of a queue waits too long, in microseconds."""

OVERDUE_US: Final = MINUTE
"""Time after which a cron job that has not fired is overdue, in microseconds."""

MANY_FAILURES: Final = 0.2
"""Share of failed attempts in the last hour that is worth a look."""

FEW_ATTEMPTS: Final = 20
"""Number of attempts from which on their share of failures means something."""

MAX_PER_KIND: Final = 20
"""Number of findings of one kind that are shown."""

MAX_QUEUES: Final = 500
"""Number of queues whose oldest job is looked at: those in which most jobs wait."""

MAX_AGE_SECONDS: Final = 2.0
"""Time for which findings are given again, in seconds, so that many pages cost no more than one."""

Level = Literal["error", "warning", "notice"]

_LEVELS: Final[dict[Level, int]] = {"error": 0, "warning": 1, "notice": 2}


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that needs attention.

    Parameters
    ----------
    kind:
        ``maintenance``, ``full`` (the database; with ``queue``, that queue), ``waiting``, ``unrunnable``, ``dead``,
        ``failing``, ``deliveries`` (a webhook or a channel accepts none), ``paused``, ``silent``, ``overdue``,
        ``flows`` or ``people``.
    level:
        ``error``: jobs do not run, or are lost to their users; ``warning``: they may be soon; ``notice``: somebody
        meant it, or is asked.
    message:
        What it is, in words.
    subject:
        The name or id of the queue, worker, cron job, job or workflow that it is about.
    count:
        Number of jobs or workflows concerned.
    since:
        When it began, RFC 3339, if that is known.
    queue:
        The queue whose jobs it concerns.
    """

    kind: str
    level: Level
    message: str
    subject: str | None = None
    count: int | None = None
    since: str | None = None
    queue: str | None = None


def find_attention(tx: Transaction, requests: Sequence[None]) -> list[list[Finding]]:
    """Return the findings, the worst first, for each request; what follows from another finding is left out."""
    seen = [finding for look in _LOOKS for finding in look(tx)]
    following = [finding for finding in seen if _follows(finding, seen)]
    since = {finding.queue: finding.since for finding in following}
    findings = [
        msgspec.structs.replace(finding, since=since.get(finding.queue)) if finding.kind == "unrunnable" else finding
        for finding in seen
        if finding not in following
    ]
    findings = _merge_unserved(tx, findings)
    findings.sort(key=lambda finding: _LEVELS[finding.level])
    of_kind = Counter[str]()
    shown = []
    for finding in findings:
        of_kind[finding.kind] += 1
        if of_kind[finding.kind] <= MAX_PER_KIND:
            shown.append(finding)
    return [list(shown) for _ in requests]


def _follows(finding: Finding, others: Sequence[Finding]) -> bool:
    """Return whether a finding says no more than others: jobs wait because no worker can run any of them, or may."""
    if finding.kind != "waiting":
        return False
    unrunnable = sum(
        other.count or 0 for other in others if other.kind == "unrunnable" and other.queue == finding.queue
    )
    return unrunnable >= min(finding.count or 0, MAX_EXAMINED) or any(
        other.kind == "maintenance" or (other.kind == "deliveries" and is_internal(finding.queue or ""))
        for other in others
    )


def _merge_unserved(tx: Transaction, findings: list[Finding]) -> list[Finding]:
    """Replace the findings of several queues whose jobs no worker can run by one if there is no worker at all."""
    unserved = [finding for finding in findings if finding.kind == "unrunnable"]
    queues = {finding.queue for finding in unserved}
    if len(queues) < 2 or tx.execute("SELECT 1 FROM workers LIMIT 1"):
        return findings
    since = min((finding.since for finding in unserved if finding.since is not None), default=None)
    message = f"No worker is there. Jobs wait in {len(queues):,} queues."
    merged = Finding("unrunnable", "error", message, count=sum(finding.count or 0 for finding in unserved), since=since)
    return [merged, *(finding for finding in findings if finding.kind != "unrunnable")]


class _Last:
    """The last findings, and when they were found, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.at = float("-inf")
        self.findings: list[Finding] = []
        self.looking: asyncio.Lock = asyncio.Lock()


_last: Final = Local(_Last)


async def attention(database: Database) -> list[Finding]:
    """Return all findings, the worst first. For ``MAX_AGE_SECONDS``, whoever asks gets the same ones."""
    last = _last.of(database.memory)
    async with last.looking:
        if time.monotonic() - last.at > MAX_AGE_SECONDS:
            last.findings = await database.survey(find_attention, None)
            if (reason := await why_not_ready(database)) is not None:
                last.findings.insert(0, Finding("full", "error", f"The database takes no new jobs: {reason}"))
            last.at = time.monotonic()
    return last.findings


def _maintenance(tx: Transaction) -> Iterator[Finding]:
    (known,) = find_maintenance(tx, (None,))
    if known is not None:
        why = f": {known.reason}" if known.reason else ""
        message = f"Maintenance mode is on{why}. Workers get no jobs, and schedules create none."
        yield Finding("maintenance", "warning", message, since=format_timestamp(known.enabled_at))


def _queues(tx: Transaction) -> Iterator[Finding]:
    """Look at each queue: whether it is full or paused, and whether its jobs wait too long. All three are one alarm."""
    (queues,) = list_queues(tx, (None,))
    (counts,) = count_jobs(tx, (None,))
    bounds = queue_bounds(tx)
    queues.sort(key=lambda queue: -counts.get(queue.name, {}).get("available", 0))
    for place, queue in enumerate(queues):
        states = counts.get(queue.name, {})
        waiting, depth = states.get("available", 0), sum(states.get(state, 0) for state in DEPTH_STATES)
        paused_at = queue.paused_at
        at = oldest_waiting(tx, queue.name) if waiting and place < MAX_QUEUES and paused_at is None else None
        slow_since = at if at is not None and tx.now - at > SLOW_US else None
        since = format_optional(paused_at or slow_since)
        bound = bounds.get(queue.name)
        if bound is not None and depth >= bound.max_depth:
            is_loss = bound.strategy != "drop_oldest"
            message = (
                f"The queue {queue.name} is full: {depth:,} of {bound.max_depth:,} places are taken. "
                f"{'It refuses new jobs.' if is_loss else 'New jobs replace the oldest.'} "
                f"{'It is paused.' if paused_at else 'The oldest waits too long.' if slow_since else ''}"
            )
            level: Level = "error" if is_loss else "warning"
            yield Finding("full", level, message.rstrip(), queue.name, depth, since, queue.name)
        elif paused_at:
            message = f"The queue {queue.name} is paused. {_jobs(waiting)} {_wait(waiting)} in it."
            yield Finding("paused", "notice", message, queue.name, waiting, since, queue.name)
        elif slow_since:
            which = "The only job" if waiting == 1 else f"The oldest of {_jobs(waiting)}"
            message = f"{which} in the queue {queue.name} waits too long."
            yield Finding("waiting", "error", message, queue.name, waiting, since, queue.name)


def _unrunnable(tx: Transaction) -> Iterator[Finding]:
    (groups,) = list_unrunnable(tx, (None,))
    flows = {trouble.name for trouble in unrunnable_flows(tx, groups)}
    for group in groups:
        what = "" if group.type is None else f" of type {group.type}"
        number = ("" if group.is_complete else "at least ") + _jobs(group.jobs)
        message = f"No worker can run {number}{what} in the queue {group.queue}: {'; '.join(group.reasons)}."
        if group.type in flows:
            message += (
                " Start workers with the code of these flows, or move them to another version with "
                f"`ojster flows pin {group.type} VERSION`."
            )
        yield Finding("unrunnable", "error", message, group.job_id, group.jobs, queue=group.queue)


def _failures(tx: Transaction) -> Iterator[Finding]:
    """Look for queues whose jobs gave up, or whose attempts fail. Both are one finding: they have one cause."""
    rows: list[tuple[str, int]] = tx.execute(
        f"""
        SELECT queue, count(*)
        FROM jobs
        WHERE state = 'discarded' AND dead = 1 AND finished_at > :since AND {IS_NOT_INTERNAL}
        GROUP BY queue
        ORDER BY 2 DESC
        LIMIT :most
        """,
        {"since": tx.now - HOUR, "most": MAX_PER_KIND},
    )
    failing = {
        name: done
        for name, done in work_by_queue(tx, LATENCY_MINUTES).items()
        if done.processed >= FEW_ATTEMPTS and done.failed > MANY_FAILURES * done.processed and not is_internal(name)
    }
    for queue, number in rows:
        share = f"; {_share(failing.pop(queue))} of its attempts failed" if queue in failing else ""
        message = f"{_jobs(number)} of the queue {queue} became dead letters in the last hour{share}."
        yield Finding("dead", "error", message, queue, number, queue=queue)
    for name, done in sorted(failing.items(), key=lambda name_and_work: -name_and_work[1].failed)[:MAX_PER_KIND]:
        message = f"{_share(done)} of the attempts in the queue {name} failed in the last hour."
        yield Finding("failing", "warning", message, name, done.failed, queue=name)


def _reason_of(receiver: FailingReceiver) -> str:
    """Return the last error of a receiver without its address, which is said before it."""
    for start in (f"{receiver.address} ", f"{receiver.address}: "):
        if receiver.error.startswith(start):
            return receiver.error.removeprefix(start).rstrip(".")
    return receiver.error.rstrip(".")


def _share(done: Work) -> str:
    return f"{round(100 * done.failed / done.processed)} %"


def _receivers(tx: Transaction) -> Iterator[Finding]:
    """Look for webhooks and channels that accept no deliveries."""
    (failing,) = failing_receivers(tx, (None,))
    for receiver in failing[:MAX_PER_KIND]:
        some = "" if receiver.is_counted else "At least "
        message = f"{receiver.address} accepts no deliveries: {_reason_of(receiver)}."
        if receiver.waiting:  # what push endpoints do not take waits in queues, for others, too
            message += f" {some}{_many(receiver.waiting, 'delivery', 'deliveries')} {_wait(receiver.waiting)} for it."
        since = format_timestamp(receiver.since)
        yield Finding("deliveries", "error", message, receiver.receiver, receiver.waiting, since)


def _silent_workers(tx: Transaction) -> Iterator[Finding]:
    rows = tx.execute(
        """
        SELECT id, last_seen_at, active_jobs
        FROM workers
        WHERE last_seen_at < :before
        ORDER BY last_seen_at
        LIMIT :most
        """,
        {"before": tx.now - tx.settings.heartbeat_timeout // 2, "most": MAX_PER_KIND},
    )
    for id, at, active in rows:
        message = f"The worker {called(id)} sends no heartbeats. It holds {_jobs(active)}."
        yield Finding("silent", "warning", message, called(id), active, format_timestamp(at))


def _overdue(tx: Transaction) -> Iterator[Finding]:
    if find_maintenance(tx, (None,))[0] is not None:
        return  # none fires meanwhile
    rows = tx.execute(
        """
        SELECT name, next_run_at
        FROM crons
        WHERE enabled = 1 AND next_run_at < :before AND NOT (name >= :tenants AND name < :end)
        ORDER BY next_run_at
        LIMIT :most
        """,
        {
            "before": tx.now - OVERDUE_US,
            "tenants": TENANT_NAMES_RANGE[0],
            "end": TENANT_NAMES_RANGE[1],
            "most": MAX_PER_KIND,
        },
    )
    for name, at in rows:
        message = f"The cron job {name} should have fired and has not. Is a server running?"
        yield Finding("overdue", "error", message, name, since=format_timestamp(at))


def _flows(tx: Transaction) -> Iterator[Finding]:
    """Look for flows that do not go on; those that no worker runs are among the jobs of which that is true."""
    (troubles,) = find_flow_troubles(tx, (None,))
    for trouble in [trouble for trouble in troubles if trouble.kind != "unrunnable"][:MAX_PER_KIND]:
        flows = f"{_many(trouble.count, 'flow')} {trouble.name}"
        message = (
            f"{flows} stopped in the last day: the function asks for something else than what is recorded. Correct it, "
            "and retry the workflow."
            if trouble.kind == "mismatched"
            else f"{flows} ran in a worker for more than an hour without waiting. Look at what the steps do."
        )
        level: Level = "error" if trouble.kind == "mismatched" else "warning"
        yield Finding("flows", level, message, trouble.workflow_id, trouble.count, format_optional(trouble.since))


def _people(tx: Transaction) -> Iterator[Finding]:
    asked: tuple[tuple[WaitingFor, str], ...] = (("gate", "an approval"), ("form", "an answer"))
    for what, message in asked:
        ((number,),) = tx.execute(f"SELECT count(*) FROM workflows WHERE {waits_for(what)}")
        if number:
            yield Finding(
                "people", "notice", f"{_many(number, 'workflow')} {_wait(number)} for {message}.", what, number
            )


_LOOKS: Final = (
    _maintenance,
    _queues,
    _unrunnable,
    _failures,
    _receivers,
    _silent_workers,
    _overdue,
    _flows,
    _people,
)


def _jobs(number: int) -> str:
    return _many(number, "job")


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _many(number: int, what: str, plural: str | None = None) -> str:
    return f"{number:,} {what if number == 1 else plural or f'{what}s'}"
