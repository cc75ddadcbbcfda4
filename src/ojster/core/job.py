"""A job as it is stored: the row that every capability works with."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.outcome import SKIPPED, Outcome, outcome_of
from ojster.core.states import FINISHED, JobState

NODE_BITS: Final = 20
"""Number of bits of a node's id that number it within its workflow; the others are the workflow's ``seq``."""


class Job(msgspec.Struct, gc=False):
    """A job as it is stored. Times are microseconds since the epoch, durations microseconds.

    ``envelope`` is the JSON object of the immutable attributes; the other fields are those that the engine uses.
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
    """The effect of resuming it, while it is suspended: see ``ojster.workflows.suspensions``."""
    reacts: int = 0
    """Bits of the events with reactions, and other flags: see ``ojster.events.reaction_rules``."""
    envelope: bytes = b"{}"
    moved: tuple[str | None, str] | None = None
    """Its last state change in this transaction, as (old, new), until an event reports it."""
    parent_results: bytes | None = None
    """Results of predecessor steps, as JSON; set when it is claimed."""
    checkpoint: bytes | None = None
    """Last checkpoint of an earlier attempt, as JSON with ``state`` and ``sequence``; set when it is claimed."""
    resumed: bytes | None = None
    """Data with which it was resumed, as JSON; set when it is claimed."""

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of the last failed attempt; ``None`` if there was none or the job succeeded after it."""
        if self.errors is None or self.state == JobState.COMPLETED:
            return None
        last: dict[str, Any] = msgspec.json.decode(_raw_list(self.errors)[-1])
        return last

    @property
    def workflow(self) -> int | None:
        """The ``seq`` of the workflow of a step; ``None``: the job is no step."""
        return None if self.node is None else self.node >> NODE_BITS

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the job; ``None`` if it has not finished or was cancelled."""
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


class _Contents(msgspec.Struct):
    args: list[Any]
    meta: dict[str, Any] = {}


_contents: Final = msgspec.json.Decoder(_Contents).decode
_raw_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
