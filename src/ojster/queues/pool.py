"""Pools: workers that share queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ojster.queues.fairness import STRICT, Sharing
from ojster.storage.memory import Remembered
from ojster.storage.transaction import Transaction


class Pool(msgspec.Struct, frozen=True):
    """A pool of workers that share queues. Times are microseconds since the epoch.

    Parameters
    ----------
    queues:
        Queues of the workers, in order.
    concurrency:
        Maximum number of active jobs of the whole pool; ``None``: unlimited.
    sharing:
        How the queues share the workers.
    isolated:
        Whether workers outside the pool get no jobs from its queues.

    Spec: ojs-fair-scheduling 6
    """

    name: str
    queues: tuple[str, ...]
    concurrency: int | None = None
    sharing: Sharing = STRICT
    isolated: bool = False
    created_at: int = 0
    updated_at: int = 0


decode_pool: Final = msgspec.json.Decoder(Pool).decode


def _read_pools(tx: Transaction) -> Mapping[str, Pool]:
    return {pool.name: pool for (body,) in tx.execute("SELECT body FROM pools") if (pool := decode_pool(body))}


pools_by_name: Final = Remembered[Mapping[str, Pool]](_read_pools, in_callers={})
"""All pools, by name."""
