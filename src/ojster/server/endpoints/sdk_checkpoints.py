"""Endpoints for checkpoints at the addresses that the Python and JavaScript SDKs use, with the prefix twice."""

from __future__ import annotations

from typing import Final

from ojster.core.access import CANCEL_OR_DEQUEUE, DEQUEUE
from ojster.core.errors import NotFound
from ojster.core.parsing import read_value
from ojster.jobs.answer_wire import CheckpointAnswer, DeletedCheckpointAnswer
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.replay_wire import REPLAY_CHECKPOINT, ReplayAnswer, ReplayCheckpointBody
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.jobs import clear_checkpoint
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def save_replay_checkpoint(request: HttpRequest) -> Answer:
    """Save a checkpoint with its step and the data of the SDK; ``/jobs/{id}/checkpoint`` shows all of it as state."""
    body = await request.read(REPLAY_CHECKPOINT)
    read_value(body.state, "state")
    saved = await request.service.jobs.save_checkpoint(NewCheckpoint(request.path["id"], body.stored()))
    return Answer(encode(CheckpointAnswer.of(saved)))


async def show_replay_checkpoint(request: HttpRequest) -> Answer:
    """Show whether a job has a checkpoint, and which."""
    job = await request.service.jobs.find(request.path["id"])
    try:
        saved = await request.service.jobs.find_checkpoint(job.id)
    except NotFound:
        saved = None
    return Answer(encode(ReplayAnswer.of(saved)))


_ONE: Final = f"{BASE}{BASE}/checkpoints/{{id}}"
_TAG: Final = "Jobs"

ROUTES: Final = (
    Route(
        "POST", _ONE, save_replay_checkpoint, _TAG, ReplayCheckpointBody, CheckpointAnswer, large=True, needs=DEQUEUE
    ),
    Route("GET", f"{_ONE}/resume", show_replay_checkpoint, _TAG, answer=ReplayAnswer),
    Route("DELETE", _ONE, clear_checkpoint, _TAG, answer=DeletedCheckpointAnswer, needs=CANCEL_OR_DEQUEUE),
)
