"""Calls for operators: queues, workers, cron jobs, channels and tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.tenant import NOBODY, called, split
from ojster.events import notifications
from ojster.events.channel import Channel, check_channel
from ojster.fleet import unrunnable, worker_rules, workers
from ojster.fleet.unrunnable import Unrunnable
from ojster.fleet.worker_rule import WorkerRule
from ojster.fleet.workers import Heartbeat, HeartbeatResponse, Leave, Worker
from ojster.jobs.request import check_queue_name, queue_of, read_job, read_members
from ojster.queues import queues
from ojster.queues.queues import Queue, QueueStatistics
from ojster.schedules import cron
from ojster.scope import accepted
from ojster.tenancy import tokens
from ojster.tenancy.access import Grant, Token, hash_secret, join_token, new_id, new_secret
from ojster.workflows.service import WorkflowCalls


class OperatorCalls(WorkflowCalls):
    """Calls about queues, workers, cron jobs, channels and tokens."""

    # Queues

    async def queues(self) -> list[Queue]:
        """Return all queues by name; for a tenant, only the queues that have had its jobs."""
        found = await self.database.read(queues.list_queues, None)
        if self.tenant is None:
            return found
        if self.tenant == NOBODY:
            known = await self.database.read_many(queues.statistics_without_tenant, [queue.name for queue in found])
            return [one.queue for one in known if one is not None]
        theirs = await self.count_jobs()
        return [queue for queue in found if queue.name in theirs]

    async def queue_statistics(self, name: str) -> QueueStatistics:
        """Return the statistics of a queue.

        Raises
        ------
        NotFound
            The queue does not exist.
        """
        statistics = queues.statistics_without_tenant if self.tenant == NOBODY else queues.statistics
        found = await self.database.read(statistics, self.named(name))
        if found is None:
            raise NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
        return found

    async def pause(self, name: str) -> Queue:
        """Pause a queue, so that none of its jobs is handed out. The queue need not exist.

        Raises
        ------
        InvalidRequest
            The name is invalid.
        """
        self.for_all("Pausing a queue")
        return await self.database.run(queues.pause, check_queue_name(name))

    async def resume(self, name: str) -> Queue:
        """Resume a paused queue."""
        self.for_all("Resuming a queue")
        return await self.database.run(queues.resume, check_queue_name(name))

    # Workers

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatResponse:
        """Record a worker's heartbeat, extend its leases, and return its directive (BEAT)."""
        if self.tenant is not None:
            worker_id = self.named(heartbeat.worker_id)
            heartbeat = msgspec.structs.replace(heartbeat, worker_id=worker_id, tenant=self.tenant)
        pulse = await self.database.run(workers.beat, heartbeat)
        for directive in self.directives:
            if (answer := await directive(heartbeat, pulse)) is not None:
                pulse.directive = answer
                break
        return pulse

    async def leave(self, worker_id: str, *, lost: bool = False) -> None:
        """Remove a stopped worker; jobs that it still holds go back to their queues.

        Parameters
        ----------
        lost:
            Whether the worker died instead of stopping in good order: its attempts count, and workflows may be
            cancelled.
        """
        await self.database.run(workers.leave, Leave(self.named(worker_id), lost))

    async def direct(self, worker_id: str, directive: str) -> Worker:
        """Set the directive for a worker's next heartbeat: ``running``, ``quiet`` or ``terminate``.

        Raises
        ------
        NotFound
            The worker does not exist.
        InvalidRequest
            The directive is unknown.
        """
        if directive not in ("running", "quiet", "terminate"):
            raise InvalidRequest(f"Unknown directive {directive!r}. Use 'running', 'quiet' or 'terminate'.")
        return accepted(await self.database.run(workers.direct, (self.named(worker_id), directive)))

    async def find_worker(self, worker_id: str) -> Worker:
        """Return a worker.

        Raises
        ------
        NotFound
            There is no such worker.
        """
        return accepted(await self.database.read(workers.find_workers, self.named(worker_id)))

    async def workers(self) -> list[Worker]:
        """Return all workers, most recently seen first."""
        found = await self.database.read(workers.list_workers, None)
        return [worker for worker in found if self.sees(split(worker.id)[0])]

    async def change_worker_rule(self, worker_id: str, members: Mapping[str, Any]) -> WorkerRule:
        """Change the operator's rule for a worker, which overrides what the worker declares; return the whole rule.

        Parameters
        ----------
        members:
            Members of ``WorkerRule`` to change; omitted members stay. Disabling a worker releases its jobs.
        """
        change = worker_rules.RuleChange(self.named(worker_id), dict(members))
        rule = await self.database.run(worker_rules.change_rules, change)
        return msgspec.structs.replace(rule, id=called(rule.id))

    async def forget_worker_rule(self, worker_id: str) -> None:
        """Delete the rule for a worker.

        Raises
        ------
        NotFound
            The worker has no rule.
        """
        await self.do(worker_rules.delete_rules, self.named(worker_id))

    async def worker_rules(self) -> list[WorkerRule]:
        """Return the rules for workers, connected or not."""
        found = await self.database.read(worker_rules.list_rules, None)
        mine = [rule for rule in found if self.sees(split(rule.id)[0])]
        return [msgspec.structs.replace(rule, id=called(rule.id)) for rule in mine]

    async def unrunnable(self) -> list[Unrunnable]:
        """Return the waiting jobs that no present worker can run, and the reasons."""
        self.for_all("Listing unrunnable jobs")
        return await self.database.read(unrunnable.list_unrunnable, None)

    # Cron jobs

    async def register_cron(self, item: cron.Cron) -> tuple[cron.Cron, bool]:
        """Register or update a cron job; return it, and whether it is new.

        Raises
        ------
        InvalidRequest
            The template describes no valid job, or its queue refuses the job.
        Forbidden
            The caller is limited to certain queues.
        """
        self._need_all_queues("A cron job")
        members = read_members(item.template, "The cron job's template")
        queue = queue_of(members)
        if (rules := (await self._resource_rules()).get(queue)) is not None:
            rules.apply(members, queue)
        largest = self.database.settings.largest_job
        read_job(members, self.database.clock(), largest=largest, tenant=self.tenant)
        item = msgspec.structs.replace(item, name=self.named(item.name))
        return await self.database.run(cron.register, item)

    async def switch_cron(self, name: str, enabled: bool) -> cron.Cron:
        """Enable or disable a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        """
        return accepted(await self.database.run(cron.switch, (self.named(name), enabled)))

    async def unregister_cron(self, name: str) -> cron.Cron:
        """Remove a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        """
        return accepted(await self.database.run(cron.unregister, self.named(name)))

    async def find_cron(self, name: str) -> cron.Cron:
        """Return a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        """
        return accepted(await self.database.read(cron.find_cron, self.named(name)))

    async def crons(self) -> list[cron.Cron]:
        """Return all cron jobs by name."""
        found = await self.database.read(cron.list_crons, None)
        return [item for item in found if self.sees(split(item.name)[0])]

    # Channels

    async def put_channel(self, channel: Channel) -> bool:
        """Create or change a notification channel; return whether it is new.

        Raises
        ------
        InvalidRequest
            The channel is invalid.
        """
        check_channel(channel)
        kept = msgspec.structs.replace(channel, name=self.named(channel.name))
        return await self.do(notifications.put_channels, kept)

    async def channels(self) -> list[Channel]:
        """Return the channels, by name."""
        found = await self.database.read(notifications.list_channels, None)
        mine = [one for one in found if self.sees(split(one.name)[0])]
        return [msgspec.structs.replace(one, name=called(one.name)) for one in mine]

    async def delete_channel(self, name: str) -> None:
        """Delete a channel.

        Raises
        ------
        NotFound
            The channel does not exist.
        """
        await self.do(notifications.delete_channels, self.named(name))

    # Tokens

    async def create_token(
        self, name: str, grants: Sequence[Grant], queues: Sequence[str] = (), expires_at: int | None = None
    ) -> tuple[Token, str]:
        """Create a token; return it with its text, which is shown only this once.

        Parameters
        ----------
        queues:
            Queues that the token is limited to, which may end in ``*``; empty: all queues.
        expires_at:
            Expiry of the token, in microseconds since the epoch; ``None``: no expiry.

        Raises
        ------
        InvalidRequest
            The token has no role, or its expiry has passed.

        Spec: ojs-security 12.3
        """
        self.for_all("Creating a token")
        if not grants:
            raise InvalidRequest("'grants' is empty. Give the token at least one role.", field="grants")
        if expires_at is not None and expires_at <= self.database.clock():
            raise InvalidRequest("'expires_at' is not in the future. Choose a later time.", field="expires_at")
        id, secret = new_id(), new_secret()
        hashed = await asyncio.to_thread(hash_secret, id, secret)
        new = Token(id, name, hashed, tuple(grants), 0, tuple(queues), expires_at)
        return await self.database.run(tokens.create_tokens, new), join_token(id, secret)

    async def rotate_token(self, token_id: str, grace: int) -> tuple[Token, str]:
        """Give a token a new secret; the present one stays valid for ``grace`` microseconds.

        Raises
        ------
        NotFound
            The token does not exist.

        Spec: ojs-security 6.4
        """
        self.for_all("Rotating a token")
        secret = new_secret()
        hashed = await asyncio.to_thread(hash_secret, token_id, secret)
        token = await self.do(tokens.rotate_tokens, tokens.Rotation(token_id, hashed, grace))
        return token, join_token(token_id, secret)

    async def revoke_token(self, token_id: str) -> Token:
        """Revoke a token from now on.

        Raises
        ------
        NotFound
            The token does not exist.
        """
        self.for_all("Revoking a token")
        return await self.do(tokens.revoke_tokens, token_id)

    async def tokens(self) -> list[Token]:
        """Return all tokens, the oldest first."""
        self.for_all("Listing tokens")
        return await self.database.read(tokens.list_tokens, None)
