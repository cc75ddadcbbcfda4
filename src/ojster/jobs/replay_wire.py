"""The JSON of checkpoints as the durable contexts of the Python and JavaScript SDKs save and read them.

Such a checkpoint is stored as the state of an ordinary one, so that it also appears at ``/jobs/{id}/checkpoint``.
"""

from __future__ import annotations

from typing import Final, Self

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ojster.core.wire import Count, FromWorker, Json
from ojster.jobs.checkpoints import Checkpoint


class ReplayCheckpointBody(FromWorker, Struct):
    """The saved state of a handler, the number of its step, and data of the SDK, such as what it replays."""

    state: Raw
    step_index: Count | None = None
    metadata: dict[str, Json] | None = None

    def stored(self) -> bytes:
        """Return the state to store."""
        return msgspec.json.encode(self)


class ReplayCheckpointInfo(Struct):
    """A checkpoint as it was saved. One that was saved in another way has a ``state`` alone."""

    state: Raw
    step_index: Count | None = None
    metadata: dict[str, Json] | None = None


class ReplayAnswer(Struct):
    """Whether a job has a checkpoint, and which."""

    has_checkpoint: bool
    checkpoint: ReplayCheckpointInfo | UnsetType = UNSET

    @classmethod
    def of(cls, saved: Checkpoint | None) -> Self:
        """Return the answer that shows a checkpoint; ``None``: there is none."""
        if saved is None:
            return cls(False)
        try:
            replay = _STORED.decode(saved.state)
        except msgspec.ValidationError:  # it was saved in another way
            return cls(True, ReplayCheckpointInfo(Raw(saved.state)))
        return cls(True, ReplayCheckpointInfo(replay.state, replay.step_index, replay.metadata))


class _StoredReplay(Struct, forbid_unknown_fields=True):
    """What ``ReplayCheckpointBody`` stores: it always has all members, and no other."""

    state: Raw
    step_index: Count | None
    metadata: dict[str, Json] | None


_STORED: Final = msgspec.json.Decoder(_StoredReplay)

REPLAY_CHECKPOINT: Final = msgspec.json.Decoder(ReplayCheckpointBody)
