"""Endpoints for bulk operations: ``/jobs/batch`` and ``/jobs/bulk``.

Both share one implementation. A *style* formats the answer.

Spec: ojs-bulk-operations; ojs-http-binding 9.2
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from ojster.core.access import ENQUEUE, Operation
from ojster.core.errors import BatchTooLarge, InvalidRequest, OjsterError
from ojster.core.json_objects import read_members
from ojster.core.refusals import CancellationRequested
from ojster.core.turns import in_turns, read_aside
from ojster.jobs.bulk import Action, Bulk, ItemOutcome, NotExecuted
from ojster.jobs.bulk_wire import (
    BatchAnswer,
    BatchResultBody,
    BatchSummaryBody,
    BulkChangedAnswer,
    BulkEnqueuedAnswer,
    BulkItemBody,
    BulkJobBody,
    EnqueuedBatchAnswer,
    mark_dry_run,
)
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.filters import narrowing_filter_of
from ojster.jobs.idempotency import Key, StoredReply
from ojster.jobs.job_json import to_json
from ojster.jobs.new_job import NewJob
from ojster.jobs.push import Pushed
from ojster.jobs.wire import BATCH, BULK_STEERING, BatchBody, BatchSchema, BulkSteeringBody
from ojster.server import cloud_events
from ojster.server.answer import Answer, UnchangedAnswer, encode
from ojster.server.request import Handler, HttpRequest
from ojster.server.route import BASE, Route

MAX_KEY_CHARS: Final = 256
"""Maximum length of an idempotency key, in characters."""


class _AnswerFormat(Protocol):
    """The format of an answer."""

    def answer(self, action: Action, entries: Sequence[_Entry], count: _Totals, atomic: bool) -> StoredReply:
        """Return the answer with the outcome of each entry. ``count`` may cover more jobs than ``entries``."""


class _Entry(msgspec.Struct, frozen=True):
    """The outcome of one job: refused (an error), pushed, or done (``None``)."""

    job_id: str | None
    outcome: Pushed | OjsterError | None

    @property
    def refusal(self) -> OjsterError | None:
        return self.outcome if isinstance(self.outcome, OjsterError) else None


class _Totals(msgspec.Struct, frozen=True):
    """The number of jobs in the request, and of those for which the operation succeeded."""

    total: int
    succeeded: int
    as_of: int | None = None
    """When the jobs of a dry run were counted, in microseconds since the epoch; ``None``: they were changed."""
    next_cursor: str | UnsetType | None = UNSET
    """Where the next part begins, if a part was asked for; ``None``: it was the last one."""

    @property
    def failed(self) -> int:
        return self.total - self.succeeded

    def status(self, atomic: bool) -> int:
        if not self.failed or self.as_of is not None:
            return 200
        return 207 if self.succeeded and not atomic else 422


class _JobsFormat:
    """The specification's batch format: the jobs, or the first refusal.

    Spec: ojs-http-binding 9.2
    """

    def answer(self, action: Action, entries: Sequence[_Entry], count: _Totals, atomic: bool) -> StoredReply:
        pushed = [entry.outcome for entry in entries if isinstance(entry.outcome, Pushed)]
        if len(pushed) < len(entries):
            raise next(
                refusal for entry in entries if (refusal := entry.refusal) and not isinstance(refusal, NotExecuted)
            )
        jobs = b",".join([to_json(outcome.job) for outcome in pushed])
        return StoredReply(201, b'{"jobs":[%b],"count":%d}' % (jobs, len(pushed)))


class _BatchFormat:
    """The format of ``/jobs/batch`` with a ``mode``: results for each job; pushes add members of ``_JobsFormat``."""

    def answer(self, action: Action, entries: Sequence[_Entry], count: _Totals, atomic: bool) -> StoredReply:
        body = BatchAnswer(
            [self._result(action, index, entry) for index, entry in enumerate(entries)],
            BatchSummaryBody(count.total, count.succeeded, count.failed),
        )
        if action is Action.ENQUEUE:
            jobs = [entry.outcome.job for entry in entries if isinstance(entry.outcome, Pushed)]
            body.jobs, body.count = [msgspec.Raw(to_json(job)) for job in jobs], len(jobs)
        mark_dry_run(body, count.as_of)
        body.next_cursor = count.next_cursor
        return StoredReply(count.status(atomic), encode(body))

    def _result(self, action: Action, index: int, entry: _Entry) -> BatchResultBody:
        result = BatchResultBody(index, 201 if action is Action.ENQUEUE else 200)
        if entry.job_id is not None:
            result.job_id = entry.job_id
        if entry.refusal is not None:
            result.status, result.error = entry.refusal.status, entry.refusal.to_wire()
        elif isinstance(entry.outcome, Pushed) and entry.outcome.existing:
            result.status, result.deduplicated = 200, True
        return result


class _BulkFormat:
    """The format of ``/jobs/bulk``.

    Spec: ojs-bulk-operations
    """

    def answer(self, action: Action, entries: Sequence[_Entry], count: _Totals, atomic: bool) -> StoredReply:
        status = count.status(atomic)
        items = [self._item(action, index, entry) for index, entry in enumerate(entries)]
        if action is Action.ENQUEUE:
            pushed = BulkEnqueuedAnswer(count.total, count.succeeded, count.failed, items)
            return StoredReply(201 if status == 200 else status, encode(pushed))
        changed = BulkChangedAnswer(count.total, count.failed, items)
        setattr(changed, action.past, count.succeeded)
        mark_dry_run(changed, count.as_of)
        changed.next_cursor = count.next_cursor
        return StoredReply(status, encode(changed))

    def _item(self, action: Action, index: int, entry: _Entry) -> BulkItemBody:
        if entry.refusal is not None:
            item = BulkItemBody(index, "failed" if action is Action.ENQUEUE else "skipped", entry.refusal.to_wire())
            if action is not Action.ENQUEUE:
                item.job_id, item.reason = entry.job_id, entry.refusal.message
            return item
        if isinstance(entry.outcome, Pushed):
            job = entry.outcome.job
            status = "duplicate" if entry.outcome.existing else "created"
            return BulkItemBody(index, status, job=BulkJobBody(job.id, job.type, job.state))
        return BulkItemBody(index, action.past, job_id=entry.job_id)


async def enqueue_bulk(request: HttpRequest) -> Answer:
    """Enqueue several jobs independently, or with ``atomicity: atomic`` all or none, and return a result for each."""
    raw = await request.body()
    body = await read_aside(len(raw), request.decode, raw, BATCH)
    return await push_jobs(request, raw, body.jobs, _mode_of(body) or "partial", body.idempotency_key, _BulkFormat())


async def enqueue_batch(request: HttpRequest) -> Answer:
    """Enqueue several jobs, all or none, or with ``mode: partial`` independently.

    With a ``mode``, the answer has a result for each job. Without it, the answer has the jobs, or the first error.
    CloudEvents, as a list of the content type ``application/cloudevents-batch+json``, are enqueued independently.
    """
    if cloud_events.form_of(request, of_many=True) is not None:
        entries = await cloud_events.entries_of(request)
        check_size(request, entries, "events")
        return await cloud_events.enqueue_events(request, entries)
    raw = await request.body()
    body = await read_aside(len(raw), request.decode, raw, BATCH)
    mode = _mode_of(body)
    style = _JobsFormat() if mode is None else _BatchFormat()
    return await push_jobs(request, raw, body.jobs, mode or "atomic", body.idempotency_key, style)


def _mode_of(body: BatchBody | BulkSteeringBody) -> str | None:
    """Return whether a request is all or nothing, which has two names."""
    if body.mode is not None and body.atomicity is not None and body.mode != body.atomicity:
        raise InvalidRequest("'mode' and 'atomicity' contradict each other. Send one of them.", field="mode")
    return body.mode or body.atomicity


async def push_jobs(
    request: HttpRequest, raw: bytes, jobs: Sequence[msgspec.Raw], mode: str, key: str | None, style: _AnswerFormat
) -> Answer:
    """Enqueue several jobs, and format the answer with ``style``."""
    check_size(request, jobs, "jobs")
    items: list[NewJob | str | OjsterError] = []
    preparation = await request.service.jobs.preparation()
    async for index, job in in_turns(enumerate(jobs)):
        try:
            items.append(await preparation.job(read_members(job, "The job")))
        except OjsterError as refusal:
            refusal.message = f"The job at index {index} is invalid: {refusal.message}"
            refusal.details["index"] = index
            items.append(refusal)
    return await _perform(request, Action.ENQUEUE, items, mode, _key(request, Action.ENQUEUE, key, raw, style), style)


def _bulk_endpoint(action: Action, style: _AnswerFormat, name: str, doc: str) -> Handler:
    """Return an endpoint that performs ``action`` on existing jobs, selected by ids or by a filter."""

    async def steer(request: HttpRequest) -> Answer:
        raw = await request.body()
        body = request.decode(raw, BULK_STEERING)
        if (body.job_ids is None) == (body.filter is None):
            raise InvalidRequest("Exactly one of 'job_ids' and 'filter' is required.", field="job_ids")
        key = _key(request, action, body.idempotency_key, raw, style)
        mode = _mode_of(body) or "partial"
        if body.job_ids is not None:
            if body.dry_run:
                raise InvalidRequest("'dry_run' needs a 'filter'. Named jobs can be read one by one.", field="dry_run")
            if body.cursor is not None:
                raise InvalidRequest("'cursor' needs a 'filter'. Named jobs are changed at once.", field="cursor")
            check_size(request, body.job_ids, "job_ids")
            return await _perform(request, action, body.job_ids, mode, key, style)
        assert body.filter is not None
        if mode == "atomic":
            raise InvalidRequest(
                "A request with 'filter' cannot be 'atomic', as it runs in many small transactions. "
                "Select the jobs with 'job_ids'.",
                field="mode",
            )
        chosen = narrowing_filter_of(body.filter)
        if body.dry_run:
            if body.cursor is not None:
                raise InvalidRequest("A 'dry_run' has no 'cursor': it counts all that match.", field="cursor")
            reply = await _swept(request, action, chosen, style, dry_run=True)
            return UnchangedAnswer(reply.body, reply.status)
        reply = await request.service.bulk.answer_once(
            key, lambda: _swept(request, action, chosen, style, cursor=body.cursor)
        )
        return Answer(reply.body, reply.status)

    steer.__name__ = name
    steer.__doc__ = doc
    return steer


async def _swept(
    request: HttpRequest,
    action: Action,
    chosen: JobFilter,
    style: _AnswerFormat,
    *,
    dry_run: bool = False,
    cursor: str | None = None,
) -> StoredReply:
    if cursor is None:
        sweep = await request.service.bulk.sweep(action, chosen, dry_run=dry_run)
        totals = _Totals(sweep.matched, sweep.succeeded, sweep.as_of)
    else:
        sweep = await request.service.bulk.sweep_part(action, chosen, _position(cursor))
        following = None if sweep.next is None else "{}.{}".format(*sweep.next)
        totals = _Totals(sweep.matched, sweep.succeeded, next_cursor=following)
    entries = [_Entry(job_id, refusal) for job_id, refusal in sweep.items]
    reply = style.answer(action, entries, totals, atomic=False)
    told = any(isinstance(refusal, CancellationRequested) for _, refusal in sweep.items)
    return StoredReply(200, reply.body) if told and reply.status == 422 else reply


def _position(cursor: str) -> tuple[int, int] | None:
    """Return where a part begins; ``None``: at the oldest job."""
    after, _, until = cursor.partition(".")
    return (int(after), int(until)) if until else None


async def _perform(
    request: HttpRequest,
    action: Action,
    items: Sequence[NewJob | str | OjsterError],
    mode: str,
    key: Key | None,
    style: _AnswerFormat,
) -> Answer:
    atomic = mode == "atomic"
    of_request, request.warnings = request.warnings, ()  # they belong to those of the jobs, in one list

    def answer(outcomes: Sequence[ItemOutcome]) -> StoredReply:
        entries = list(map(_entry, outcomes, items))
        succeeded = sum(entry.refusal is None for entry in entries)
        reply = style.answer(action, entries, _Totals(len(entries), succeeded), atomic)
        warnings = [
            *of_request,
            *(
                f"The job at index {index}: {warning}"
                for index, item in enumerate(items)
                if isinstance(item, NewJob)
                for warning in item.warnings
            ),
        ]
        if not warnings:
            return reply
        return StoredReply(reply.status, b'%b,"warnings":%b}' % (reply.body[:-1], encode(warnings)))

    reply = await request.service.bulk.perform(Bulk(action, items, atomic, answer, key))
    return Answer(reply.body, reply.status, ((b"x-ojs-batch-size", b"%d" % len(items)),))


def _entry(outcome: ItemOutcome, item: NewJob | str | OjsterError) -> _Entry:
    if isinstance(outcome, Pushed):
        return _Entry(outcome.job.id, outcome)
    job_id = item if isinstance(item, str) else item.id if isinstance(item, NewJob) and item.id_is_given else None
    return _Entry(job_id, outcome if isinstance(outcome, OjsterError) else None)


def check_size(request: HttpRequest, items: Sequence[Any], name: str) -> None:
    """Check that a request has at least one job and at most ``largest_batch``.

    Raises
    ------
    InvalidRequest
        The request has no jobs.
    BatchTooLarge
        The request has too many jobs.
    """
    most = request.service.database.settings.largest_batch
    if not items:
        raise InvalidRequest(f"{name!r} must not be empty.", field=name)
    if len(items) > most:
        raise BatchTooLarge(
            f"The request has {len(items)} jobs (limit {most}). Split it into smaller requests.",
            limit=most,
            max_batch_size=most,
        )


def _key(request: HttpRequest, action: Action, in_body: str | None, raw: bytes, style: _AnswerFormat) -> Key | None:
    return key_of(request, action, type(style).__name__.encode() + raw, in_body)


def key_of(request: HttpRequest, operation: str, content: bytes, in_body: str | None = None) -> Key | None:
    """Return the idempotency key of a request; ``None``: it has none.

    Parameters
    ----------
    operation:
        What it is for: the same key of another operation is another key.
    content:
        What the request says: a request with the key must say the same again.
    in_body:
        The key in its body; the header takes precedence.

    Raises
    ------
    InvalidRequest
        The key is malformed.

    Spec: ojs-bulk-operations 10
    """
    key = request.header(b"idempotency-key")
    if key is None and (key := in_body) is None:
        return None
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isprintable():
        raise InvalidRequest(
            f"Invalid idempotency key. Use 1 to {MAX_KEY_CHARS} printable characters.", field="idempotency_key"
        )
    return Key(operation, key, hashlib.sha256(content).hexdigest())


_BATCH: Final = _BatchFormat()
_BULK: Final = _BulkFormat()

_CANCEL: Final = "Cancel unfinished jobs by ``job_ids`` or ``filter``. Their workers are told at once."
_RETRY: Final = "Run discarded jobs and jobs that wait for a retry again, by ``job_ids`` or ``filter``."
_DELETE: Final = "Delete finished jobs permanently, by ``job_ids`` or ``filter``."

delete_batch: Final = _bulk_endpoint(Action.DELETE, _BATCH, "delete_batch", _DELETE)


def _steering_route(style: _AnswerFormat, family: str, action: Action, doc: str) -> Route:
    answer = BatchAnswer if style is _BATCH else BulkChangedAnswer
    handler = _bulk_endpoint(action, style, f"{action}_{family}", doc)
    return Route(
        "POST",
        f"{BASE}/jobs/{family}/{action}",
        handler,
        "Bulk",
        BulkSteeringBody,
        answer,
        more=(207, 422),
        large=True,
        needs=(Operation.ADMIN if action is Action.DELETE else Operation.CANCEL,),
    )


ROUTES: Final = (
    Route(
        "POST",
        f"{BASE}/jobs/batch",
        enqueue_batch,
        "Bulk",
        BatchSchema,
        EnqueuedBatchAnswer,
        201,
        (200, 207, 422),
        large=True,
        needs=ENQUEUE,
    ),
    Route(
        "POST",
        f"{BASE}/jobs/bulk",
        enqueue_bulk,
        "Bulk",
        BatchSchema,
        BulkEnqueuedAnswer,
        201,
        (207, 422),
        large=True,
        needs=ENQUEUE,
    ),
    *(
        _steering_route(style, family, action, doc)
        for family, style in (("batch", _BATCH), ("bulk", _BULK))
        for action, doc in ((Action.CANCEL, _CANCEL), (Action.RETRY, _RETRY), (Action.DELETE, _DELETE))
    ),
    Route(
        "DELETE", f"{BASE}/jobs/batch", delete_batch, "Bulk", BulkSteeringBody, BatchAnswer, more=(207, 422), large=True
    ),
)
