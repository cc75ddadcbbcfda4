"""The JSON of a job (ojs-json-format; ojs-core 5)."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ojster.core.durations import micros_of
from ojster.core.job import Job, last_error
from ojster.core.outcome import SKIPPED, Outcome
from ojster.core.states import JobState
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp, parse_optional, parse_timestamp
from ojster.jobs.attributes import readers
from ojster.jobs.expiration import NEVER_EXPIRES_AT
from ojster.jobs.policy_wire import parse_retry_policy
from ojster.jobs.retry import DEFAULT_RETRY, RetryPolicy


def from_json(raw: bytes) -> Job:
    """Return the job that a server described in JSON; the inverse of ``to_json``, as far as the JSON says it."""
    seen = _seen(raw)
    return Job(
        seq=0,
        id=seen.id,
        type=seen.type,
        queue=seen.queue,
        state=seen.state,
        priority=seen.priority,
        attempt=seen.attempt,
        max_attempts=seen.max_attempts,
        created_at=parse_timestamp(seen.created_at) if seen.created_at else 0,
        enqueued_at=parse_optional(seen.enqueued_at),
        started_at=parse_optional(seen.started_at),
        finished_at=parse_optional(seen.completed_at or seen.cancelled_at or seen.discarded_at),
        due_at=parse_optional(seen.next_attempt_at),
        timeout=seen.micros_to_run,
        lease=seen.lease,
        retry_delay=None if seen.retry_delay_ms is None else seen.retry_delay_ms * 1000,
        worker_id=seen.worker_id,
        progress=_bytes(seen.progress),
        result=_bytes(seen.result),
        errors=_bytes(seen.errors),
        superseded_by=seen.superseded_by,
        losses=seen.losses,
        tenant=seen.tenant,
        suspension=SKIPPED if seen.outcome == Outcome.SKIPPED else None,
        envelope=raw,
        parent_results=_bytes(seen.parent_results),
        checkpoint=_bytes(seen.checkpoint),
        resumed=_bytes(seen.resumed),
    )


def retry_policy(job: Job) -> RetryPolicy:
    """The retry policy, completed with the defaults."""
    policy = _retry(job.envelope).retry
    return DEFAULT_RETRY if policy is None else parse_retry_policy(policy)


def to_json(job: Job) -> bytes:
    """Return the job as a JSON object with all its attributes."""
    return job.envelope[:-1] + _columns(job).encode() + _values(job) + b"}"


def _columns(job: Job) -> str:
    """Return the members for the columns of a job."""
    tail = (
        f',"queue":"{job.queue}","state":"{job.state}","priority":{job.priority},"attempt":{job.attempt},'
        f'"max_attempts":{job.max_attempts},"created_at":"{format_timestamp(job.created_at)}"'
    )
    if job.enqueued_at is not None:
        tail += f',"enqueued_at":"{format_timestamp(job.enqueued_at)}"'
    if job.started_at is not None:
        tail += f',"started_at":"{format_timestamp(job.started_at)}"'
    if job.finished_at is not None:
        tail += _end(job)
    if job.retry_delay is not None:
        tail += f',"retry_delay_ms":{job.retry_delay // 1000}'
    if job.state in (JobState.RETRYABLE, JobState.SCHEDULED) and job.due_at is not None:
        tail += f',"next_attempt_at":"{format_timestamp(job.due_at)}"'
    if job.losses:
        tail += f',"losses":{job.losses}'
    if job.cron_name is not None:
        tail += f',"cron_name":"{called(job.cron_name)}"'
    return tail


def _values(job: Job) -> bytes:
    """Return the members that workers and capabilities have stored with a job, most of them as JSON."""
    body = b""
    if job.worker_id is not None:
        body += b',"worker_id":' + msgspec.json.encode(called(job.worker_id))
    if job.progress is not None:
        body += b',"progress":' + job.progress
    if job.errors is not None:
        body += b',"errors":' + job.errors
        if job.state != JobState.COMPLETED:
            body += b',"error":' + bytes(last_error(job.errors))
    if (outcome := job.outcome) is not None:
        body += b',"outcome":"%b"' % outcome.encode()
    if job.superseded_by is not None:
        body += b',"superseded_by":"%b"' % job.superseded_by.encode()
    if job.result is not None:
        body += b',"result":' + job.result + _stored(job)
    if job.parent_results is not None:
        body += b',"parent_results":' + job.parent_results
    if job.checkpoint is not None:
        body += b',"checkpoint":' + job.checkpoint
    if job.resumed is not None:
        body += b',"resumed":' + job.resumed
    if job.agent is not None:
        body += b"".join(reader.show(job) for reader in readers().readers)
    return body


def _stored(job: Job) -> bytes:
    """Return the members that say when a result was stored, its size, and when it is deleted, if the job says so.

    Spec: ojs-results 6.2
    """
    if job.state != JobState.COMPLETED:
        return b""
    at, size = format_timestamp(job.finished_at or 0), len(job.result or b"")
    stored = f',"result_stored_at":"{at}","result_size_bytes":{size}'
    if job.due_at is not None and job.due_at < NEVER_EXPIRES_AT:
        stored += f',"result_expires_at":"{format_timestamp(job.due_at)}"'
    return stored.encode()


def _end(job: Job) -> str:
    """When it ended. A job that never ran has no ``completed_at``, nor has a cancelled one."""
    at = format_timestamp(job.finished_at or 0)
    if job.state == JobState.CANCELLED:
        return f',"cancelled_at":"{at}"'
    completed = f',"completed_at":"{at}"' if job.started_at is not None else ""
    return completed + f',"discarded_at":"{at}"' * (job.state == JobState.DISCARDED)


class _Retry(msgspec.Struct):
    retry: dict[str, Any] | None = None


class _Seen(msgspec.Struct):
    """The members of a job's JSON that a client reads."""

    id: str
    type: str = ""
    queue: str = "default"
    state: str = ""
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    losses: int = 0
    created_at: str | None = None
    enqueued_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    cancelled_at: str | None = None
    discarded_at: str | None = None
    next_attempt_at: str | None = None
    retry_delay_ms: int | None = None
    timeout: int | None = None
    timeout_ms: int | None = None
    ext_ml_timeout_seconds: int | None = None
    visibility_timeout: int | None = None
    visibility_timeout_ms: int | None = None
    heartbeat_timeout: int | None = None
    worker_id: str | None = None
    progress: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    errors: msgspec.Raw | UnsetType = UNSET
    superseded_by: str | None = None
    outcome: str | None = None
    parent_results: msgspec.Raw | UnsetType = UNSET
    checkpoint: msgspec.Raw | UnsetType = UNSET
    resumed: msgspec.Raw | UnsetType = UNSET
    meta: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def tenant(self) -> str:
        """The tenant, which the metadata names; other servers may have something else under this name."""
        if b'"tenant_id"' not in bytes(self.meta):
            return ""
        meta = msgspec.json.decode(self.meta)
        owner = meta.get("tenant_id") if isinstance(meta, dict) else None
        return owner if isinstance(owner, str) else ""

    @property
    def lease(self) -> int | None:
        """The lease that the job sets, in microseconds; ``None`` if it sets none."""
        visible = micros_of(self.visibility_timeout_ms, self.visibility_timeout)
        silent = micros_of(None, self.heartbeat_timeout)
        return min((lease for lease in (visible, silent) if lease is not None), default=None)

    @property
    def micros_to_run(self) -> int | None:
        """The timeout of the job, in microseconds; ``None`` if it has none."""
        return micros_of(None, self.ext_ml_timeout_seconds) or micros_of(self.timeout_ms, self.timeout)


def _bytes(raw: msgspec.Raw | UnsetType) -> bytes | None:
    return None if raw is UNSET else bytes(raw)


_seen: Final = msgspec.json.Decoder(_Seen).decode
_retry: Final = msgspec.json.Decoder(_Retry).decode
