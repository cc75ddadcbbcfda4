"""What wakes workers at once, wherever they wait. Even an idle worker sends heartbeats, so it is a quiet topic."""

from __future__ import annotations

import hashlib

from ojster.storage.transaction import Transaction
from ojster.storage.wakeups import QUIET


def worker_topic(worker_id: str) -> str:
    """Return the topic of what a worker must learn at once."""
    return f"{QUIET}worker:" + hashlib.sha256(worker_id.encode()).hexdigest()[:16]  # ids may contain anything


def tell_worker(tx: Transaction, worker_id: str) -> None:
    """Answer the waiting heartbeat of a worker: a job that it runs was cancelled, or it got an order."""
    tx.effects.topics[worker_topic(worker_id)] = None
