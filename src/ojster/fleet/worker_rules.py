"""What do operators say of workers? Whether they get jobs, which, and what they provide. (seed 003: matching)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ojster.core.errors import NotFound, OjsterError
from ojster.core.tenant import called
from ojster.fleet.abilities import decode_worker_rule
from ojster.fleet.worker_rule import WorkerRule
from ojster.fleet.workers import give_back_jobs
from ojster.jobs.extension import settle
from ojster.storage.transaction import Transaction


class RuleChange(msgspec.Struct, frozen=True):
    """What is to be said of a worker: members of ``WorkerRule``; those that are left out stay as they are.

    ``provides`` is added to what is said already.
    """

    id: str
    members: dict[str, Any]


def change_rules(tx: Transaction, changes: Sequence[RuleChange]) -> list[WorkerRule]:
    """Say something of workers; for each return all that is said. Who is disabled gives back what he holds."""
    results = []
    for change in changes:
        rows = tx.execute("SELECT body FROM worker_rules WHERE id = :id" + tx.for_update, {"id": change.id})
        before = decode_worker_rule(rows[0][0]) if rows else WorkerRule(change.id)
        members = dict(change.members)
        if "provides" in members:
            members["provides"] = before.provides | members["provides"]
        rule = msgspec.structs.replace(before, **members, changed_at=tx.now)
        tx.execute(
            "INSERT INTO worker_rules (id, body, enabled) VALUES (:id, :body, :enabled) "
            "ON CONFLICT (id) DO UPDATE SET body = excluded.body, enabled = excluded.enabled",
            {"id": rule.id, "body": msgspec.json.encode(rule), "enabled": int(rule.enabled)},
        )
        if before.enabled != rule.enabled:
            event = "worker.enabled" if rule.enabled else "worker.disabled"
            tx.emit_about(event, rule.id, worker_id=rule.id, reason=rule.reason)
        if not rule.enabled:
            give_back_jobs(tx, rule.id)
        _tell(tx, rule.id)
        results.append(rule)
    settle(tx)
    return results


def forget_rules(tx: Transaction, ids: Sequence[str]) -> list[OjsterError | None]:
    """Say nothing of workers any more: they get jobs as they themselves say."""
    results: list[OjsterError | None] = []
    for id in ids:
        rows = tx.execute("DELETE FROM worker_rules WHERE id = :id RETURNING id", {"id": id})
        if rows:
            _tell(tx, id)
        nothing = NotFound(f"Nothing is said of the worker {called(id)}.", resource_type="worker")
        results.append(None if rows else nothing)
    return results


def list_rules(tx: Transaction, requests: Sequence[None]) -> list[list[WorkerRule]]:
    """Return what is said of workers, by their ids, for each request."""
    found = [decode_worker_rule(body) for (body,) in tx.execute("SELECT body FROM worker_rules ORDER BY id")]
    return [found for _ in requests]


def _tell(tx: Transaction, worker_id: str) -> None:
    """Let all processes know, and those look again who may get jobs now."""
    tx.effects.configured = True
    for (queues,) in tx.execute("SELECT queues FROM workers WHERE id = :id", {"id": worker_id}):
        tx.effects.opened.update(msgspec.json.decode(queues, type=list[str]))
