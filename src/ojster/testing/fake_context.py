"""``FakeContext``: a context for handlers that tests call directly."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from ojster.core.declared_options import PositiveCount, checks_options
from ojster.core.job import Job
from ojster.core.values import to_json
from ojster.handlers.context import JobContext
from ojster.handlers.stop_signal import StopSignal

R = TypeVar("R")


class FakeContext(JobContext):
    """A ``JobContext`` without a worker: it remembers what the handler reports.

    What needs a database, such as collections, is not there; test it with ``JobTester``.

    Parameters
    ----------
    type, args, meta, attempt, max_attempts:
        What the job has; by default it is the first of 3 attempts of a job without arguments.
    restored:
        The last checkpoint of an earlier attempt; none by default.

    Attributes
    ----------
    progress_reports:
        The reports, as fraction and message.
    progress_data:
        The data of each report; empty if it has none.
    checkpoints, notes:
        What was saved.

    Examples
    --------
    >>> from ojster import App, JobContext
    >>> from ojster.testing import FakeContext
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("import")
    ... def import_rows(context: JobContext, rows: int) -> int:
    ...     context.progress(1, rows)
    ...     return context.attempt
    >>> context = FakeContext(attempt=2)
    >>> import_rows(context, 4), context.progress_reports
    (2, [(0.25, None)])
    >>> app.close()
    """

    @checks_options
    def __init__(
        self,
        type: str = "test.job",
        *,
        args: list[Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        attempt: PositiveCount = 1,
        max_attempts: PositiveCount = 3,
        restored: Any = None,
    ) -> None:
        envelope = msgspec.json.encode({"args": args or [], "meta": meta or {}})
        self.job = Job(
            seq=1,
            id="00000000-0000-7000-8000-000000000000",
            type=type,
            queue="default",
            state="active",
            priority=0,
            attempt=attempt,
            max_attempts=max_attempts,
            created_at=0,
            envelope=envelope,
        )
        self.worker_id = "worker_of_test"
        self._stop = StopSignal()
        self._restored = restored
        self.progress_reports: list[tuple[float, str | None]] = []
        self.progress_data: list[dict[str, Any]] = []
        self.checkpoints: list[Any] = []
        self.notes: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        """Say what a context without a worker lacks."""
        raise AttributeError(f"A FakeContext has no {name!r}, which needs a worker. Run the job with a JobTester.")

    def progress(
        self, done: float, total: float = 1.0, message: str | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """Remember a report."""
        self.progress_data.append(msgspec.json.decode(to_json(dict(data or {}))))
        self.progress_reports.append((min(1.0, max(0.0, done / total)) if total else 1.0, message))

    def restored(self, default: Any = None) -> Any:
        """Return the checkpoint that the test has given, or ``default``."""
        return default if self._restored is None else self._restored

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R:
        """Run a call to its end here: those of this context wait for nothing."""
        try:
            call.send(None)
        except StopIteration as ended:
            result: R = ended.value
            return result
        call.close()
        raise RuntimeError("This call needs a worker. Run the job with a JobTester.")

    async def acheckpoint(self, state: Any) -> None:
        """Remember a checkpoint."""
        self.checkpoints.append(msgspec.json.decode(to_json(state)))

    async def anote(self, note: Any) -> None:
        """Remember a note."""
        self.notes.append(msgspec.json.decode(to_json(note)))

    async def aheartbeat(self) -> None:
        """Do nothing."""
