"""``JobInfo``: a job as people read it, with values instead of JSON and times instead of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

import msgspec

from ojster.core.job import Job
from ojster.core.states import FINISHED
from ojster.jobs.progress import progress_of


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was last fetched. Values that it does not have are ``None``.

    Parameters
    ----------
    id, type, queue, state, priority:
        Id, job type, queue, state (as in ``JobState``) and priority.
    args, meta:
        Arguments and metadata, as JSON values.
    attempt, max_attempts:
        Number of the current or last attempt, and the maximum number.
    progress, message:
        Last progress, from 0 to 1, and its text.
    result:
        Result, as a JSON value.
    error, errors:
        Error of the last failed attempt, and those of all: ``type``, ``message``, ``attempt``, ``backtrace``, …
    created_at, started_at, finished_at:
        Times at which it was created, last started, and finished.
    next_at:
        Time of the next attempt, or at which it was scheduled.
    worker_id:
        Worker of the current or last attempt.
    tenant:
        Tenant; the empty string: none.

    Examples
    --------
    >>> from ojster import App
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("email.send")
    ... def send(to: str) -> None: ...
    >>> info = send.enqueue("ada@example.com").info
    >>> info.args, info.is_finished, info.created_at.tzname()
    (['ada@example.com'], False, 'UTC')
    >>> app.close()
    """

    id: str
    type: str
    queue: str
    state: str
    priority: int
    args: list[Any]
    meta: dict[str, Any]
    attempt: int
    max_attempts: int
    progress: float | None = None
    message: str | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    errors: tuple[dict[str, Any], ...] = ()
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    next_at: datetime | None = None
    worker_id: str | None = None
    tenant: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the job is completed, cancelled or discarded."""
        return self.state in FINISHED

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what the job has, for rich and IPython."""
        return list(self._shown())

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td>{escape(str(value))}</td></tr>"
            for name, value in self._shown()
        )
        return f"<table>{rows}</table>"

    def _shown(self) -> Iterator[tuple[str, Any]]:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value not in (None, "", (), {}) and (name, self.error) != ("errors", None):
                yield name, value


def info_of(job: Job) -> JobInfo:
    """Return a job as people read it."""
    progress = progress_of(job)
    return JobInfo(
        id=job.id,
        type=job.type,
        queue=job.queue,
        state=job.state,
        priority=job.priority,
        args=job.args,
        meta=job.meta,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        progress=None if progress is None else progress.progress,
        message=None if progress is None else progress.message,
        result=None if job.result is None else msgspec.json.decode(job.result),
        error=job.error,
        errors=() if job.errors is None else tuple(msgspec.json.decode(job.errors)),
        created_at=_time(job.created_at) or _EPOCH,
        started_at=_time(job.started_at),
        finished_at=_time(job.finished_at),
        next_at=_time(job.due_at) if job.state in _WAITING else None,
        worker_id=job.worker_id,
        tenant=job.tenant,
    )


_WAITING: Final = ("scheduled", "retryable")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime.fromtimestamp(microseconds / 1e6, UTC)
