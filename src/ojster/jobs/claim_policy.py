"""The interface of claim policies: what decides which available jobs a worker gets.

A claim is a pipeline (``ojster.jobs.claim``); each policy takes part in the steps that it overrides. One object of a
policy lives as long as one transaction, and only if something shows that the policy is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from ojster.core.job import Job
from ojster.storage.transaction import Transaction

UsageProbes = Mapping[str, str]
"""SELECT statements, by kind, whose rows show that a policy is in use. They are parts of one statement."""

NO_USAGE_PROBES: Final[UsageProbes] = {}
"""For a policy that knows without a statement whether it is in use."""


class Claim(msgspec.Struct, frozen=True):
    """A worker's request for jobs.

    Parameters
    ----------
    queues:
        Queues to look into, in order.
    count:
        Maximum number of jobs.
    worker_id:
        The worker that will hold the leases.
    lease:
        Length of the leases, in microseconds, for jobs that set none; ``None``: the server's default.
    sharing:
        How the queues share the worker (``queues.fairness.Sharing``) unless its pool sets it; ``None``: in order.
    tenant:
        The tenant whose jobs it takes; the empty string: jobs without a tenant; ``None``: all jobs, round-robin.
    provided:
        What the worker provides (``ojster.fleet.requirements.Provided``); ``None``: as in its last heartbeat.
    types:
        Job types that the worker has handlers for, sorted; ``None``: as in its last heartbeat, by default all.
    """

    queues: tuple[str, ...]
    count: int = 1
    worker_id: str | None = None
    lease: int | None = None
    sharing: Any = None
    tenant: str | None = None
    provided: Any = None
    types: tuple[str, ...] | None = None


class Share(msgspec.Struct, frozen=True):
    """What claims have in common that are served together: where they look, and what they can take.

    Parameters
    ----------
    queues, tenant:
        As of ``Claim``.
    can_run, values:
        An SQL condition on ``j``, to append, and its parameters: the jobs that the worker can run.
    traits:
        What policies need to know, by their names.
    """

    queues: tuple[str, ...]
    tenant: str | None
    can_run: str = ""
    values: tuple[str | int, ...] = ()
    traits: tuple[tuple[str, Any], ...] = ()

    def trait(self, name: str) -> Any:
        """Return what a policy has noted under a name; ``None``: nothing."""
        for known, value in self.traits:
            if known == name:
                return value
        return None

    def with_trait(self, name: str, value: Any) -> Share:
        """Return the same with one more trait."""
        return msgspec.structs.replace(self, traits=(*self.traits, (name, value)))


Take = Callable[[Sequence[str], int], list[Job]]
"""Takes jobs from queues, in order: at most so many."""

TakeOfTenant = Callable[[str, int], list[Job]]
"""Takes jobs of a tenant: at most so many."""

P = TypeVar("P", bound="ClaimPolicy")

UNLIMITED: Final = 1_000_000
"""Room where nothing limits it, in jobs."""


class Pipeline(Protocol):
    """The claim that a policy takes part in."""

    tx: Transaction

    def policy(self, kind: type[P]) -> P | None:
        """Return another policy, if it is in use."""

    def is_mixed(self, share: Share) -> bool:
        """Whether jobs of several tenants are handed out together, so that a look may return fewer than there are."""

    def settle(self) -> None:
        """Carry out what follows from jobs that a policy has ended; it may end jobs that are found already."""


class ClaimPolicy:
    """A policy in one claim. Every method here changes nothing.

    Attributes
    ----------
    is_used:
        Whether it takes part; set by ``note_use``, or when it is created.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.tx = pipeline.tx
        self.pipeline = pipeline
        self.is_used = False

    def note_use(self, kind: str, name: str) -> None:
        """Note a row of one of its usage probes."""
        self.is_used = True

    # Which claims are served, and together with which others

    def answer(self, request: Claim) -> list[Job] | None:
        """Return what a worker gets at once, without a look at the queues."""
        return None

    def join(self, share: Share, request: Claim) -> Share:
        """Return the share of a request, changed as the policy wants."""
        return share

    def enter(self, shares: Collection[Share]) -> None:
        """Look at limits, and lock them, before jobs are looked for."""

    def divide(self, share: Share, claims: Mapping[int, Claim], room: dict[int, int]) -> dict[int, int]:
        """Return how many jobs each of the claims of a share may get, the first first."""
        return room

    # Which jobs are found

    def room(self, share: Share, wanted: int) -> int:
        """Return how many of the jobs that a share wants it may get."""
        return wanted

    def serve_queues(self, share: Share, wanted: int, take: Take) -> Iterator[list[Job]] | None:
        """Find jobs, some at a time, in an order of the queues of its own."""
        return None

    def room_in_queue(self, queue: str, wanted: int) -> int:
        """Return how many jobs of a queue may be handed out."""
        return wanted

    def serve_tenants(self, queue: str, wanted: int, take: TakeOfTenant) -> list[Job]:
        """Find jobs of a queue for all tenants. At most one policy does that."""
        raise NotImplementedError

    def room_of_tenant(self, tenant: str, wanted: int) -> int:
        """Return how many jobs of a tenant may be handed out."""
        return wanted

    def find(self, share: Share, queue: str, tenant: str, room: int, available: list[Job]) -> list[Job]:
        """Return the next jobs: ``available`` and those of an index that the policy keeps, at most ``room``."""
        return available

    def need_run(self, queue: str, jobs: list[Job]) -> tuple[list[Job], bool]:
        """Complete those of the jobs that need not run; return the others, and whether to look for more."""
        return jobs, False

    def fit(self, share: Share, queue: str, jobs: list[Job]) -> list[Job]:
        """Leave out jobs that do not fit beside those before them."""
        return jobs

    def taken(self, tenant: str, jobs: Sequence[Job]) -> None:
        """Note that jobs of a tenant are handed out."""

    def taken_from(self, queue: str, jobs: Sequence[Job]) -> None:
        """Note that jobs of a queue are handed out."""

    # Which jobs start

    def can_start(self, jobs: list[Job]) -> list[Job]:
        """Leave out jobs that another transaction has stopped meanwhile."""
        return jobs

    def started(self, share: Share, jobs: Sequence[Job]) -> None:
        """Note that jobs of a share have started."""

    def close(self) -> None:
        """Write what was used."""


STEPS: Final = tuple(name for name, step in vars(ClaimPolicy).items() if callable(step) and not name.startswith("_"))
"""The steps of the pipeline: the methods of ``ClaimPolicy``."""
