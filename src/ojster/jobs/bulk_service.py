"""Calls about many jobs at once: bulk operations, sweeps, and requests with an idempotency key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from ojster.core.errors import Conflict, Forbidden, InvalidRequest, OjsterError
from ojster.core.parsing import refuse_unknown
from ojster.jobs import bulk as bulks
from ojster.jobs import idempotency
from ojster.jobs.bulk import ALLOWED_STATES, DEFAULT_STATES, Action, Bulk, KeyedPush, Summary
from ojster.jobs.filter_walk import JobFilter, walk
from ojster.jobs.filters import narrowing
from ojster.jobs.idempotency import Key, StoredReply
from ojster.jobs.scope import CapabilityService, accepted
from ojster.jobs.service import MAX_WAIT_SECONDS
from ojster.jobs.sweeps import Course, Sweep, SweepBatch, sweep_all, sweep_part

log = logging.getLogger(__name__)

REPLY_CHECK_SECONDS: Final = 0.1
"""Interval, in seconds, of checks whether another process has answered a request with the same idempotency key."""

RENEWAL_SECONDS: Final = 10.0
"""Interval, in seconds, at which a request that is being answered renews its idempotency key."""

_COURSE: Final[Course[JobFilter, SweepBatch]] = Course(walk, bulks.foresee_batch, bulks.perform_batch)


class BulkService(CapabilityService):
    """Calls about many jobs at once."""

    async def perform(self, bulk: Bulk) -> StoredReply:
        """Perform an action on several jobs in one transaction, or return the stored reply of a repeated request.

        Raises
        ------
        Conflict
            The idempotency key belongs to another request.
        """
        if self.scope.tenant is not None or self.scope.access is not None:
            ids = [item for item in bulk.items if isinstance(item, str)]
            refusals = dict(zip(ids, await self.scope.check_jobs(ids), strict=True))
            if bulk.action is Action.CANCEL:
                refusals |= await self.scope.refuse_cancellation([id for id in ids if refusals[id] is None])
            items = [(refusals[item] or item) if isinstance(item, str) else item for item in bulk.items]
            bulk = msgspec.structs.replace(bulk, items=items, key=self.own_key(bulk.key), by=self.scope.who)
        return accepted(await self.database.run(bulks.perform, bulk, len(bulk.items)))

    async def push_once(self, item: KeyedPush) -> StoredReply:
        """Push a job, or return the stored reply of a repeated request.

        Raises
        ------
        Conflict
            The idempotency key belongs to another request.
        """
        keyed = msgspec.structs.replace(item, key=self.own_key(item.key))
        return await self.scope.do(bulks.push_once, keyed)

    def own_key(self, key: Key | None) -> Key | None:
        """Return an idempotency key as it is stored: each tenant has its own."""
        return None if key is None else msgspec.structs.replace(key, operation=self.scope.named(key.operation))

    async def answer_once(self, key: Key | None, answer: Callable[[], Awaitable[StoredReply]]) -> StoredReply:
        """Answer a request, or return the stored reply if its idempotency key was used before.

        If another caller is answering the same request, wait for its reply, at most ``MAX_WAIT_SECONDS`` seconds.

        Raises
        ------
        Conflict
            The key belongs to another request, or the other caller's reply takes too long.
        """
        if (key := self.own_key(key)) is None:
            return await answer()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MAX_WAIT_SECONDS
        while (known := await self.scope.do(idempotency.begin, key)) is not None:
            if known.status != idempotency.IN_PROGRESS:
                return known
            if loop.time() > deadline:
                raise Conflict(f"The request with the idempotency key {key.key!r} is still being answered.")
            await asyncio.sleep(REPLY_CHECK_SECONDS)
        reply = None
        renewing = asyncio.create_task(self._renew(key))
        try:
            reply = await answer()
            return reply
        finally:
            renewing.cancel()
            await self.database.run(idempotency.finish, (key, reply))

    async def _renew(self, key: Key) -> None:
        """Renew a key until its request is answered, by time: where few jobs match, a sweep has no batch for long."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            try:
                await self.database.run(idempotency.renew, key)
            except OjsterError as error:  # the sweep waits for the database as well; the next renewal may succeed
                log.warning("the idempotency key %r is not renewed yet: %s", key.key, error)

    async def sweep(self, action: Action, chosen: JobFilter, *, quietly: bool = False, dry_run: bool = False) -> Sweep:
        """Perform an action on all jobs that match now, in small transactions so that other callers do not wait.

        A job that has left the chosen states by its turn is skipped. If the process dies, the remaining jobs stay
        unchanged, and the sweep can be repeated. It is recorded as an event, unless ``quietly`` is set.

        Parameters
        ----------
        dry_run:
            Change nothing, and return what would be done.

        Raises
        ------
        InvalidRequest
            The filter is empty, or the action is ``enqueue``, or not allowed in one of the chosen states.
        """
        chosen, batch = self._checked(action, chosen)
        sweep = await sweep_all(self.database, _COURSE, chosen, batch, dry_run=dry_run)
        if not (quietly or dry_run):
            await self.database.run(bulks.conclude, Summary(action, sweep.matched, sweep.succeeded))
        return sweep

    async def sweep_part(self, action: Action, chosen: JobFilter, position: tuple[int, int] | None) -> Sweep:
        """Perform a part of a sweep, so that its caller can show progress, or stop; the result has the next position.

        Parameters
        ----------
        position:
            ``next`` of the part before; ``None``: this is the first one.

        Raises
        ------
        InvalidRequest
            The filter is empty, or the action is ``enqueue``, or not allowed in one of the chosen states.
        """
        chosen, batch = self._checked(action, chosen)
        sweep = await sweep_part(self.database, _COURSE, chosen, batch, position)
        if sweep.matched:
            await self.database.run(bulks.conclude, Summary(action, sweep.matched, sweep.succeeded))
        return sweep

    def _checked(self, action: Action, chosen: JobFilter) -> tuple[JobFilter, SweepBatch]:
        """Return the filter of a sweep, within the caller's scope, and its batches without ids."""
        refuse_unknown("action", action, ALLOWED_STATES)
        narrowing(chosen)
        states = chosen.states or DEFAULT_STATES[action]
        if wrong := [state for state in states if state not in ALLOWED_STATES[action]]:
            raise InvalidRequest(
                f"Jobs in the state {' or '.join(wrong)} cannot be {action.past}. "
                f"Choose from the states {', '.join(sorted(ALLOWED_STATES[action]))}.",
                field="state",
            )
        if action is Action.CANCEL and self.scope.cancels_only_own:
            raise Forbidden(
                f"The token {self.scope.who!r} may cancel only what it created; only an owner may cancel by a filter. "
                "Name the jobs."
            )
        self.scope.check_queue(chosen.queue)
        chosen = msgspec.structs.replace(self.scope.of_tenant(chosen), states=states)
        return chosen, SweepBatch(action, (), states, self.scope.who)
