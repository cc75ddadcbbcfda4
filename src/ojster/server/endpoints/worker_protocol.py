"""Endpoints for jobs on workers: fetch them, and report their outcomes.

Spec: ojs-http-binding 10, ojs-worker-protocol
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from ojster.core.access import DEQUEUE
from ojster.core.errors import InvalidRequest, OjsterError
from ojster.core.job import Job
from ojster.core.parsing import read_value
from ojster.core.property_values import Changes
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import ChangesBody
from ojster.fleet.requirements import idle_capabilities, read_provided
from ojster.jobs.answer_wire import (
    AckedBatchAnswer,
    AcknowledgedAnswer,
    FailedAnswer,
    JobsAnswer,
    ReleasedAnswer,
    ResultsAnswer,
    show_failed,
    show_released,
)
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import parse_failure
from ojster.jobs.job_json import to_json
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.jobs.names import check_queue_name, read_type, refuse_reserved
from ojster.jobs.scope import accepted
from ojster.jobs.wire import (
    ACK,
    ACK_BATCH,
    ACK_JOB,
    FETCH,
    NACK,
    NACK_BATCH,
    NACK_JOB,
    RELEASE,
    RELEASE_BATCH,
    RELEASE_JOB,
    AckAndFetchBody,
    AckBatchBody,
    AckJobAndFetchBody,
    AckJobBody,
    FetchBody,
    NackBatchBody,
    NackBody,
    NackJobBody,
    ReleaseBatchBody,
    ReleaseBody,
    ReleaseJobBody,
)
from ojster.queues.fairness import MAX_FAIR_QUEUES, STRICT, Sharing
from ojster.server.answer import Answer, encode, number_that_fits
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route
from ojster.workflows.wire import PropertiesBody


async def fetch(request: HttpRequest) -> Answer:
    """Claim jobs for a worker. With ``wait_ms``, wait up to that time if no job is available."""
    body = await request.read(FETCH)
    claim = _claim_of(request, body)
    if not body.wait_ms:
        jobs = await request.service.jobs.fetch(claim)
    else:
        jobs = await _fetch_until_disconnect(request, claim, body.wait_ms / 1000)
    return Answer(b'{"jobs":%b}' % _shown(request, jobs))


def _shown(request: HttpRequest, jobs: list[Job]) -> bytes:
    """Return claimed jobs as JSON, as many as fit into an answer; the others are given back."""
    shown = [to_json(job) for job in jobs]
    fitting = number_that_fits(shown)
    request.service.jobs.give_back(jobs[fitting:])
    return b"[%b]" % b",".join(shown[:fitting])


def _claim_of(request: HttpRequest, body: FetchBody) -> Claim:
    """Return what a worker asks for; warn it of capabilities that no job can require."""
    if body.capabilities:
        request.warn(*idle_capabilities(body.capabilities))
    if body.capabilities and body.worker_id is None:
        raise InvalidRequest(
            "'worker_id' is missing. It is required with 'capabilities', to track the resources in use.",
            field="worker_id",
        )
    for queue in body.queues:
        refuse_reserved(queue)
    return Claim(
        queues=tuple([check_queue_name(name) for name in body.queues]),
        count=body.count,
        worker_id=body.worker_id,
        lease=body.visibility_timeout_ms * 1000 if body.visibility_timeout_ms else None,
        sharing=_sharing(body) if body.strategy or body.weights else STRICT,
        provided=None if body.capabilities is None else read_provided(body.capabilities),
        types=None if body.job_types is None else types_of(body.job_types),
    )


def _sharing(body: FetchBody) -> Sharing:
    strategy = body.strategy or "weighted"
    if strategy != "strict" and len(body.queues) > MAX_FAIR_QUEUES:
        raise InvalidRequest(f"Strategy {strategy} allows {MAX_FAIR_QUEUES} queues. Name fewer.", field="queues")
    return Sharing(strategy, tuple(sorted(body.weights.items())))


_DISCONNECT_LOOP_ITERATIONS: Final = 3
"""Number of event-loop iterations until a closed connection is noticed: read, close, report."""


async def _fetch_until_disconnect(request: HttpRequest, claim: Claim, wait: float) -> list[Job]:
    """Fetch jobs with a long poll that ends when the worker disconnects; its jobs are given back."""
    fetching = asyncio.create_task(request.service.jobs.fetch(claim, wait))
    gone = asyncio.create_task(request.gone())
    try:
        await asyncio.wait((fetching, gone), return_when=asyncio.FIRST_COMPLETED)
        if not fetching.done():
            return []
        return await _unless_gone(request, gone, await fetching)
    finally:
        fetching.cancel()
        gone.cancel()


async def _unless_gone(request: HttpRequest, gone: asyncio.Task[None], jobs: list[Job]) -> list[Job]:
    """Return jobs; give them back if the worker has disconnected meanwhile."""
    for _ in range(_DISCONNECT_LOOP_ITERATIONS if jobs else 0):
        await asyncio.sleep(0)
    if gone.done():
        request.service.jobs.give_back(jobs)
        return []
    return jobs


async def acknowledge(request: HttpRequest) -> Answer:
    """Complete a job. With ``fetch``, claim further ones in the same transaction."""
    body = await request.read(ACK)
    return await _acknowledge(request, _acknowledgement(body.job_id, body), body.fetch)


async def _acknowledge(request: HttpRequest, item: Acknowledgement, wanted: FetchBody | None) -> Answer:
    (outcome,), fetched = await _acknowledge_and_fetch(request, [item], wanted)
    if isinstance(outcome, OjsterError):
        if isinstance(fetched, list):
            request.service.jobs.give_back(fetched)
        raise outcome
    return Answer(_completed(outcome)[:-1] + _members_of(request, fetched) + b"}")


async def _acknowledge_and_fetch(
    request: HttpRequest, items: list[Acknowledgement], wanted: FetchBody | None
) -> tuple[list[Job | OjsterError], list[Job] | OjsterError | None]:
    """Complete jobs and claim what a worker wants after that, usually in the same transaction.

    Return the outcomes, and the jobs or why there are none; ``None``: none are wanted.
    """
    jobs = request.service.jobs
    if wanted is None:
        return await jobs.acknowledge(items), None
    if wanted.wait_ms:
        raise InvalidRequest(
            "'fetch.wait_ms' must be 0: an acknowledgement is answered at once.", field="fetch.wait_ms"
        )
    gone = asyncio.create_task(request.gone())
    try:
        outcomes, fetched = await jobs.acknowledge_and_fetch(items, _claim_of(request, wanted))
        return outcomes, await _unless_gone(request, gone, fetched) if isinstance(fetched, list) else fetched
    finally:
        gone.cancel()


def _members_of(request: HttpRequest, fetched: list[Job] | OjsterError | None) -> bytes:
    """Return the members of an answer for the jobs that were asked for with an acknowledgement."""
    if fetched is None:
        return b""
    if isinstance(fetched, OjsterError):
        return b',"jobs":[],"fetch_error":%b' % encode(fetched.to_wire())
    return b',"jobs":%b' % _shown(request, fetched)


def _acknowledgement(job_id: str, body: AckJobBody) -> Acknowledgement:
    result = None if body.result is UNSET else bytes(body.result)
    appended = tuple(map(bytes, body.append))
    changes = changes_of(body.properties)
    start = _start_of(body)
    return Acknowledgement(job_id, result, body.worker_id, body.attempt, appended, changes, body.result_file, start)


def _start_of(body: AckJobBody | NackJobBody | ReleaseJobBody) -> int | None:
    return None if body.started_at is None else parse_timestamp(body.started_at)


def changes_of(body: ChangesBody | PropertiesBody | None) -> Changes | None:
    """Return the requested changes of workflow properties, or ``None``."""
    return None if body is None else Changes(body.set, tuple(body.delete), body.expected)


def _completed(job: Job) -> bytes:
    at = format_timestamp(job.finished_at or 0)
    return (
        f'{{"acknowledged":true,"id":"{job.id}","job_id":"{job.id}","state":"completed","completed_at":"{at}",'
        f'"job":{{"id":"{job.id}","type":"{job.type}","queue":"{job.queue}","state":"completed","attempt":{job.attempt}}}}}'
    ).encode()


async def acknowledge_job(request: HttpRequest) -> Answer:
    """Complete the job in the path. With ``fetch``, claim further ones in the same transaction."""
    body = await request.read(ACK_JOB)
    return await _acknowledge(request, _acknowledgement(request.path["id"], body), body.fetch)


async def acknowledge_batch(request: HttpRequest) -> Answer:
    """Complete several jobs, each accepted or refused independently. With ``fetch``, claim further ones after that."""
    body = await request.read(ACK_BATCH)
    items = [_acknowledgement(ack.job_id, ack) for ack in body.acks]
    outcomes, fetched = await _acknowledge_and_fetch(request, items, body.fetch)
    return _batch(outcomes, _completed, _members_of(request, fetched))


async def fail(request: HttpRequest) -> Answer:
    """Report that a job failed, or hand it back with ``requeue``."""
    return await _fail(request, await request.read(NACK))


async def fail_job(request: HttpRequest) -> Answer:
    """Report that the job in the path failed, or hand it back with ``requeue``."""
    body = await request.read(NACK_JOB)
    report = NackBody(job_id=request.path["id"], **msgspec.structs.asdict(body))
    return await _fail(request, report)


async def _fail(request: HttpRequest, body: NackBody) -> Answer:
    service = request.service
    if body.requeue:
        (outcome,) = await service.jobs.release((_requeue(body),))
    else:
        (outcome,) = await service.jobs.fail((_failure_report(body),))
    return Answer(encode(show_failed(accepted(outcome))))


async def fail_batch(request: HttpRequest) -> Answer:
    """Report several failures, or hand several jobs back. Each report is accepted or refused independently."""
    body = await request.read(NACK_BATCH)
    service = request.service
    failed = [_failure_report(nack) for nack in body.nacks if not nack.requeue]
    released = [_requeue(nack) for nack in body.nacks if nack.requeue]
    failures, releases = await asyncio.gather(service.jobs.fail(failed), service.jobs.release(released))
    outcomes = [(releases if nack.requeue else failures).pop(0) for nack in body.nacks]
    return _batch(outcomes, _encoded(show_failed))


def _failure_report(body: NackBody) -> FailureReport:
    if body.error is None:
        raise InvalidRequest("'error' is missing. Describe why the job failed.", field="error")
    if "message" not in body.error:
        raise InvalidRequest("'error.message' is missing. Say in words why the job failed.", field="error.message")
    failure = parse_failure(body.error)
    changes = changes_of(body.properties)
    return FailureReport(body.job_id, failure, body.worker_id, body.attempt, changes, _start_of(body))


def _requeue(body: NackBody) -> Release:
    changes = changes_of(body.properties)
    delay = body.delay_ms * 1000
    return Release(body.job_id, body.worker_id, body.attempt, delay, changes=changes, started_at=_start_of(body))


async def release(request: HttpRequest) -> Answer:
    """Release a job: requeue it, suspend it, retry its workflow, or skip the rest of the workflow."""
    return await _release(request, await request.read(RELEASE))


async def release_job(request: HttpRequest) -> Answer:
    """Release the job in the path: requeue it, suspend it, retry its workflow, or skip the rest of the workflow."""
    body = await request.read(RELEASE_JOB)
    return await _release(request, ReleaseBody(job_id=request.path["id"], **msgspec.structs.asdict(body)))


async def _release(request: HttpRequest, body: ReleaseBody) -> Answer:
    (outcome,) = await request.service.jobs.release((_as_release(body),))
    return Answer(encode(show_released(accepted(outcome))))


async def release_batch(request: HttpRequest) -> Answer:
    """Release several jobs. Each release is accepted or refused independently."""
    body = await request.read(RELEASE_BATCH)
    return _batch(
        await request.service.jobs.release([_as_release(release) for release in body.releases]), _encoded(show_released)
    )


def _as_release(body: ReleaseBody) -> Release:
    if body.result is not UNSET:
        read_value(body.result, "result")
    return Release(
        body.job_id,
        body.worker_id,
        body.attempt,
        body.delay_ms * 1000,
        body.then,
        not_before=None if body.not_before is None else parse_timestamp(body.not_before),
        again=body.again,
        deadline=None if body.deadline is None else parse_timestamp(body.deadline),
        wait=None if body.wait_ms is None else body.wait_ms * 1000,
        result=None if body.result is UNSET else bytes(body.result),
        changes=changes_of(body.properties),
        started_at=_start_of(body),
    )


def _encoded(show: Callable[[Job], msgspec.Struct]) -> Callable[[Job], bytes]:
    return lambda job: encode(show(job))


def _batch(outcomes: Sequence[Job | OjsterError], show: Callable[[Job], bytes], members: bytes = b"") -> Answer:
    results = [
        encode({"error": outcome.to_wire()}) if isinstance(outcome, OjsterError) else show(outcome)
        for outcome in outcomes
    ]
    return Answer(b'{"results":[%b]%b}' % (b",".join(results), members))


def types_of(entries: Sequence[str]) -> tuple[str, ...]:
    """Return the job types that a worker has handlers for, sorted, without duplicates and versions.

    Raises
    ------
    InvalidRequest
        One is not a job type.
    """
    return tuple(sorted({read_type(encode(type.partition("@")[0])) for type in entries}))


ROUTES: Final = (
    Route("POST", f"{BASE}/workers/fetch", fetch, "Workers", FetchBody, JobsAnswer, needs=DEQUEUE),
    Route(
        "POST",
        f"{BASE}/workers/ack",
        acknowledge,
        "Workers",
        AckAndFetchBody,
        AcknowledgedAnswer,
        large=True,
        needs=DEQUEUE,
    ),
    Route(
        "POST",
        f"{BASE}/workers/ack/batch",
        acknowledge_batch,
        "Workers",
        AckBatchBody,
        AckedBatchAnswer,
        large=True,
        needs=DEQUEUE,
    ),
    Route("POST", f"{BASE}/workers/nack", fail, "Workers", NackBody, FailedAnswer, needs=DEQUEUE),
    Route(
        "POST",
        f"{BASE}/workers/nack/batch",
        fail_batch,
        "Workers",
        NackBatchBody,
        ResultsAnswer,
        large=True,
        needs=DEQUEUE,
    ),
    Route(
        "POST", f"{BASE}/workers/release", release, "Workers", ReleaseBody, ReleasedAnswer, large=True, needs=DEQUEUE
    ),
    Route(
        "POST",
        f"{BASE}/workers/release/batch",
        release_batch,
        "Workers",
        ReleaseBatchBody,
        ResultsAnswer,
        large=True,
        needs=DEQUEUE,
    ),
    Route(
        "POST",
        f"{BASE}/jobs/{{id}}/ack",
        acknowledge_job,
        "Workers",
        AckJobAndFetchBody,
        AcknowledgedAnswer,
        large=True,
        needs=DEQUEUE,
    ),
    Route("POST", f"{BASE}/jobs/{{id}}/nack", fail_job, "Workers", NackJobBody, FailedAnswer, needs=DEQUEUE),
    Route(
        "POST",
        f"{BASE}/jobs/{{id}}/release",
        release_job,
        "Workers",
        ReleaseJobBody,
        ReleasedAnswer,
        large=True,
        needs=DEQUEUE,
    ),
)
