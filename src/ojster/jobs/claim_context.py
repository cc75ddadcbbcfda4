"""What stands between jobs and those who claim them? Pauses, limits, pools, tenants, and whose turn it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from typing import Final

import msgspec

from ojster.core.tenant import NOBODY
from ojster.fleet.matching import Budget, Match
from ojster.fleet.requirements import Provided
from ojster.queues.fairness import STRICT, Sharing, Turns
from ojster.queues.limits import UNLIMITED, Gate, Head, Limit, count_active, find_limit, key_of_queue
from ojster.queues.pools import count_active_jobs, room_in
from ojster.storage.configuration import PLAIN, Abilities, Pool
from ojster.storage.transaction import Transaction
from ojster.tenancy.quotas import MOST_TENANTS, rooms_of, waiting_tenants

MOST_SHARES: Final = 1_000
"""Of how many sets of queues that share it is remembered whose turn it is."""

MOST_TURNS: Final = 10_000
"""Of how many tenants it is remembered what they have got."""

_TENANTS: Final = ("tenants",)


class Claim(msgspec.Struct, frozen=True):
    """A worker's request for jobs.

    Parameters
    ----------
    queues:
        Where to look, the first first.
    count:
        The most jobs to hand out.
    worker_id:
        Who will hold the lease.
    lease:
        How long, in microseconds, where the job does not say; ``None``: the server's default.
    sharing:
        How the queues share what the worker has room for, unless its pool says otherwise.
    tenant:
        Whose jobs; the empty string: nobody's; ``None``: those of all, in turn.
    """

    queues: tuple[str, ...]
    count: int = 1
    worker_id: str | None = None
    lease: int | None = None
    sharing: Sharing = STRICT
    tenant: str | None = None
    provided: Provided | None = None
    """What it provides for jobs that need something; ``None``: what its last heartbeat has said."""


class Share(msgspec.Struct, frozen=True):
    """Which queues a worker gets jobs from, and how these share: the same for claims that are served together.

    ``worker`` is who gets them, if that is not the same to jobs: if it provides something.
    """

    queues: tuple[str, ...]
    sharing: Sharing
    pool: str | None
    tenant: str | None
    abilities: Abilities = PLAIN
    worker: str | None = None


class Way:
    """What stands between jobs and those who claim them.

    Attributes
    ----------
    paused, limited:
        Queues that hand out nothing, and those that have limits.
    gates:
        The limits of the queues that are looked into.
    idle:
        Workers that are to be given nothing.
    is_closed:
        Whether nothing at all is handed out.
    has_needs:
        Whether jobs wait in some queue that need something of their worker.
    has_keys:
        Whether jobs with limits of their own wait in some queue.
    keys:
        The limits of jobs that were looked at.
    room:
        How many more jobs may run in each pool that is looked into.
    has_tenants:
        Whether jobs wait that are somebody's.
    tenants_room:
        How many more jobs may run of each tenant of which that is limited.
    exhausted:
        Tenants whose jobs in a queue were all looked at.
    skipped:
        How many jobs need not run that were about to be handed out.
    """

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.paused: set[str] = set()
        self.limited: set[str] = set()
        self.idle: set[str | None] = set()
        self.is_closed = False
        self.skipped = 0
        self.has_needs = False
        self.has_keys = False
        self.gates: dict[str, Gate] = {}
        self.keys: dict[str, Gate] = {}
        self.room: dict[str, int] = {}
        self.has_tenants = False
        self.tenants_room: dict[str, int] = {}
        self.exhausted: set[tuple[str, str]] = set()
        self._waiting: dict[str, list[str]] = {}
        self._abilities = tx.configuration.abilities(tx)
        self._budgets: dict[str, Budget] = {}
        self._matches: dict[Share, Match] = {}
        self._pools = tx.configuration.pools(tx)
        self._members: dict[str, str] = {}
        if self._pools:
            self._members = dict(tx.execute("SELECT id, pool FROM workers WHERE pool IS NOT NULL"))
        for kind, name in tx.execute(_OBSTACLES):
            if kind == "worker":
                self.idle.add(name)
            elif kind == "maintenance":
                self.is_closed = True
            elif kind == "limits":
                self.has_keys = True
            elif kind == "needs":
                self.has_needs = True
            elif kind == "tenants":
                self.has_tenants = True
            elif kind == "paused":
                self.paused.add(name)
            else:
                self.limited.add(name)

    def share(self, request: Claim) -> Share:
        """Return from which queues a worker gets jobs, and how they share: as its pool has it, if it is of one."""
        abilities = self._abilities.get(request.worker_id or "", PLAIN)
        if request.provided is not None:
            abilities = msgspec.structs.replace(abilities, provided=request.provided)
            abilities = abilities.under(self._tx.configuration.worker_rules(self._tx).get(request.worker_id or ""))
        worker = request.worker_id if abilities.provided.facts else None
        pool = self._pool_of(request)
        if pool is not None:
            queues = tuple(queue for queue in pool.queues if queue in request.queues)
            return Share(queues, pool.sharing, pool.name, request.tenant, abilities, worker)
        queues = request.queues
        if self._pools:
            shut = {queue for pool in self._pools.values() if pool.isolated for queue in pool.queues}
            queues = tuple(queue for queue in queues if queue not in shut)
        return Share(queues, request.sharing, None, request.tenant, abilities, worker)

    def _pool_of(self, request: Claim) -> Pool | None:
        name = self._members.get(request.worker_id or "")
        return None if name is None else self._pools.get(name)

    def match(self, share: Share) -> Match:
        """Return which jobs fit those who share, where jobs wait that need something."""
        if share not in self._matches:
            self._matches[share] = Match(self._tx, share.worker, share.abilities.provided, self._budgets)
        return self._matches[share]

    def _look_at_budgets(self, queues: Iterable[str]) -> None:
        rules = self._tx.configuration.rules(self._tx)
        for queue in queues:
            limits = rules[queue].ml_limits if queue in rules else None
            if limits is not None and (limits.max_concurrent_gpu_jobs, limits.max_total_gpus) != (None, None):
                self._budgets[queue] = Budget(self._tx, queue, limits)

    def enter_pools(self, shares: Iterable[Share]) -> None:
        """Find out how much room there is in pools; where that is limited, one claim at a time."""
        for name in sorted({share.pool for share in shares if share.pool is not None}):
            self.room[name] = room_in(self._tx, self._pools[name], self._turns_of(name))

    def turns(self, share: Share) -> Turns:
        """Return what the queues that share have got so far."""
        return self._turns_of(share.pool or share)

    def _turns_of(self, key: object) -> Turns:
        known = self._tx.configuration.turns
        if key not in known:
            while len(known) >= MOST_SHARES:
                del known[next(iter(known))]
            known[key] = Turns()
        return known[key]

    def spare(self, claims: Sequence[Claim], room: dict[int, int]) -> dict[int, int]:
        """Return how many jobs each of some claims may get where the load is balanced, the least loaded first."""
        active = count_active_jobs(self._tx, [worker for index in room if (worker := claims[index].worker_id)])
        places: dict[str, int] = dict(
            self._tx.execute("SELECT id, concurrency FROM workers WHERE concurrency IS NOT NULL")
        )
        left = {}
        for index in sorted(room, key=lambda index: active.get(claims[index].worker_id or "", 0)):
            worker = claims[index].worker_id or ""
            left[index] = min(room[index], max(0, places.get(worker, UNLIMITED) - active.get(worker, 0)))
        return left

    def approach(self, shares: Collection[Share]) -> None:
        """Look at the limits of the queues that are looked into, and at those of the tenants who have jobs there."""
        queues = sorted({queue for share in shares for queue in share.queues})
        if self.has_needs:
            self._look_at_budgets(queues)
        for queue in queues:
            if queue in self.limited:
                key = key_of_queue(queue)
                self.gates[queue] = Gate(self._tx, find_limit(self._tx, key) or Limit(key), count_active(self._tx, key))
        if self.has_tenants and self._tx.configuration.tenants(self._tx):
            tenants = {share.tenant for share in shares if share.tenant}
            for share in shares:
                if share.tenant is None:
                    tenants |= {tenant for queue in share.queues for tenant in self._tenants_in(queue)}
            self.tenants_room = rooms_of(self._tx, tenants)

    @property
    def tenants_turns(self) -> Turns:
        """What tenants have got so far."""
        turns = self._turns_of(_TENANTS)
        turns.forget_old(MOST_TURNS)
        return turns

    def next_tenants(self, queue: str, asked: Set[str]) -> list[str]:
        """Return who may have jobs in a queue that were not looked at, of those who go before all others."""
        tenants = [
            tenant
            for tenant in self._tenants_in(queue)
            if tenant not in asked and (queue, tenant) not in self.exhausted
        ]
        known = self._tx.configuration.tenants(self._tx)
        boosts = {tenant: known[tenant].boost if tenant in known else 0 for tenant in tenants}
        return [tenant for tenant in tenants if boosts[tenant] == max(boosts.values())]

    def _tenants_in(self, queue: str) -> list[str]:
        """Return whose jobs may wait in a queue."""
        if queue not in self._waiting:
            self._waiting[queue] = [NOBODY, *self._find_tenants(queue)]
        return self._waiting[queue]

    def _find_tenants(self, queue: str) -> list[str]:
        """Some of those who have jobs in a queue; where there are many, from where the last claim ended."""
        places, here = self._tx.configuration.places, (_TENANTS, queue)
        start = places.pop(here, "")
        found = waiting_tenants(self._tx, queue, start)
        if len(found) == MOST_TENANTS:
            places[here] = found[-1]
        elif start:
            known = set(found)
            found += [
                tenant
                for tenant in waiting_tenants(self._tx, queue, "", MOST_TENANTS - len(found))
                if tenant not in known
            ]
        return found

    def weights_of(self, tenants: Sequence[str]) -> Sharing:
        """Return how these tenants share."""
        known = self._tx.configuration.tenants(self._tx)
        return Sharing("weighted", tuple((tenant, known[tenant].weight) for tenant in tenants if tenant in known))

    def gate(self, head: Head) -> Gate:
        """Return the limit of a job with a key: the same for all queues, so that all is counted."""
        key = head.limit.key
        if key not in self.keys:
            self.keys[key] = Gate(self._tx, head.limit, head.active)
        return self.keys[key]


_OBSTACLES: Final = (
    "SELECT 'paused' AS kind, name FROM queues WHERE paused_at IS NOT NULL "
    "UNION ALL SELECT 'worker', id FROM workers WHERE state <> 'running' OR directive <> 'running' "
    "UNION ALL SELECT 'worker', id FROM worker_rules WHERE enabled = 0 "
    "UNION ALL SELECT 'limited', substr(key, 8) FROM rate_limits WHERE key >= '/queue/' AND key < '/queue0' "
    "UNION ALL SELECT 'maintenance', name FROM system WHERE name = 'maintenance' "
    "UNION ALL SELECT 'limits', '' WHERE EXISTS "
    "(SELECT 1 FROM jobs WHERE state = 'available' AND limit_key IS NOT NULL) "
    "UNION ALL SELECT 'needs', '' WHERE EXISTS "
    "(SELECT 1 FROM jobs WHERE state = 'available' AND needs IS NOT NULL) "
    "UNION ALL SELECT 'tenants', '' WHERE EXISTS "
    "(SELECT 1 FROM jobs WHERE state = 'available' AND tenant <> '')"
)
"""All that keeps jobs from being handed out, in one statement: every claim asks it."""
