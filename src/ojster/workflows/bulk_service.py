"""Calls about all workflows that match a filter."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import Forbidden, InvalidRequest
from ojster.files.service import FileService
from ojster.jobs.extension import Erasure
from ojster.jobs.scope import CapabilityService, Scope
from ojster.jobs.sweeps import Sweep, sweep_all
from ojster.jobs.versions import version_number
from ojster.workflows.bulk import ALLOWED_STATES, COURSE, DEFAULT_STATES, WorkflowAction, WorkflowBatch
from ojster.workflows.calls import WorkflowBulkCalls
from ojster.workflows.filters import narrowing
from ojster.workflows.read.selection import WorkflowConditions
from ojster.workflows.run.deletion import delete_hidden, erase, find_hidden
from ojster.workflows.run.pins import Pin

ROWS_AT_ONCE: Final = 500
"""About how many rows of deleted workflows one transaction deletes."""


class WorkflowBulkService(CapabilityService, WorkflowBulkCalls):
    """Calls about all workflows that match a filter.

    Each works in small transactions, so that other callers do not wait. A workflow that has left the chosen states by
    its turn is skipped. If the process dies, the remaining ones stay unchanged, and the call can be repeated.

    All raise ``InvalidRequest`` if the filter has no condition, or names a state in which the action is not allowed,
    and ``Forbidden`` if the caller is limited to some queues, or may cancel and hold only its own workflows.
    """

    def __init__(self, scope: Scope, files: FileService) -> None:
        super().__init__(scope)
        self._files = files

    async def cancel(self, chosen: WorkflowConditions, *, stop_active: bool = False, dry_run: bool = False) -> Sweep:
        """Cancel workflows; see ``WorkflowBulkCalls.cancel``."""
        self._check_not_only_own("cancel")
        return await self._sweep(WorkflowAction.CANCEL, chosen, stop_active=stop_active, dry_run=dry_run)

    async def retry(self, chosen: WorkflowConditions, *, dry_run: bool = False) -> Sweep:
        """Retry workflows; see ``WorkflowBulkCalls.retry``."""
        return await self._sweep(WorkflowAction.RETRY, chosen, dry_run=dry_run)

    async def fork(self, chosen: WorkflowConditions, *, from_step: str | None = None, dry_run: bool = False) -> Sweep:
        """Fork workflows; see ``WorkflowBulkCalls.fork``."""
        return await self._sweep(WorkflowAction.FORK, chosen, from_step=from_step, dry_run=dry_run)

    async def hold(self, chosen: WorkflowConditions, *, dry_run: bool = False) -> Sweep:
        """Hold workflows; see ``WorkflowBulkCalls.hold``."""
        self._check_not_only_own("hold")
        return await self._sweep(WorkflowAction.HOLD, chosen, dry_run=dry_run)

    async def release(self, chosen: WorkflowConditions, *, dry_run: bool = False) -> Sweep:
        """Release workflows; see ``WorkflowBulkCalls.release``."""
        return await self._sweep(WorkflowAction.RELEASE, chosen, dry_run=dry_run)

    async def pin(
        self,
        chosen: WorkflowConditions,
        *,
        flow: str,
        version: str,
        from_version: str | None = None,
        dry_run: bool = False,
    ) -> Sweep:
        """Pin flows to a version; see ``WorkflowBulkCalls.pin``."""
        self._check_not_only_own("pin")
        for name, value in (("version", version), ("from_version", from_version)):
            if value is not None and version_number(value) is None:
                raise InvalidRequest(f"{value!r:.40} is not a version such as '2.0'.", field=name)
        pin = Pin(flow, version, from_version)
        return await self._sweep(WorkflowAction.PIN, chosen, pin=pin, dry_run=dry_run)

    async def delete(self, chosen: WorkflowConditions, *, dry_run: bool = False) -> Sweep:
        """Delete finished workflows; see ``WorkflowBulkCalls.delete``. When it returns, nothing of them is left.

        If the process dies meanwhile, they are hidden, and retention deletes them; the log of events may keep what it
        says of them, and other places, too.

        Raises
        ------
        BackendUnavailable
            The file store refuses to delete files; retention deletes them later.
        """
        swept = await self._sweep(WorkflowAction.DELETE, chosen, dry_run=dry_run)
        if dry_run:
            return swept
        subjects = swept.deleted | await self.database.run(find_hidden, None)  # those whose deletion was interrupted
        while await self.database.run(delete_hidden, ROWS_AT_ONCE):  # many small ones are fewer rows
            pass
        await self.database.order_events()  # those without a position could not be read
        erasure: Erasure | None = Erasure(frozenset(subjects), self.database.clock())
        while erasure is not None:
            erasure = await self.database.run(erase, erasure)
        if self._files.has_store:
            await self._files.prune()
        return swept

    def _check_not_only_own(self, verb: str) -> None:
        if self.scope.cancels_only_own:
            raise Forbidden(
                f"The token {self.scope.who!r} may {verb} only what it created; only an owner may {verb} by a filter. "
                "Name the workflows."
            )

    async def _sweep(
        self,
        action: WorkflowAction,
        chosen: WorkflowConditions,
        *,
        stop_active: bool = False,
        from_step: str | None = None,
        pin: Pin = Pin(),  # noqa: B008  (frozen)
        dry_run: bool,
    ) -> Sweep:
        self.scope.need_all_queues("A workflow")
        narrowing(chosen)
        # Workflows that are named are refused with a reason, and not left out.
        states = chosen.states or (() if chosen.ids else DEFAULT_STATES[action])
        if wrong := [state for state in states if state not in ALLOWED_STATES[action]]:
            raise InvalidRequest(
                f"Workflows in the state {' or '.join(wrong)} cannot be {action.past}. "
                f"Choose from the states {', '.join(sorted(ALLOWED_STATES[action]))}.",
                field="state",
            )
        held = {WorkflowAction.HOLD: False, WorkflowAction.RELEASE: True}.get(action, chosen.held)
        if chosen.held not in (None, held):
            raise InvalidRequest(
                f"The filter has 'held': {str(chosen.held).lower()}, which leaves nothing to {action}. Remove 'held'.",
                field="held",
            )
        names = {name: getattr(chosen, name) for name in ("definition", "cron_name")}
        named = {name: self.scope.named(value) for name, value in names.items() if value is not None}
        chosen = msgspec.structs.replace(self.scope.of_tenant(chosen), states=states, held=held, **named)
        batch = WorkflowBatch(action, (), states, self.scope.who, stop_active, from_step, pin, chosen)
        return await sweep_all(self.database, COURSE, chosen, batch, dry_run=dry_run)
