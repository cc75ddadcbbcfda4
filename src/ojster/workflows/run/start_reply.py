"""What is kept of the answer to a request that starts a workflow, for those who repeat it: the id alone."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.jobs.idempotency import StoredReply

_encode: Final = msgspec.json.Encoder().encode


class StartedWorkflow(msgspec.Struct):
    """The id of the workflow."""

    id: str


class StartReply(msgspec.Struct):
    """What an answer says of the workflow that was started."""

    workflow: StartedWorkflow


def id_alone(id: str) -> StoredReply:
    """Return the answer that has the id of a workflow alone."""
    return StoredReply(201, _encode(StartReply(StartedWorkflow(id))))
