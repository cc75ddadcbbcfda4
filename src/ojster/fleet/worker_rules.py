"""Worker rules set by operators: whether a worker gets jobs, of which types, and its capabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ojster.core.errors import InvalidRequest, NotFound, OjsterError
from ojster.core.tenant import called
from ojster.fleet.abilities import decode_worker_rule
from ojster.fleet.worker_rule import WorkerRule
from ojster.fleet.workers import release_jobs_of
from ojster.jobs.extension import settle
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction


class RuleChange(msgspec.Struct, frozen=True):
    """Changes to the rule of a worker: members of ``WorkerRule``. Omitted members stay unchanged.

    ``provides`` is merged into the existing value.
    """

    id: str
    members: dict[str, Any]


def change_rules(tx: Transaction, changes: Sequence[RuleChange]) -> list[WorkerRule | OjsterError]:
    """Change the rules of workers and return them. The jobs of disabled workers go back to their queues.

    A change that denies types, and leaves an allow list in place, is an ``InvalidRequest``.
    """
    results: list[WorkerRule | OjsterError] = []
    for change in changes:
        # Two changes of different members must both last: they are merged into one value and written back.
        rows = tx.execute("SELECT body FROM worker_rules WHERE id = :id" + tx.for_update, {"id": change.id})
        before = decode_worker_rule(rows[0][0]) if rows else WorkerRule(change.id)
        members = dict(change.members)
        if members.get("denied") and "allowed" not in members and before.allowed is not None:
            results.append(_idle_denial(before))
            continue
        if "provides" in members:
            members["provides"] = before.provides | members["provides"]
        rule = msgspec.structs.replace(before, **members, changed_at=tx.now)
        tx.execute(
            """
            INSERT INTO worker_rules (id, body, enabled)
            VALUES (:id, :body, :enabled)
            ON CONFLICT (id) DO UPDATE SET body = excluded.body, enabled = excluded.enabled
            """,
            {"id": rule.id, "body": msgspec.json.encode(rule), "enabled": int(rule.enabled)},
        )
        if before.enabled != rule.enabled:
            event = "worker.enabled" if rule.enabled else "worker.disabled"
            tx.emit_about(event, rule.id, worker_id=rule.id, reason=rule.reason)
        if not rule.enabled:
            release_jobs_of(tx, rule.id)
        _reload_and_reopen(tx, rule.id)
        results.append(rule)
    settle(tx)
    return results


@for_each
def delete_rules(tx: Transaction, id: str) -> OjsterError | None:
    """Delete the rules of workers; for each, return ``None`` or a `NotFound`."""
    rows = tx.execute("DELETE FROM worker_rules WHERE id = :id RETURNING id", {"id": id})
    if rows:
        _reload_and_reopen(tx, id)
    nothing = NotFound(f"There is no rule for the worker {called(id)}.", resource_type="worker")
    return None if rows else nothing


def _idle_denial(rule: WorkerRule) -> InvalidRequest:
    """Return the error for denied types that would have no effect."""
    allowed = ", ".join(rule.allowed or ()) or "nothing"
    return InvalidRequest(
        f"The rule of the worker {called(rule.id)} allows {allowed:.200}; beside an allow list, denied types have no "
        "effect. Change 'allowed_types', or set it to null in the same request. 'ojster workers forget' deletes the "
        "rule.",
        field="denied_types",
    )


def list_rules(tx: Transaction, requests: Sequence[None]) -> list[list[WorkerRule]]:
    """Return all worker rules, ordered by worker id, for each request."""
    rules = [decode_worker_rule(body) for (body,) in tx.execute("SELECT body FROM worker_rules ORDER BY id")]
    return [rules for _ in requests]


def _reload_and_reopen(tx: Transaction, worker_id: str) -> None:
    """Make all processes reload the configuration, and reopen the queues of a worker."""
    tx.effects.configured = True
    for (queues,) in tx.execute("SELECT queues FROM workers WHERE id = :id", {"id": worker_id}):
        tx.effects.opened.update(msgspec.json.decode(queues, type=list[str]))
