"""What have operators set, as this process knows it? Bounds of queues, pools, tenants, who wants to hear of events.

It is looked at in every transaction that pushes jobs or makes something happen, and hardly ever changes: so it is read
once, and again when the process hears that it has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ojster.fleet.job_types import ALL, Types
from ojster.fleet.ml_resources import ResourceLimits
from ojster.fleet.requirements import NOTHING, Needs, Provided
from ojster.fleet.worker_rule import WorkerRule
from ojster.jobs.request import Members
from ojster.jobs.versions import Handled
from ojster.queues.fairness import STRICT, Sharing, Turns
from ojster.queues.rate_limit import Rate
from ojster.tenancy.access import Token

if TYPE_CHECKING:
    from ojster.storage.transaction import Transaction


class Bound(msgspec.Struct, frozen=True):
    """How many jobs may wait in a queue, and what becomes of one too many (ojs-backpressure.md).

    Parameters
    ----------
    max_depth:
        How many.
    strategy:
        ``reject`` it; ``block``: the same, but a caller may ask to wait for a place; ``drop_oldest``: discard the
        oldest that is available.
    warning_threshold:
        From which share of ``max_depth`` on those who push are warned.
    """

    max_depth: int
    strategy: Literal["reject", "block", "drop_oldest"] = "reject"
    warning_threshold: float = 0.8


class Rules(msgspec.Struct, frozen=True):
    """What is set for a queue that matters to who pushes jobs into it or gets some from it.

    Parameters
    ----------
    ml_defaults:
        Attributes ``ext_ml_*`` of jobs that do not have them (ojs-ml-resources.md section 10.1).
    ml_limits:
        What jobs may need at most.
    """

    backpressure: Bound | None = None
    ml_defaults: dict[str, Any] = {}
    ml_limits: ResourceLimits = ResourceLimits()

    def apply(self, members: Members, queue: str) -> Members:
        """Return the attributes of a job of the queue, with the defaults for those that it does not have.

        Raises
        ------
        ResourcesRefused
            It needs more than is allowed.
        """
        defaults = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in self.ml_defaults.items()}
        completed = defaults | members
        self.ml_limits.check(completed, queue)
        return completed

    @property
    def are_about_resources(self) -> bool:
        """Whether they say something of what jobs need."""
        return bool(self.ml_defaults) or self.ml_limits != ResourceLimits()


class Subscription(msgspec.Struct, frozen=True):
    """Who wants to be told of which events (ojs-webhooks.md section 5.1). Times are microseconds since the epoch.

    Parameters
    ----------
    events:
        Types of events; ``job.*`` stands for all that begin so, ``*`` for all.
    queues, job_types:
        Only events of these, if there are any.
    former_secret, former_until:
        The secret before the present one, and until when deliveries are signed with it too.
    """

    id: str
    url: str
    events: tuple[str, ...]
    secret: str
    created_at: int
    active: bool = True
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    former_secret: str | None = None
    former_until: int = 0
    tenant: str | None = None
    """Whose events it hears of; ``None``: of all."""

    def wants(self, type: str, queue: str | None, job_type: str | None, tenant: str = "") -> bool:
        """Whether it wants to hear of an event."""
        if self.tenant not in (None, tenant):
            return False
        if self.queues and queue not in self.queues:
            return False
        if self.job_types and job_type not in self.job_types:
            return False
        return any(type == wanted or (wanted.endswith("*") and type.startswith(wanted[:-1])) for wanted in self.events)


class Pool(msgspec.Struct, frozen=True):
    """Workers that share queues (ojs-fair-scheduling.md section 6). Times are microseconds since the epoch.

    Parameters
    ----------
    queues:
        From which queues the workers get jobs, the first first.
    concurrency:
        How many jobs run at once at most, in all workers of the pool together.
    sharing:
        How the queues share the workers.
    isolated:
        Whether workers outside the pool get no jobs from its queues.
    """

    name: str
    queues: tuple[str, ...]
    concurrency: int | None = None
    sharing: Sharing = STRICT
    isolated: bool = False
    created_at: int = 0
    updated_at: int = 0


class Abilities(msgspec.Struct, frozen=True):
    """What a worker has said of what it can do.

    Parameters
    ----------
    handled:
        Of which types it handles only some versions.
    provided:
        What it provides for jobs that need something.
    types:
        Jobs of which types it is given: that its operator says.
    """

    handled: tuple[Handled, ...] = ()
    provided: Provided = NOTHING
    types: Types = ALL

    def under(self, rule: WorkerRule | None) -> Abilities:
        """Return them as operators correct them."""
        if rule is None:
            return self
        return msgspec.structs.replace(self, provided=rule.correct(self.provided), types=rule.types)


PLAIN: Final = Abilities()
"""Those of a worker that has said nothing."""


class Tenant(msgspec.Struct, frozen=True):
    """What a tenant may do (ojs-multi-tenancy.md section 8.1). Times are microseconds since the epoch.

    Parameters
    ----------
    max_concurrency:
        How many of its jobs may be active at a time, in all queues together.
    max_enqueue_rate:
        How many it may push in a window, which begins with the first of them.
    max_queue_depth:
        How many of its jobs may be available or scheduled, in all queues together.
    max_scheduled:
        How many may be scheduled.
    weight:
        Its share of those who work, beside the weights of others.
    boost:
        Tenants with a greater one go before those with a smaller one.
    quota:
        What becomes of a push that is too much: ``hard`` refuses it, ``soft`` only tells of it.
    public:
        Whether everybody who has a token may look at what is its.
    retention:
        How long finished jobs and workflows are kept, in microseconds; 0: for ever; ``None``: as the server has it.
    """

    id: str
    max_concurrency: int | None = None
    max_enqueue_rate: Rate | None = None
    max_queue_depth: int | None = None
    max_scheduled: int | None = None
    weight: float = 1
    boost: int = 0
    quota: Literal["hard", "soft"] = "hard"
    public: bool = False
    retention: int | None = None
    created_at: int = 0
    updated_at: int = 0

    @property
    def limits_pushes(self) -> bool:
        """Whether it must be counted what it pushes."""
        return (self.max_enqueue_rate, self.max_queue_depth, self.max_scheduled) != (None, None, None)


class Configuration:
    """What operators have set, remembered.

    Attributes
    ----------
    version:
        A number that grows whenever the process hears that something has changed.
    """

    def __init__(self) -> None:
        self.version = 0
        self.places: dict[object, str] = {}
        """At which key of a limit, or at which tenant, the last claim has ended: see ``ojster.jobs.claim``."""
        self.turns: dict[object, Turns] = {}
        """What queues that share workers have got so far, by the pool, or by how a worker wants them to share."""
        self.needs: dict[str, Needs] = {}
        """What jobs need, by key, as far as this process has seen some."""
        self.known_rules: Mapping[str, Rules] | None = None
        """The rules of queues, as far as this process knows: see ``rules``."""
        self._pools: Mapping[str, Pool] | None = None
        self._subscriptions: Sequence[Subscription] | None = None
        self._tenants: Mapping[str, Tenant] | None = None
        self._followed_until: int | None = None
        self._abilities: Mapping[str, Abilities] | None = None
        self._tokens: Mapping[str, Token] | None = None
        self._worker_rules: Mapping[str, WorkerRule] | None = None

    def forget(self) -> None:
        """Something may have changed."""
        self.version += 1
        self.known_rules = self._subscriptions = self._pools = self._tenants = self._followed_until = None
        self._abilities = self._tokens = self._worker_rules = None

    def may_bound(self, queue: str) -> bool:
        """Whether a queue has a bound, as far as this process knows."""
        known = self.known_rules
        return known is None or (queue in known and known[queue].backpressure is not None)

    def rules(self, tx: Transaction) -> Mapping[str, Rules]:
        """Return the rules of the queues that have some."""
        known = self.known_rules
        if known is None:
            rows = tx.execute("SELECT name, config FROM queues WHERE config IS NOT NULL")
            known = {name: rules for name, config in rows if (rules := _decode_rules(config)) != Rules()}
            if tx.configuration_version == self.version:  # else it may have been read before it changed
                self.known_rules = known
        return known

    def bounds(self, tx: Transaction) -> Mapping[str, Bound]:
        """Return the bounds of the queues that have some."""
        rules = self.rules(tx).items()
        return {queue: one.backpressure for queue, one in rules if one.backpressure is not None}

    def pools(self, tx: Transaction) -> Mapping[str, Pool]:
        """Return the pools of workers by their names."""
        known = self._pools
        if known is None:
            known = {pool.name: pool for (body,) in tx.execute("SELECT body FROM pools") if (pool := decode_pool(body))}
            if tx.configuration_version == self.version:
                self._pools = known
        return known

    def tenants(self, tx: Transaction) -> Mapping[str, Tenant]:
        """Return what tenants may do of whom something is said."""
        known = self._tenants
        if known is None:
            rows = tx.execute("SELECT body FROM tenants")
            known = {tenant.id: tenant for (body,) in rows if (tenant := decode_tenant(body))}
            if tx.configuration_version == self.version:
                self._tenants = known
        return known

    def tenants_retention(self, tx: Transaction) -> dict[str, int]:
        """Return how long what has finished is kept for the tenants of whom that is said; 0: for ever."""
        return {one.id: one.retention for one in self.tenants(tx).values() if one.retention is not None}

    def may_be_special(self, worker_id: str | None) -> bool:
        """Whether a worker cannot take every job, or can take special ones, as far as this process knows."""
        return worker_id is not None and (self._abilities is None or worker_id in self._abilities)

    def abilities(self, tx: Transaction) -> Mapping[str, Abilities]:
        """Return what workers can and cannot do, by worker, for those who have said something of it."""
        known = self._abilities
        if known is None:
            rows = tx.execute("SELECT id, abilities FROM workers WHERE abilities IS NOT NULL")
            said = {id: decode_abilities(abilities) for id, abilities in rows}
            known = said | {id: said.get(id, PLAIN).under(rule) for id, rule in self.worker_rules(tx).items()}
            if tx.configuration_version == self.version:
                self._abilities = known
        return known

    def worker_rules(self, tx: Transaction) -> Mapping[str, WorkerRule]:
        """Return what operators say of workers, by worker."""
        known = self._worker_rules
        if known is None:
            rules = [decode_worker_rule(body) for (body,) in tx.execute("SELECT body FROM worker_rules")]
            known = {rule.id: rule for rule in rules}
            if tx.configuration_version == self.version:
                self._worker_rules = known
        return known

    def tokens(self, tx: Transaction) -> Mapping[str, Token]:
        """Return the tokens that let callers in, by their ids."""
        known = self._tokens
        if known is None:
            known = {
                token.id: token for (body,) in tx.execute("SELECT body FROM tokens") if (token := decode_token(body))
            }
            if tx.configuration_version == self.version:
                self._tokens = known
        return known

    def is_followed(self, tx: Transaction) -> bool:
        """Whether somebody wants to know what happens (``ojster.events.log``)."""
        until = self._followed_until
        if until is None:
            rows = tx.execute("SELECT value FROM system WHERE name = 'followed'")
            until = int(msgspec.json.decode(rows[0][0])) if rows else 0
            if tx.configuration_version == self.version:
                self._followed_until = until
        return tx.now < until

    def subscriptions(self, tx: Transaction) -> Sequence[Subscription]:
        """Return the subscriptions to events that are active."""
        known = self._subscriptions
        if known is None:
            rows = tx.execute("SELECT body FROM webhooks ORDER BY id")
            known = [one for (body,) in rows if (one := decode_subscription(body)).active]
            if tx.configuration_version == self.version:
                self._subscriptions = known
        return known


class FreeRein(Configuration):
    """The configuration of transactions that are not ours: nothing is bounded in them, and nobody told of them."""

    def rules(self, tx: Transaction) -> Mapping[str, Rules]:
        """There are none."""
        return {}

    def pools(self, tx: Transaction) -> Mapping[str, Pool]:
        """There are none."""
        return {}

    def tenants(self, tx: Transaction) -> Mapping[str, Tenant]:
        """There are none."""
        return {}

    def subscriptions(self, tx: Transaction) -> Sequence[Subscription]:
        """There are none."""
        return ()


_decode_rules: Final = msgspec.json.Decoder(Rules).decode
decode_pool: Final = msgspec.json.Decoder(Pool).decode
decode_abilities: Final = msgspec.json.Decoder(Abilities).decode
decode_tenant: Final = msgspec.json.Decoder(Tenant).decode
decode_worker_rule: Final = msgspec.json.Decoder(WorkerRule).decode
decode_token: Final = msgspec.json.Decoder(Token).decode
decode_subscription: Final = msgspec.json.Decoder(Subscription).decode
