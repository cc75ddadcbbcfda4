"""How is something done to many jobs at once? ``/jobs/batch`` (seed 004) and ``/jobs/bulk`` (ojs-bulk-operations.md).

They are one implementation with several vocabularies: a *style* finds the words of the answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from ojster.core.errors import BatchTooLarge, InvalidRequest, OjsterError
from ojster.jobs.admission import Pushed
from ojster.jobs.bulk import Action, Bulk, NotDone, Outcome
from ojster.jobs.envelope import to_json
from ojster.jobs.filters import filter_of
from ojster.jobs.idempotency import Key, Reply
from ojster.jobs.request import NewJob, read_members
from ojster.jobs.selection import JobFilter
from ojster.server import wire
from ojster.server.request import Answer, Exchange, Handler, encode
from ojster.server.route import BASE, Route

LONGEST_KEY: Final = 256
"""How many characters an idempotency key may have."""


class _Style(Protocol):
    """The words of an answer."""

    def answer(self, action: Action, entries: Sequence[_Entry], count: _Count, atomic: bool) -> Reply:
        """Return the answer that tells what became of each; ``count`` may be of more than are told of."""


class _Entry(msgspec.Struct, frozen=True):
    """What became of one job: refused, pushed, or simply dealt with."""

    job_id: str | None
    outcome: Pushed | OjsterError | None

    @property
    def refusal(self) -> OjsterError | None:
        return self.outcome if isinstance(self.outcome, OjsterError) else None


class _Count(msgspec.Struct, frozen=True):
    """How many jobs it was about, and to how many it was done."""

    total: int
    succeeded: int

    @property
    def failed(self) -> int:
        return self.total - self.succeeded

    def status(self, atomic: bool) -> int:
        if not self.failed:
            return 200
        return 207 if self.succeeded and not atomic else 422


class _Plain:
    """The words of ojs-http-binding.md section 9.2: the jobs, or the first refusal."""

    def answer(self, action: Action, entries: Sequence[_Entry], count: _Count, atomic: bool) -> Reply:
        pushed = [entry.outcome for entry in entries if isinstance(entry.outcome, Pushed)]
        if len(pushed) < len(entries):
            raise next(refusal for entry in entries if (refusal := entry.refusal) and not isinstance(refusal, NotDone))
        jobs = b",".join([to_json(one.job) for one in pushed])
        return Reply(201, b'{"jobs":[%b],"count":%d}' % (jobs, len(pushed)))


class _Seed:
    """The words of seed 004. Jobs that were pushed are shown too, as by ``_Plain``."""

    def answer(self, action: Action, entries: Sequence[_Entry], count: _Count, atomic: bool) -> Reply:
        body: dict[str, Any] = {
            "results": [self._result(action, index, entry) for index, entry in enumerate(entries)],
            "summary": {"total": count.total, "succeeded": count.succeeded, "failed": count.failed},
        }
        if action is Action.ENQUEUE:
            jobs = [entry.outcome.job for entry in entries if isinstance(entry.outcome, Pushed)]
            body |= {"jobs": [msgspec.Raw(to_json(job)) for job in jobs], "count": len(jobs)}
        return Reply(count.status(atomic), encode(body))

    def _result(self, action: Action, index: int, entry: _Entry) -> dict[str, Any]:
        result: dict[str, Any] = {"index": index, "status": 201 if action is Action.ENQUEUE else 200}
        if entry.job_id is not None:
            result["job_id"] = entry.job_id
        if entry.refusal is not None:
            result |= {"status": entry.refusal.status, "error": entry.refusal.to_wire()}
        elif isinstance(entry.outcome, Pushed) and entry.outcome.existing:
            result |= {"status": 200, "deduplicated": True}
        return result


class _Specification:
    """The words of ojs-bulk-operations.md."""

    def answer(self, action: Action, entries: Sequence[_Entry], count: _Count, atomic: bool) -> Reply:
        status = count.status(atomic)
        items = [self._item(action, index, entry) for index, entry in enumerate(entries)]
        if action is Action.ENQUEUE:
            body: dict[str, Any] = {
                "total": count.total,
                "succeeded": count.succeeded,
                "failed": count.failed,
                "items": items,
            }
            return Reply(201 if status == 200 else status, encode(body))
        body = {"total_matched": count.total, action.past: count.succeeded, "skipped": count.failed, "items": items}
        return Reply(status, encode(body))

    def _item(self, action: Action, index: int, entry: _Entry) -> dict[str, Any]:
        item: dict[str, Any] = {"index": index}
        if entry.refusal is not None:
            item |= {"status": "failed" if action is Action.ENQUEUE else "skipped", "error": entry.refusal.to_wire()}
            if action is not Action.ENQUEUE:
                item |= {"job_id": entry.job_id, "reason": entry.refusal.message}
        elif isinstance(entry.outcome, Pushed):
            job = entry.outcome.job
            item |= {"status": "duplicate" if entry.outcome.existing else "created"}
            item["job"] = {"id": job.id, "type": job.type, "state": job.state}
        else:
            item |= {"status": action.past, "job_id": entry.job_id}
        return item


async def enqueue_bulk(exchange: Exchange) -> Answer:
    """Enqueue several jobs, each by itself, or with ``atomicity: atomic`` all or none; tell what became of each."""
    raw = await exchange.body()
    body = exchange.decode(raw, wire.BULK)
    return await push_jobs(exchange, raw, body.jobs, body.atomicity, body.idempotency_key, _Specification())


async def enqueue_batch(exchange: Exchange) -> Answer:
    """Enqueue several jobs: all or none; with ``mode: partial`` each by itself.

    With a ``mode``, it is told what became of each; otherwise the jobs are answered, or why they are refused.
    """
    raw = await exchange.body()
    body = exchange.decode(raw, wire.BATCH)
    style = _Plain() if body.mode is None else _Seed()
    return await push_jobs(exchange, raw, body.jobs, body.mode or "atomic", body.idempotency_key, style)


async def push_jobs(
    exchange: Exchange, raw: bytes, jobs: Sequence[msgspec.Raw], mode: str, key: str | None, style: _Style
) -> Answer:
    """Enqueue several jobs, and answer in the words of a style."""
    check_size(exchange, jobs, "jobs")
    items: list[NewJob | str | OjsterError] = []
    for index, job in enumerate(jobs):
        try:
            items.append(await exchange.engine.prepare(read_members(job, "The job")))
        except OjsterError as refusal:
            refusal.message = f"The job at index {index} is invalid: {refusal.message}"
            refusal.details["index"] = index
            items.append(refusal)
    return await _perform(exchange, Action.ENQUEUE, items, mode, _key(exchange, Action.ENQUEUE, key, raw, style), style)


def _steering(action: Action, style: _Style, name: str, doc: str) -> Handler:
    """Make an endpoint that does something to jobs that are there, by ids or by a filter."""

    async def steer(exchange: Exchange) -> Answer:
        raw = await exchange.body()
        body = exchange.decode(raw, wire.BULK_STEERING)
        if (body.job_ids is None) == (body.filter is None):
            raise InvalidRequest("Say which jobs: either 'job_ids' or 'filter'.", field="job_ids")
        key = _key(exchange, action, body.idempotency_key, raw, style)
        mode = body.mode or body.atomicity or "partial"
        if body.job_ids is not None:
            check_size(exchange, body.job_ids, "job_ids")
            return await _perform(exchange, action, body.job_ids, mode, key, style)
        assert body.filter is not None
        if mode == "atomic":
            raise InvalidRequest(
                "What a filter chooses is dealt with in many small transactions, so it cannot be 'atomic'; "
                "name the jobs with 'job_ids'.",
                field="mode",
            )
        if not body.filter:
            raise InvalidRequest("The filter is empty, and would choose all jobs there are.", field="filter")
        chosen = filter_of(body.filter)
        reply = await exchange.engine.answer_once(key, lambda: _swept(exchange, action, chosen, style))
        return Answer(reply.body, reply.status)

    steer.__name__ = name
    steer.__doc__ = doc
    return steer


async def _swept(exchange: Exchange, action: Action, chosen: JobFilter, style: _Style) -> Reply:
    found = await exchange.engine.sweep(action, chosen)
    entries = [_Entry(job_id, refusal) for job_id, refusal in found.items]
    return style.answer(action, entries, _Count(found.matched, found.succeeded), atomic=False)


async def _perform(
    exchange: Exchange,
    action: Action,
    items: Sequence[NewJob | str | OjsterError],
    mode: str,
    key: Key | None,
    style: _Style,
) -> Answer:
    atomic = mode == "atomic"

    def answer(outcomes: Sequence[Outcome]) -> Reply:
        entries = list(map(_entry, outcomes, items))
        succeeded = sum(entry.refusal is None for entry in entries)
        return style.answer(action, entries, _Count(len(entries), succeeded), atomic)

    reply = await exchange.engine.perform(Bulk(action, items, atomic, answer, key))
    return Answer(reply.body, reply.status, ((b"x-ojs-batch-size", b"%d" % len(items)),))


def _entry(outcome: Outcome, item: NewJob | str | OjsterError) -> _Entry:
    if isinstance(outcome, Pushed):
        return _Entry(outcome.job.id, outcome)
    job_id = item if isinstance(item, str) else item.id if isinstance(item, NewJob) and item.id_is_given else None
    return _Entry(job_id, outcome if isinstance(outcome, OjsterError) else None)


def check_size(exchange: Exchange, items: Sequence[Any], name: str) -> None:
    """Refuse a request about no jobs, or about more than the server takes at once.

    Raises
    ------
    InvalidRequest, BatchTooLarge
        It is.
    """
    most = exchange.engine.database.settings.largest_batch
    if not items:
        raise InvalidRequest(f"{name!r} must not be empty.", field=name)
    if len(items) > most:
        raise BatchTooLarge(
            f"The request is about {len(items)} jobs; at most {most} are allowed. Send it in parts.",
            limit=most,
            max_batch_size=most,
        )


def _key(exchange: Exchange, action: Action, in_body: str | None, raw: bytes, style: _Style) -> Key | None:
    key = exchange.header(b"idempotency-key") or in_body
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        raise InvalidRequest(
            f"An idempotency key has 1 to {LONGEST_KEY} printable characters.", field="idempotency_key"
        )
    return Key(action, key, hashlib.sha256(type(style).__name__.encode() + raw).hexdigest())


_BATCH: Final = _Seed()
_BULK: Final = _Specification()

_CANCEL: Final = "Cancel jobs that are not finished, by ``job_ids`` or ``filter``; workers learn it with a heartbeat."
_RETRY: Final = "Run jobs again that were discarded or wait for a retry, by ``job_ids`` or ``filter``."
_DELETE: Final = "Delete finished jobs for good, by ``job_ids`` or ``filter``."

delete_batch: Final = _steering(Action.DELETE, _BATCH, "delete_batch", _DELETE)


def _steering_route(style: _Style, family: str, action: Action, doc: str) -> Route:
    handler = _steering(action, style, f"{action}_{family}", doc)
    return Route("POST", f"{BASE}/jobs/{family}/{action}", handler, "Bulk", wire.BulkSteeringBody, large=True)


ROUTES: Final = (
    Route("POST", f"{BASE}/jobs/batch", enqueue_batch, "Bulk", wire.BatchSchema, wire.JobsAnswer, 201, large=True),
    Route("POST", f"{BASE}/jobs/bulk", enqueue_bulk, "Bulk", wire.BulkSchema, status=201, large=True),
    *(
        _steering_route(style, family, action, doc)
        for family, style in (("batch", _BATCH), ("bulk", _BULK))
        for action, doc in ((Action.CANCEL, _CANCEL), (Action.RETRY, _RETRY), (Action.DELETE, _DELETE))
    ),
    Route("DELETE", f"{BASE}/jobs/batch", delete_batch, "Bulk", wire.BulkSteeringBody, large=True),
)
