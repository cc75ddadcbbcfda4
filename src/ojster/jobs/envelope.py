"""How does a job look to the outside? A stored job, and its JSON (ojs-json-format.md, ojs-core.md section 5)."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ojster.agents.attributes import decode_state
from ojster.core.outcome import SKIPPED, Outcome, outcome_of
from ojster.core.states import FINISHED, JobState
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.jobs.retry import DEFAULT_RETRY, RetryPolicy, parse_retry_policy


class Job(msgspec.Struct, gc=False):
    """A job as it is stored. Times are microseconds since the epoch, durations microseconds.

    ``envelope`` is the JSON object of all that never changes; the other fields are what the engine works with.
    """

    seq: int
    id: str
    type: str
    queue: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    created_at: int
    enqueued_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    expires_at: int | None = None
    due_at: int | None = None
    timeout: int | None = None
    lease: int | None = None
    retry_delay: int | None = None
    worker_id: str | None = None
    unique_key: str | None = None
    cron_name: str | None = None
    exclusive_key: str | None = None
    dead: int = 0
    progress: bytes | None = None
    result: bytes | None = None
    errors: bytes | None = None
    node: int | None = None
    superseded_by: str | None = None
    error_type: str | None = None
    checkpoint_number: int = 0
    limit_key: str | None = None
    tenant: str = ""
    version: int | None = None
    needs: str | None = None
    agent: bytes | None = None
    hold: str | None = None
    """What becomes of it when it is resumed, if it waits for that: see ``ojster.workflows.suspensions``."""
    reacts: int = 0
    """To which events there are reactions: see ``ojster.events.reaction_rules``."""
    envelope: bytes = b"{}"
    moved: tuple[str | None, str] | None = None
    """From which state, and into which, it was put in this transaction, if nobody was told of that yet."""
    parent_results: bytes | None = None
    """What a job of a workflow is given of the results of others: JSON, put together when it is handed out."""
    checkpoint: bytes | None = None
    """What an attempt before this one has saved: JSON, with ``state`` and ``sequence``; given when it is handed out."""
    resumed: bytes | None = None
    """What it was resumed with, as JSON; given when it is handed out."""

    @classmethod
    def from_json(cls, raw: bytes) -> Job:
        """Return the job that a server described in JSON; the inverse of ``to_json``, as far as the JSON says it."""
        seen = _seen(raw)
        return cls(
            seq=0,
            id=seen.id,
            type=seen.type,
            queue=seen.queue,
            state=seen.state,
            priority=seen.priority,
            attempt=seen.attempt,
            max_attempts=seen.max_attempts,
            created_at=parse_timestamp(seen.created_at) if seen.created_at else 0,
            enqueued_at=_moment(seen.enqueued_at),
            started_at=_moment(seen.started_at),
            finished_at=_moment(seen.completed_at or seen.cancelled_at or seen.discarded_at),
            due_at=_moment(seen.next_attempt_at),
            timeout=seen.micros_to_run,
            lease=seen.visibility_timeout_ms * 1000 if seen.visibility_timeout_ms else None,
            retry_delay=None if seen.retry_delay_ms is None else seen.retry_delay_ms * 1000,
            worker_id=seen.worker_id,
            progress=_bytes(seen.progress),
            result=_bytes(seen.result),
            errors=_bytes(seen.errors),
            superseded_by=seen.superseded_by,
            hold=SKIPPED if seen.outcome == Outcome.SKIPPED else None,
            envelope=raw,
            parent_results=_bytes(seen.parent_results),
            checkpoint=_bytes(seen.checkpoint),
            resumed=_bytes(seen.resumed),
        )

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of the last failed attempt; ``None`` if there was none or the job succeeded after it."""
        if self.errors is None or self.state == JobState.COMPLETED:
            return None
        last: dict[str, Any] = msgspec.json.decode(_raw_list(self.errors)[-1])
        return last

    @property
    def outcome(self) -> Outcome | None:
        """How it has ended, in one word; ``None``: it has not, or was cancelled."""
        if self.finished_at is None and self.state not in FINISHED:
            return None
        error = bytes(_raw_list(self.errors)[-1]) if self.errors else None
        return outcome_of(self.state, error, skipped=self.hold == SKIPPED)

    @property
    def args(self) -> list[Any]:
        """The positional arguments, decoded."""
        return _contents(self.envelope).args

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata, decoded."""
        return _contents(self.envelope).meta

    @property
    def retry(self) -> RetryPolicy:
        """The retry policy, completed with the defaults."""
        given = _retry(self.envelope).retry
        return DEFAULT_RETRY if given is None else parse_retry_policy(given)

    def to_json(self) -> bytes:
        """Return the job as a JSON object with all its attributes."""
        tail = (
            f',"queue":"{self.queue}","state":"{self.state}","priority":{self.priority},"attempt":{self.attempt},'
            f'"max_attempts":{self.max_attempts},"created_at":"{format_timestamp(self.created_at)}"'
        )
        if self.enqueued_at is not None:
            tail += f',"enqueued_at":"{format_timestamp(self.enqueued_at)}"'
        if self.started_at is not None:
            tail += f',"started_at":"{format_timestamp(self.started_at)}"'
        if self.finished_at is not None:
            tail += self._end()
        if self.retry_delay is not None:
            tail += f',"retry_delay_ms":{self.retry_delay // 1000}'
            if self.state == JobState.RETRYABLE and self.due_at is not None:
                tail += f',"next_attempt_at":"{format_timestamp(self.due_at)}"'
        if self.cron_name is not None:
            tail += f',"cron_name":"{called(self.cron_name)}"'
        body = self.envelope[:-1] + tail.encode()
        if self.worker_id is not None:
            body += b',"worker_id":' + msgspec.json.encode(called(self.worker_id))
        if self.progress is not None:
            body += b',"progress":' + self.progress
        if self.errors is not None:
            body += b',"errors":' + self.errors
            if self.state != JobState.COMPLETED:
                body += b',"error":' + bytes(_raw_list(self.errors)[-1])
        if self.result is not None:
            body += b',"result":' + self.result
        if (outcome := self.outcome) is not None:
            body += b',"outcome":"%b"' % outcome.encode()
        if self.superseded_by is not None:
            body += b',"superseded_by":"%b"' % self.superseded_by.encode()
        if self.parent_results is not None:
            body += b',"parent_results":' + self.parent_results
        if self.checkpoint is not None:
            body += b',"checkpoint":' + self.checkpoint
        if self.resumed is not None:
            body += b',"resumed":' + self.resumed
        if self.agent is not None:
            body += decode_state(self.agent).to_json()
        return body + b"}"

    def _end(self) -> str:
        """When it ended. A job that never ran has no ``completed_at``, nor has a cancelled one."""
        at = format_timestamp(self.finished_at or 0)
        if self.state == JobState.CANCELLED:
            return f',"cancelled_at":"{at}"'
        completed = f',"completed_at":"{at}"' if self.started_at is not None else ""
        return completed + f',"discarded_at":"{at}"' * (self.state == JobState.DISCARDED)


class _Contents(msgspec.Struct):
    args: list[Any]
    meta: dict[str, Any] = {}


class _Retry(msgspec.Struct):
    retry: dict[str, Any] | None = None


class _Seen(msgspec.Struct):
    """What a client needs to know of a job's JSON."""

    id: str
    type: str = ""
    queue: str = "default"
    state: str = ""
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
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
    visibility_timeout_ms: int | None = None
    worker_id: str | None = None
    progress: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    errors: msgspec.Raw | UnsetType = UNSET
    superseded_by: str | None = None
    outcome: str | None = None
    parent_results: msgspec.Raw | UnsetType = UNSET
    checkpoint: msgspec.Raw | UnsetType = UNSET
    resumed: msgspec.Raw | UnsetType = UNSET

    @property
    def micros_to_run(self) -> int | None:
        """For how long the job may run, in microseconds, if it says so."""
        if self.ext_ml_timeout_seconds:
            return self.ext_ml_timeout_seconds * 1_000_000
        if self.timeout_ms:
            return self.timeout_ms * 1000
        return self.timeout * 1_000_000 if self.timeout else None


def _bytes(raw: msgspec.Raw | UnsetType) -> bytes | None:
    return None if raw is UNSET else bytes(raw)


def _moment(text: str | None) -> int | None:
    return None if text is None else parse_timestamp(text)


_seen: Final = msgspec.json.Decoder(_Seen).decode
_retry: Final = msgspec.json.Decoder(_Retry).decode
_contents: Final = msgspec.json.Decoder(_Contents).decode
_raw_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
