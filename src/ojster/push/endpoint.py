"""A push endpoint as it is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import InvalidRequest
from ojster.core.rate_limit import Limits, Rate
from ojster.core.signatures import keys_at
from ojster.core.tenant import NOBODY, called, qualify
from ojster.queues.limits import key_of_worker
from ojster.storage.memory import Remembered
from ojster.storage.transaction import Transaction

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class PushEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A function that runs jobs. It is in effect a worker that the servers run together.

    Times are microseconds since the epoch, durations microseconds.

    Parameters
    ----------
    id:
        Stored name: with its tenant.
    job_types:
        The job types that it runs, sorted; empty: all.
    concurrency:
        Maximum number of jobs that it has at the same time, whichever servers have sent them.
    rate:
        Maximum number of deliveries in a period.
    timeout:
        Maximum time of a call.
    former_secret, former_until:
        The previous secret, and until when deliveries are signed with it too.
    tenant:
        The tenant whose jobs it gets; ``None``: all tenants, round-robin.
    active:
        Whether it gets jobs.
    reason:
        Why a server has turned it off; ``None``: it is on, or an operator has paused it.
    trips:
        How often in a row it was suspended, because it could not take jobs; 0: it works.
    trouble:
        Why it was suspended last.
    troubled_since:
        When it was first suspended or turned off since it last worked; 0: it works.
    suspended_until:
        Until when it gets no jobs. After that it gets one at a time until it has answered.
    """

    id: str
    url: str
    secret: str
    created_at: int
    queues: tuple[str, ...] = ("default",)
    job_types: tuple[str, ...] = ()
    concurrency: int = 10
    rate: Rate | None = None
    timeout: int = 30 * SECOND
    former_secret: str | None = None
    former_until: int = 0
    tenant: str | None = None
    active: bool = True
    reason: str | None = None
    trips: int = 0
    trouble: str | None = None
    troubled_since: int = 0
    suspended_until: int = 0

    @property
    def worker_name(self) -> str:
        """Id of the worker that holds its jobs, as its tenant calls it."""
        return f"push_{called(self.id)}"

    @property
    def worker_id(self) -> str:
        """Stored id of that worker."""
        return qualify(self.tenant or NOBODY, self.worker_name)

    @property
    def limit_key(self) -> str:
        """Key of the limits of that worker."""
        return key_of_worker(self.worker_id)

    @property
    def limits(self) -> Limits:
        """Its limits."""
        return Limits(self.concurrency, self.rate)

    def keys(self, now: int) -> list[str]:
        """Return the secrets to sign a delivery with: also the previous one, for some time after a rotation."""
        return keys_at(now, self.secret, self.former_secret, self.former_until)


decode_endpoint: Final = msgspec.json.Decoder(PushEndpoint).decode


def check_id(id: str) -> str:
    """Return the id of a push endpoint if it is valid.

    Raises
    ------
    InvalidRequest
        It is not valid.
    """
    if not _NAME.fullmatch(id):
        raise InvalidRequest(
            f"The id {id[:80]!r} is invalid: it must be letters, digits, '.', '_' and '-', begin with a letter or a "
            "digit, and be at most 64 characters long.",
            field="id",
        )
    return id


def read_endpoints(tx: Transaction) -> list[PushEndpoint]:
    """Return all endpoints, by name."""
    return [decode_endpoint(body) for (body,) in tx.execute("SELECT body FROM push_endpoints ORDER BY id")]


def _by_worker(tx: Transaction) -> Mapping[str, PushEndpoint]:
    return {endpoint.worker_id: endpoint for endpoint in read_endpoints(tx)}


endpoints_by_worker: Final = Remembered[Mapping[str, PushEndpoint]](_by_worker, in_callers={})
"""All push endpoints, by the stored ids of their workers."""
