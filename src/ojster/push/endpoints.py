"""Changes of push endpoints: by operators, and by servers to which a function does not answer as it should."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from ojster.core.durations import HOUR, SECOND
from ojster.core.errors import Forbidden, NotFound, OjsterError
from ojster.core.job_table import HELD_BY_WORKER
from ojster.core.rate_limit import Limits
from ojster.core.signatures import new_secret, replacement
from ojster.core.tenant import called
from ojster.fleet.workers import Leave, leave
from ojster.insight.receivers import DeliveryOutcome, forget_receiver, note_outcome, public_address
from ojster.push.endpoint import PushEndpoint, decode_endpoint, read_endpoints
from ojster.queues.limits import Override, block, delete_limit, override, set_limits
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction
from ojster.storage.wakeups import QUIET

TOPIC: Final = f"{QUIET}push"
"""Topic of changes that servers must learn at once."""

FIRST_PAUSE_US: Final = SECOND
LONGEST_PAUSE_US: Final = 60 * SECOND
"""Pauses of an endpoint that does not say how long to wait, in microseconds: each twice as long as the one before.

Spec: ojs-serverless 7.2
"""

LONGEST_WISH_US: Final = HOUR
"""Longest pause that an endpoint may ask for with ``Retry-After``, in microseconds."""


class NewEndpoint(msgspec.Struct, frozen=True):
    """An endpoint to create or to replace. ``is_of_all``: whether the caller may change endpoints of all tenants.

    ``secret``: ``None`` keeps the present one, or makes one.
    """

    endpoint: PushEndpoint
    secret: str | None
    is_of_all: bool


@for_each
def put_endpoints(tx: Transaction, new: NewEndpoint) -> PushEndpoint | OjsterError:
    """Create or replace endpoints. Whatever a server has noted about their troubles is over.

    Return each, with its secret, or ``Forbidden`` if one of its name is for the jobs of all tenants.
    """
    wanted = new.endpoint
    # Of two changes at the same time, the second must keep the secret that the first has made.
    known = _find(tx, wanted.id, tx.for_update)
    if known is None:
        kept = msgspec.structs.replace(wanted, secret=new.secret or new_secret(), created_at=tx.now)
    elif known.tenant != wanted.tenant and not new.is_of_all:
        return Forbidden(f"The push endpoint {called(wanted.id)!r} gets the jobs of all tenants. Choose another id.")
    else:
        is_paused = not known.active and known.reason is None
        secrets = {name: getattr(known, name) for name in ("secret", "former_secret", "former_until")}
        if new.secret and new.secret != known.secret:
            secrets = replacement(known.secret, new.secret, tx.now)
        kept = msgspec.structs.replace(wanted, created_at=known.created_at, active=not is_paused, **secrets)
    kept = _open(tx, kept)
    tx.emit_about("push.endpoint.changed", kept.id, tenant=kept.tenant, url=public_address(kept.url))
    return kept


def _open(tx: Transaction, endpoint: PushEndpoint) -> PushEndpoint:
    """Store an endpoint whose troubles are over, with its limits; return it."""
    works = {"reason": None, "trips": 0, "trouble": None, "troubled_since": 0, "suspended_until": 0}
    kept = msgspec.structs.replace(endpoint, **works)
    for queue in kept.queues:
        set_limits(tx, kept.limit_key, kept.limits, "wait", queue)
    override(tx, [Override(kept.limit_key, None)])
    forget_receiver(tx, kept.worker_id)
    _write(tx, kept)
    return kept


SwitchKind = Literal["pause", "resume", "rotate"]


class Switch(msgspec.Struct, frozen=True):
    """What an operator does to an endpoint."""

    id: str
    to: SwitchKind


@for_each
def switch_endpoints(tx: Transaction, order: Switch) -> PushEndpoint | OjsterError:
    """Pause, resume or give a new secret to endpoints; return each, or ``NotFound``."""
    # The whole endpoint is written back: the second of two changes must see the first.
    known = _find(tx, order.id, tx.for_update)
    if known is None:
        return no_endpoint(order.id)
    match order.to:
        case "pause":
            changed = msgspec.structs.replace(known, active=False, reason=None)
            _write(tx, changed)
        case "resume":
            changed = _open(tx, msgspec.structs.replace(known, active=True))
        case "rotate":
            changed = msgspec.structs.replace(known, **replacement(known.secret, new_secret(), tx.now))
            _write(tx, changed)
    done = {"pause": "paused", "resume": "resumed", "rotate": "changed"}[order.to]
    tx.emit_about(f"push.endpoint.{done}", known.id, tenant=known.tenant)
    return changed


@for_each
def delete_endpoints(tx: Transaction, id: str) -> OjsterError | None:
    """Delete endpoints; the jobs that their functions have go back to their queues."""
    # A server that notes a trouble now would write the endpoint again after its deletion.
    known = _find(tx, id, tx.for_update)
    if known is None:
        return no_endpoint(id)
    tx.execute("DELETE FROM push_endpoints WHERE id = :id", {"id": known.id})
    _end_worker(tx, known)
    tx.effects.configured = True
    tx.effects.topics[TOPIC] = None
    tx.emit_about("push.endpoint.deleted", known.id, tenant=known.tenant)
    return None


def _end_worker(tx: Transaction, endpoint: PushEndpoint) -> None:
    leave(tx, [Leave(endpoint.worker_id)])
    delete_limit(tx, endpoint.limit_key)
    forget_receiver(tx, endpoint.worker_id)


class Trouble(msgspec.Struct, frozen=True):
    """Why an endpoint takes no jobs.

    Parameters
    ----------
    wish:
        Pause that it has asked for, in microseconds; ``None``: none.
    is_final:
        Whether it will take none until an operator changes something.
    calls:
        Ids of the jobs that the server is sending to it.
    """

    id: str
    error: str
    wish: int | None = None
    is_final: bool = False
    calls: Collection[str] = ()


@for_each
def note_troubles(tx: Transaction, trouble: Trouble) -> None:
    """Suspend endpoints for a while, or turn them off. An endpoint that is suspended already stays so.

    After the pause, an endpoint gets one job to show that it works, beside those that its function has accepted, which
    may take long. Each trouble counts these again: a call that has begun elsewhere counts, too, until it has ended.

    Spec: ojs-serverless 7.2
    """
    # All servers that have called it may say the same now; it counts once.
    known = _find(tx, trouble.id, tx.for_update)
    if known is None or not known.active:
        return
    note_outcome(tx, DeliveryOutcome(known.worker_id, f"The push endpoint {called(known.id)}", trouble.error))
    known = msgspec.structs.replace(known, troubled_since=known.troubled_since or tx.now)
    if trouble.is_final:
        _write(tx, msgspec.structs.replace(known, active=False, reason=trouble.error))
        tx.emit_about("push.endpoint.disabled", known.id, tenant=known.tenant, reason=trouble.error)
        return
    is_new = tx.now >= known.suspended_until
    trips = known.trips + is_new
    pause = min(FIRST_PAUSE_US << min(trips - 1, 30), LONGEST_PAUSE_US)
    if trouble.wish is not None:
        pause = min(max(trouble.wish, FIRST_PAUSE_US), LONGEST_WISH_US)
    elif not is_new:
        pause = 0
    until = max(tx.now + pause, known.suspended_until)
    _write(tx, msgspec.structs.replace(known, trips=trips, trouble=trouble.error, suspended_until=until))
    room = min(_count_accepted(tx, known, trouble.calls) + 1, known.concurrency)
    override(tx, [Override(known.limit_key, Limits(concurrency=room))])
    block(tx, known.limit_key, until, trouble.error)
    if is_new:
        tx.emit_about("push.endpoint.suspended", known.id, tenant=known.tenant, reason=trouble.error)


def _count_accepted(tx: Transaction, endpoint: PushEndpoint, calls: Collection[str]) -> int:
    """Return how many jobs a function has that are not in calls: it has answered 202, and reports later."""
    held = tx.execute(f"SELECT id {HELD_BY_WORKER}", {"worker_id": endpoint.worker_id})
    return len({id for (id,) in held}.difference(calls))


@for_each
def recover_endpoints(tx: Transaction, id: str) -> None:
    """End the troubles of endpoints that have answered."""
    # Another server may note a new trouble now, which must not be lost.
    known = _find(tx, id, tx.for_update)
    if known is not None and known.trips and tx.now >= known.suspended_until:
        _open(tx, known)
        tx.emit_about("push.endpoint.recovered", known.id, tenant=known.tenant)


def list_endpoints(tx: Transaction, requests: Sequence[None]) -> list[list[PushEndpoint]]:
    """Return all endpoints, by name, for each request."""
    endpoints = read_endpoints(tx)
    return [endpoints for _ in requests]


@for_each
def find_endpoints(tx: Transaction, id: str) -> PushEndpoint | None:
    """Return endpoints, or ``None`` for each that does not exist."""
    return _find(tx, id)


def _find(tx: Transaction, id: str, lock: str = "") -> PushEndpoint | None:
    rows = tx.execute("SELECT body FROM push_endpoints WHERE id = :id" + lock, {"id": id})
    return decode_endpoint(rows[0][0]) if rows else None


def _write(tx: Transaction, endpoint: PushEndpoint) -> None:
    tx.execute(
        """
        INSERT INTO push_endpoints (id, body)
        VALUES (:id, :body)
        ON CONFLICT (id) DO UPDATE SET body = excluded.body
        """,
        {"id": endpoint.id, "body": msgspec.json.encode(endpoint)},
    )
    tx.effects.configured = True
    tx.effects.topics[TOPIC] = None


def no_endpoint(id: str) -> NotFound:
    """Return the error for an endpoint that does not exist."""
    return NotFound(f"There is no push endpoint {called(id)!r}.", resource_type="push_endpoint", resource_id=called(id))
