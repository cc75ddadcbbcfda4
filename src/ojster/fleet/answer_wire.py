"""The JSON of answers about workers."""

from __future__ import annotations

from typing import Any, Literal, Self

from msgspec import UNSET, Struct, UnsetType

from ojster.core.calls import Single
from ojster.core.tenant import NOBODY, called, split
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Count, Json, NumberedPaginationBody, PaginationBody, Timestamp
from ojster.fleet.lost_workers import HeldJob, LostWorker
from ojster.fleet.unrunnable import Unrunnable
from ojster.fleet.worker_rule import WorkerRule
from ojster.fleet.workers import KnownWorker


class HeartbeatAnswer(Struct):
    """The answer to a heartbeat: the directive, and the jobs whose leases were extended, cancelled or lost.

    ``woken``: there is news, of which the next heartbeat tells; send it at once. A worker that is silent for
    ``heartbeat_timeout_ms`` counts as lost.
    """

    state: str
    jobs_extended: list[str] = []
    jobs_cancelled: list[str] = []
    jobs_lost: list[str] = []
    woken: bool = False
    heartbeat_timeout_ms: int = 30_000
    server_time: Timestamp = ""
    acknowledged: Literal[True] = True


class WorkerBody(Struct, kw_only=True):
    """A worker, as its last heartbeat described it."""

    state: str
    directive: str | None
    hostname: str | UnsetType = UNSET
    pid: int | UnsetType = UNSET
    queues: list[str] | UnsetType = UNSET
    labels: list[str]
    concurrency: int | UnsetType = UNSET
    active_jobs: int
    started_at: Timestamp
    last_heartbeat_at: Timestamp
    pool: str | None = None
    provides: dict[str, list[str]] = {}
    enabled: bool = True


class WorkerInfo(WorkerBody, kw_only=True):
    """A worker, as its last heartbeat described it.

    Spec: ojs-worker-protocol
    """

    worker_id: str
    tenant_id: str | UnsetType = UNSET


_SAME: tuple[str, ...] = (
    "state", "directive", "hostname", "pid", "queues", "labels", "concurrency", "active_jobs", "pool", "provides",
    "enabled",
)  # fmt: skip
"""Members that are the same in JSON."""

_OPTIONAL: frozenset[str] = frozenset({"hostname", "pid", "queues", "concurrency"})
"""Members that are left out if the worker has not said them."""


def _members(worker: KnownWorker) -> dict[str, Any]:
    known = {name: getattr(worker, name) for name in _SAME}
    return {name: value for name, value in known.items() if name not in _OPTIONAL or value not in (None, [])} | {
        "started_at": format_timestamp(worker.started_at),
        "last_heartbeat_at": format_timestamp(worker.last_seen_at),
    }


def show_worker(worker: KnownWorker) -> WorkerInfo:
    """Return the JSON form of a worker."""
    tenant = split(worker.id)[0]
    return WorkerInfo(worker_id=called(worker.id), tenant_id=UNSET if tenant == NOBODY else tenant, **_members(worker))


def read_worker(shown: WorkerInfo) -> KnownWorker:
    """Return the worker with this JSON form."""
    return KnownWorker(
        id=shown.worker_id,
        started_at=parse_timestamp(shown.started_at),
        last_seen_at=parse_timestamp(shown.last_heartbeat_at),
        **{name: _known(getattr(shown, name), [] if name == "queues" else None) for name in _SAME},
    )


def _known(value: Any, otherwise: Any) -> Any:
    return otherwise if value is UNSET else value


class WorkersAnswer(Struct):
    """The workers that send heartbeats."""

    workers: list[WorkerInfo]
    pagination: PaginationBody

    @classmethod
    def of(cls, workers: list[KnownWorker], pagination: PaginationBody) -> Self:
        return cls([show_worker(worker) for worker in workers], pagination)

    def value(self) -> list[KnownWorker]:
        return [read_worker(shown) for shown in self.workers]


class LostWorkerInfo(Struct):
    """A worker whose heartbeats stopped: ``held`` is the number of its jobs, and ``jobs`` has the first of them."""

    worker_id: str
    queues: list[str]
    started_at: Timestamp
    last_heartbeat_at: Timestamp
    lost_at: Timestamp
    held: Count
    jobs: list[HeldJob]
    hostname: str | None = None
    pid: int | None = None
    tenant_id: str | UnsetType = UNSET


class LostWorkersAnswer(Struct):
    """The workers that were lost in the last day."""

    workers: list[LostWorkerInfo]

    @classmethod
    def of(cls, lost: list[LostWorker]) -> Self:
        return cls([_show_lost(worker) for worker in lost])

    def value(self) -> list[LostWorker]:
        return [
            LostWorker(
                shown.worker_id,
                shown.hostname,
                shown.pid,
                shown.queues,
                parse_timestamp(shown.started_at),
                parse_timestamp(shown.last_heartbeat_at),
                parse_timestamp(shown.lost_at),
                shown.held,
                shown.jobs,
            )
            for shown in self.workers
        ]


def _show_lost(worker: LostWorker) -> LostWorkerInfo:
    tenant, name = split(worker.id)
    return LostWorkerInfo(
        worker_id=name,
        tenant_id=UNSET if tenant == NOBODY else tenant,
        hostname=worker.hostname,
        pid=worker.pid,
        queues=worker.queues,
        started_at=format_timestamp(worker.started_at),
        last_heartbeat_at=format_timestamp(worker.last_seen_at),
        lost_at=format_timestamp(worker.lost_at),
        held=worker.held,
        jobs=worker.jobs,
    )


class WorkerAnswer(Struct):
    """A worker, as the member ``worker``."""

    worker: WorkerInfo

    @classmethod
    def of(cls, worker: KnownWorker) -> Self:
        return cls(show_worker(worker))

    def value(self) -> KnownWorker:
        return read_worker(self.worker)


class RemovedWorkerAnswer(Struct):
    """A worker that was removed."""

    worker_id: str
    removed: Literal[True] = True


# Operators


class AdminWorkerBody(WorkerBody, kw_only=True):
    """A worker, for operators; ``jobs`` are those that it runs.

    Spec: ojs-admin-api 8
    """

    id: str
    jobs: list[dict[str, Json]] | UnsetType = UNSET


def show_admin_worker(worker: KnownWorker, *, stale: bool) -> AdminWorkerBody:
    """Return the JSON form of a worker for operators; ``stale``: it has missed its heartbeats."""
    members = _members(worker) | {"queues": worker.queues}  # also none: the specification's admin page joins them
    return AdminWorkerBody(id=worker.id, **(members | {"state": "stale"} if stale else members))


class WorkerCountsBody(Struct):
    """Numbers of workers by state."""

    total: Count
    running: Count = 0
    quiet: Count = 0
    stale: Count = 0


class AdminWorkersAnswer(Struct):
    """A page of the workers, for operators."""

    items: list[AdminWorkerBody]
    summary: WorkerCountsBody
    pagination: NumberedPaginationBody


class DeregisteredWorkerAnswer(Struct):
    """A worker that was deregistered."""

    id: str
    deregistered: Literal[True] = True


class UnrunnableAnswer(Single[list[Unrunnable]]):
    """The kinds of waiting jobs that no registered worker can run."""

    unrunnable: list[Unrunnable]


class WorkerRuleInfo(Struct):
    """A worker rule: an operator's settings for a worker."""

    id: str
    enabled: bool
    provides: dict[str, str | None]
    allowed_types: tuple[str, ...] | None
    denied_types: tuple[str, ...]
    reason: str | None
    changed_at: Timestamp


class WorkerRuleAnswer(Struct):
    """A worker rule, as the member ``rule``."""

    rule: WorkerRuleInfo

    @classmethod
    def of(cls, rule: WorkerRule) -> Self:
        return cls(show_rule(rule))

    def value(self) -> WorkerRule:
        return read_rule(self.rule)


class WorkerRulesAnswer(Struct):
    """All worker rules."""

    items: list[WorkerRuleInfo]

    @classmethod
    def of(cls, rules: list[WorkerRule]) -> Self:
        return cls([show_rule(rule) for rule in rules])

    def value(self) -> list[WorkerRule]:
        return [read_rule(shown) for shown in self.items]


class DeletedRuleAnswer(Struct):
    """The id of a worker whose rule was deleted."""

    id: str
    deleted: Literal[True] = True


def show_rule(rule: WorkerRule) -> WorkerRuleInfo:
    """Return the JSON form of a worker rule."""
    return WorkerRuleInfo(
        rule.id,
        rule.enabled,
        rule.provides,
        rule.allowed,
        rule.denied,
        rule.reason,
        format_timestamp(rule.changed_at),
    )


def read_rule(shown: WorkerRuleInfo) -> WorkerRule:
    """Return the worker rule with this JSON form."""
    return WorkerRule(
        shown.id,
        shown.enabled,
        shown.provides,
        shown.allowed_types,
        shown.denied_types,
        shown.reason,
        parse_timestamp(shown.changed_at),
    )
