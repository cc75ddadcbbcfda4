"""Calls about workers, as a service, a server and its client have them.

Spec: ojs-worker-protocol, ojs-admin-api 8
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ojster.core.access import INSPECT, Operation
from ojster.core.calls import Call, Calls, Deletion, Listing
from ojster.fleet.answer_wire import (
    DeletedRuleAnswer,
    DeregisteredWorkerAnswer,
    LostWorkersAnswer,
    RemovedWorkerAnswer,
    UnrunnableAnswer,
    WorkerAnswer,
    WorkerRuleAnswer,
    WorkerRulesAnswer,
    WorkersAnswer,
)
from ojster.fleet.lost_workers import LostWorker
from ojster.fleet.unrunnable import Unrunnable
from ojster.fleet.wire import DirectiveBody, WorkerRuleBody
from ojster.fleet.worker_rule import WorkerRule
from ojster.fleet.workers import Heartbeat, HeartbeatResponse, KnownWorker

_TAG: Final = "Workers"
_OPERATORS: Final = "Operators"
_ONE: Final = "/workers/{id}"
_RULES: Final = "/admin/worker-rules"


class FleetCalls(Calls):
    """Calls about workers."""

    async def beat(self, heartbeat: Heartbeat, wait: float = 0.0) -> HeartbeatResponse:
        """Report that a worker is alive; if there is nothing to tell it, wait up to ``wait`` seconds until there is.

        Its endpoint is written by hand.
        """
        raise NotImplementedError

    @Listing("GET", "/workers", "list_workers", _TAG, WorkersAnswer, page_size=200, recent=True)
    async def all(self) -> list[KnownWorker]:
        """List the workers that send heartbeats."""

    @Call("GET", "/lost-workers", "list_lost_workers", _TAG, LostWorkersAnswer)
    async def lost(self) -> list[LostWorker]:
        """List the workers whose heartbeats stopped in the last day, with the jobs that they held, the last one first.

        One that has come back is left out.
        """

    @Call("POST", f"{_ONE}/directive", "direct_worker", _TAG, WorkerAnswer, body=DirectiveBody)
    async def direct(self, worker_id: str, directive: str) -> KnownWorker:
        """Set the directive that a worker gets with its next heartbeat: ``running``, ``quiet`` or ``terminate``."""

    @Deletion("DELETE", _ONE, "remove_worker", _TAG, RemovedWorkerAnswer, needs=(Operation.DEQUEUE, Operation.ADMIN))
    async def leave(self, worker_id: str, *, lost: bool = False) -> None:
        """Remove a worker that has stopped, and make its jobs available again.

        ``lost=true`` means that it did not stop cleanly; the attempts of its jobs then count.
        """

    @Deletion("DELETE", "/admin/workers/{id}", "deregister_worker", _OPERATORS, DeregisteredWorkerAnswer)
    async def deregister(self, worker_id: str) -> None:
        """Remove a worker that has missed its heartbeats, and make its jobs available again."""

    @Call("GET", "/admin/unrunnable", "list_unrunnable", _OPERATORS, UnrunnableAnswer, needs=INSPECT)
    async def unrunnable(self) -> list[Unrunnable]:
        """List the kinds of waiting jobs that no registered worker can run, with the reasons."""

    @Call("GET", _RULES, "list_worker_rules", _OPERATORS, WorkerRulesAnswer)
    async def rules(self) -> list[WorkerRule]:
        """List the worker rules, including those of absent workers."""

    @Call("PATCH", f"{_RULES}/{{id}}", "change_worker_rule", _OPERATORS, WorkerRuleAnswer, body=WorkerRuleBody)
    async def change_rule(self, worker_id: str, members: Mapping[str, Any]) -> WorkerRule:
        """Set whether a worker gets jobs, of which types, and what it provides. Omitted members keep their values.

        The rule overrides what the worker reports, and also applies to later workers with this id. A disabled worker
        gives its jobs back.
        """

    @Deletion("DELETE", f"{_RULES}/{{id}}", "forget_worker_rule", _OPERATORS, DeletedRuleAnswer)
    async def forget_rule(self, worker_id: str) -> None:
        """Delete the rule of a worker."""
