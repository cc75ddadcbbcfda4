"""The calls of operators as plain methods: those of ``Client``, made from code without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from ojster.client.interface import BulkCalls, Client
from ojster.client.plain_methods import plain_call
from ojster.fleet.calls import FleetCalls
from ojster.insight.calls import InsightCalls
from ojster.jobs.calls import JobCalls
from ojster.queues.calls import PoolCalls, QueueCalls, RateLimitCalls
from ojster.schedules.calls import MaintenanceCalls, ScheduleCalls
from ojster.workflows.calls import WorkflowBulkCalls, WorkflowCalls

R = TypeVar("R")


class ClientOwner(Protocol):
    """What has a client for each event loop, and an event loop in which plain methods wait."""

    def client(self) -> Client:
        """Return the client for the running event loop."""

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R: ...


class PlainCalls:
    """Calls of one capability."""

    def __init__(self, owner: ClientOwner, capability: str) -> None:
        self._owner = owner
        self._capability = capability

    def _make(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        async def make() -> Any:
            # Inside the event loop: each has a client of its own.
            return await getattr(getattr(self._owner.client(), self._capability), name)(*args, **kwargs)

        return self._owner._wait(make())


class PlainJobs(PlainCalls):
    """Calls about jobs, one at a time or in lists."""

    find = plain_call(JobCalls.find)
    wait_for = plain_call(JobCalls.wait_for)
    select = plain_call(JobCalls.select)
    cancel = plain_call(JobCalls.cancel)
    retry = plain_call(JobCalls.retry)
    adjust_priority = plain_call(JobCalls.adjust_priority)
    explain = plain_call(JobCalls.explain)
    history = plain_call(JobCalls.history)
    log = plain_call(JobCalls.log)
    lineage = plain_call(JobCalls.lineage)
    results = plain_call(JobCalls.results)
    retry_dead = plain_call(JobCalls.retry_dead)
    delete_dead = plain_call(JobCalls.delete_dead)


class PlainBulk(PlainCalls):
    """Calls about all jobs that match a filter."""

    sweep = plain_call(BulkCalls.sweep)


class PlainQueues(PlainCalls):
    """Calls about queues."""

    all = plain_call(QueueCalls.all)
    unserved = plain_call(QueueCalls.unserved)
    statistics = plain_call(QueueCalls.statistics)
    pause = plain_call(QueueCalls.pause)
    resume = plain_call(QueueCalls.resume)
    create = plain_call(QueueCalls.create)
    delete = plain_call(QueueCalls.delete)
    configuration = plain_call(QueueCalls.configuration)
    configure = plain_call(QueueCalls.configure)
    limit = plain_call(QueueCalls.limit)
    preview = plain_call(QueueCalls.preview)
    overviews = plain_call(QueueCalls.overviews)
    overview = plain_call(QueueCalls.overview)


class PlainRateLimits(PlainCalls):
    """Calls about the rate limits of keys."""

    all = plain_call(RateLimitCalls.all)
    find = plain_call(RateLimitCalls.find)
    override = plain_call(RateLimitCalls.override)
    restore = plain_call(RateLimitCalls.restore)


class PlainPools(PlainCalls):
    """Calls about pools."""

    all = plain_call(PoolCalls.all)
    find = plain_call(PoolCalls.find)
    put = plain_call(PoolCalls.put)
    delete = plain_call(PoolCalls.delete)
    dispatched = plain_call(PoolCalls.dispatched)


class PlainFleet(PlainCalls):
    """Calls about workers."""

    all = plain_call(FleetCalls.all)
    lost = plain_call(FleetCalls.lost)
    direct = plain_call(FleetCalls.direct)
    deregister = plain_call(FleetCalls.deregister)
    unrunnable = plain_call(FleetCalls.unrunnable)
    rules = plain_call(FleetCalls.rules)
    change_rule = plain_call(FleetCalls.change_rule)
    forget_rule = plain_call(FleetCalls.forget_rule)


class PlainSchedules(PlainCalls):
    """Calls about cron jobs."""

    all = plain_call(ScheduleCalls.all)
    find = plain_call(ScheduleCalls.find)
    register = plain_call(ScheduleCalls.register)
    preview = plain_call(ScheduleCalls.preview)
    misses = plain_call(ScheduleCalls.misses)
    switch = plain_call(ScheduleCalls.switch)
    trigger = plain_call(ScheduleCalls.trigger)
    backfill = plain_call(ScheduleCalls.backfill)
    unregister = plain_call(ScheduleCalls.unregister)


class PlainMaintenance(PlainCalls):
    """Calls about maintenance."""

    prune = plain_call(MaintenanceCalls.prune)
    mode = plain_call(MaintenanceCalls.mode)
    switch_mode = plain_call(MaintenanceCalls.switch_mode)


class PlainWorkflows(PlainCalls):
    """Calls about workflows, one at a time or in lists."""

    show = plain_call(WorkflowCalls.show)
    select = plain_call(WorkflowCalls.select)
    statistics = plain_call(WorkflowCalls.statistics)
    status = plain_call(WorkflowCalls.status)
    steps = plain_call(WorkflowCalls.steps)
    cancel = plain_call(WorkflowCalls.cancel)
    terminate = plain_call(WorkflowCalls.terminate)
    retry = plain_call(WorkflowCalls.retry)
    hold = plain_call(WorkflowCalls.hold)
    release = plain_call(WorkflowCalls.release)
    fork = plain_call(WorkflowCalls.fork)
    preview_fork = plain_call(WorkflowCalls.preview_fork)
    retry_step = plain_call(WorkflowCalls.retry_step)
    cancel_step = plain_call(WorkflowCalls.cancel_step)


class PlainWorkflowBulk(PlainCalls):
    """Calls about all workflows that match a filter."""

    cancel = plain_call(WorkflowBulkCalls.cancel)
    retry = plain_call(WorkflowBulkCalls.retry)
    fork = plain_call(WorkflowBulkCalls.fork)
    hold = plain_call(WorkflowBulkCalls.hold)
    release = plain_call(WorkflowBulkCalls.release)
    delete = plain_call(WorkflowBulkCalls.delete)
    pin = plain_call(WorkflowBulkCalls.pin)


class PlainInsight(PlainCalls):
    """Calls about the work of the whole system."""

    attention = plain_call(InsightCalls.attention)
    failures = plain_call(InsightCalls.failures)
    statistics = plain_call(InsightCalls.statistics)
    history = plain_call(InsightCalls.history)
    dead_letters = plain_call(InsightCalls.dead_letters)
    time = plain_call(InsightCalls.time)


class PlainClient:
    """The calls of operators, by capability, with the names and parameters that they have in ``Client``.

    Parameters
    ----------
    owner:
        The application whose database or server they are made to.
    """

    def __init__(self, owner: ClientOwner) -> None:
        self.jobs = PlainJobs(owner, "jobs")
        self.bulk = PlainBulk(owner, "bulk")
        self.queues = PlainQueues(owner, "queues")
        self.rate_limits = PlainRateLimits(owner, "rate_limits")
        self.pools = PlainPools(owner, "pools")
        self.fleet = PlainFleet(owner, "fleet")
        self.schedules = PlainSchedules(owner, "schedules")
        self.maintenance = PlainMaintenance(owner, "maintenance")
        self.workflows = PlainWorkflows(owner, "workflows")
        self.workflow_bulk = PlainWorkflowBulk(owner, "workflow_bulk")
        self.insight = PlainInsight(owner, "insight")
