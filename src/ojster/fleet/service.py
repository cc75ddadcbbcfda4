"""Calls about workers, and by them about themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ojster.core.errors import Forbidden, InvalidRequest
from ojster.core.job import Job
from ojster.core.parsing import check_bounds
from ojster.core.tenant import called, split
from ojster.fleet import lost_workers, unrunnable, worker_rules, workers
from ojster.fleet.calls import FleetCalls
from ojster.fleet.lost_workers import LostWorker
from ojster.fleet.unrunnable import Unrunnable
from ojster.fleet.wire import WorkerRuleBody
from ojster.fleet.worker_rule import WorkerRule
from ojster.fleet.workers import Heartbeat, HeartbeatResponse, KnownWorker, Leave
from ojster.jobs.scope import CapabilityService, Scope
from ojster.jobs.topics import worker_topic

Directive = Callable[[Heartbeat, HeartbeatResponse], Awaitable[str | None]]
"""Chooses a worker's directive at a heartbeat: ``running``, ``quiet`` or ``terminate``; ``None``: no choice."""

MAX_WAIT_SECONDS: Final = 60.0
"""Maximum time that a heartbeat waits for something to tell the worker, in seconds."""

_RANK: Final = {"running": 0, "quiet": 1, "terminate": 2}
"""Directives and states of workers: a higher one is news for a worker in a lower one."""


class FleetService(CapabilityService, FleetCalls):
    """Calls about workers.

    Parameters
    ----------
    directives:
        Called in turn to choose a worker's directive; the first choice wins.
    """

    def __init__(self, scope: Scope, directives: Sequence[Directive] = ()) -> None:
        super().__init__(scope)
        self._directives = directives

    async def beat(self, heartbeat: Heartbeat, wait: float = 0.0) -> HeartbeatResponse:
        """Record a worker's heartbeat, extend its leases, and return its directive (BEAT).

        Parameters
        ----------
        wait:
            If there is nothing to tell the worker: wait until there is, at most so many seconds; 0 by default.
        """
        if self.scope.tenant is not None:
            worker_id = self.scope.named(heartbeat.worker_id)
            heartbeat = msgspec.structs.replace(heartbeat, worker_id=worker_id, tenant=self.scope.tenant)
        foreign = await self._foreign(heartbeat.active_jobs)
        if foreign:
            own = tuple(id for id in heartbeat.active_jobs if id not in foreign)
            heartbeat = msgspec.structs.replace(heartbeat, active_jobs=own)
        with self.database.wakeups.waiter(worker_topic(heartbeat.worker_id)) as waiter:
            waiter.arm()
            pulse = await self.database.run(workers.beat, heartbeat)
            pulse.lost += foreign
            for directive in self._directives:
                if (answer := await directive(heartbeat, pulse)) is not None:
                    pulse.directive = answer
                    break
            is_news = pulse.cancelled or pulse.lost or _RANK.get(pulse.directive, 0) > _RANK.get(heartbeat.state, 0)
            if wait > 0 and not is_news and not self.database.draining:
                pulse.woken = await waiter.wait(min(wait, MAX_WAIT_SECONDS))
        return pulse

    async def _foreign(self, ids: Sequence[str]) -> list[str]:
        """Return those of these jobs that are in other queues than the caller is limited to."""
        if self.scope.access is None or not self.scope.access.queues:
            return []
        refusals = await self.scope.check_jobs(ids)
        return [id for id, refusal in zip(ids, refusals, strict=True) if isinstance(refusal, Forbidden)]

    async def give_time_to_report(self) -> int:
        """Give workers time to report before leases end that ran out while no server was there.

        Returns
        -------
        int
            The number of leases that end later than they would have.
        """
        return await self.database.run(workers.give_time_to_report, None)

    async def leave(self, worker_id: str, *, lost: bool = False) -> None:
        """Remove a stopped worker; jobs that it still holds go back to their queues.

        Parameters
        ----------
        lost:
            Whether the worker died instead of stopping in good order: each of its jobs counts a loss, which has a limit
            apart from that of attempts, and workflows may be cancelled.

        Raises
        ------
        Forbidden
            The caller is limited to certain queues, and the worker holds a job of another.
        """
        if self.scope.is_limited:
            self.scope.check_queue([job.queue for job in await self.jobs_of(worker_id)])
        await self.database.run(workers.leave, Leave(self.scope.named(worker_id), lost))

    async def deregister(self, worker_id: str) -> None:
        """Remove a worker that has missed its heartbeats; its jobs go back to their queues.

        Raises
        ------
        NotFound, Conflict
            There is no such worker, or it has sent a heartbeat lately.
        """
        self.scope.require_all_tenants("Deregistering a worker")
        self.scope.need_all_queues("Deregistering a worker")
        await self.scope.do(workers.deregister, worker_id)

    async def direct(self, worker_id: str, directive: str) -> KnownWorker:
        """Set the directive for a worker's next heartbeat: ``running``, ``quiet`` or ``terminate``.

        Raises
        ------
        NotFound
            The worker does not exist.
        InvalidRequest
            The directive is unknown.
        """
        self.scope.need_all_queues("Directing a worker")
        if directive not in ("running", "quiet", "terminate"):
            raise InvalidRequest(f"Unknown directive {directive!r}. Use 'running', 'quiet' or 'terminate'.")
        return await self.scope.do(workers.direct, (self.scope.named(worker_id), directive))

    async def find(self, worker_id: str) -> KnownWorker:
        """Return a worker.

        Raises
        ------
        NotFound
            There is no such worker.
        """
        return await self.scope.look(workers.find_workers, self.scope.named(worker_id))

    async def jobs_of(self, worker_id: str) -> list[Job]:
        """Return the jobs that a worker runs; an empty list if there is no such worker."""
        return await self.scope.look(workers.held_jobs, self.scope.named(worker_id))

    async def all(self) -> list[KnownWorker]:
        """Return all workers, most recently seen first."""
        known = await self.database.read(workers.list_workers, None)
        return [worker for worker in known if self.scope.sees(split(worker.id)[0])]

    async def lost(self) -> list[LostWorker]:
        """Return the workers that were lost in the last day, those lost last first, with the jobs that they held."""
        known = await self.scope.survey(lost_workers.list_lost, None)
        return [
            msgspec.structs.replace(worker, jobs=[job for job in worker.jobs if self.scope.covers(job.queue)])
            for worker in known
            if self.scope.sees(split(worker.id)[0])
        ]

    async def change_rule(self, worker_id: str, members: Mapping[str, Any]) -> WorkerRule:
        """Change the operator's rule for a worker, which overrides what the worker declares; return the whole rule.

        Parameters
        ----------
        members:
            Members of ``WorkerRule`` to change; omitted members stay. Disabling a worker releases its jobs.

        Raises
        ------
        InvalidRequest
            A member is unknown or malformed, or types are denied that an allow list leaves out or takes anyway.
        """
        self.scope.need_all_queues("A rule for a worker")
        body = WorkerRuleBody.of(members)
        check_bounds("members", body, WorkerRuleBody)
        change = worker_rules.RuleChange(self.scope.named(worker_id), dict(body.arguments(0)["members"]))
        rule = await self.scope.do(worker_rules.change_rules, change)
        return msgspec.structs.replace(rule, id=called(rule.id))

    async def forget_rule(self, worker_id: str) -> None:
        """Delete the rule for a worker.

        Raises
        ------
        NotFound
            The worker has no rule.
        """
        self.scope.need_all_queues("A rule for a worker")
        await self.scope.do(worker_rules.delete_rules, self.scope.named(worker_id))

    async def rules(self) -> list[WorkerRule]:
        """Return the rules for workers, connected or not."""
        rules = await self.database.read(worker_rules.list_rules, None)
        mine = [rule for rule in rules if self.scope.sees(split(rule.id)[0])]
        return [msgspec.structs.replace(rule, id=called(rule.id)) for rule in mine]

    async def unrunnable(self) -> list[Unrunnable]:
        """Return the waiting jobs that no present worker can run, and the reasons."""
        self.scope.require_all_queues("Listing unrunnable jobs")
        return await self.database.survey(unrunnable.list_unrunnable, None)
