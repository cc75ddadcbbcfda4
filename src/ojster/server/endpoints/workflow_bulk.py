"""Endpoints for bulk operations on workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from ojster.jobs.idempotency import StoredReply
from ojster.jobs.sweeps import Sweep
from ojster.server.answer import Answer, UnchangedAnswer, encode
from ojster.server.declared import endpoints_of
from ojster.server.endpoints.bulk import key_of
from ojster.server.request import Handler, HttpRequest
from ojster.workflows.bulk_wire import (
    BULK_WORKFLOWS,
    CANCEL_WORKFLOWS,
    FORK_WORKFLOWS,
    PIN_WORKFLOWS,
    BulkWorkflowsAnswer,
    BulkWorkflowsBody,
)
from ojster.workflows.calls import WorkflowBulkCalls
from ojster.workflows.filters import narrowing_workflow_filter_of


def _bulk_endpoint(method: Callable[..., Awaitable[Sweep]], decoder: msgspec.json.Decoder[Any]) -> Handler:
    """Return an endpoint for all workflows that match a filter; a repeated key gets the first answer."""
    name = method.__name__

    async def handle(request: HttpRequest) -> Answer:
        raw = await request.body()
        body: BulkWorkflowsBody = request.decode(raw, decoder)
        chosen = narrowing_workflow_filter_of(body.filter)
        options = {name: getattr(body, name) for name in body.__struct_fields__ if name not in _OF_ALL}
        call = getattr(request.service.workflow_bulk, name)

        async def answer() -> StoredReply:
            sweep = await call(chosen, dry_run=body.dry_run, **options)
            return StoredReply(200, encode(BulkWorkflowsAnswer.of(sweep)))

        if body.dry_run:
            return UnchangedAnswer((await answer()).body)
        key = key_of(request, f"workflows.{name}", raw, body.idempotency_key)
        return Answer((await request.service.bulk.answer_once(key, answer)).body)

    return handle


_OF_ALL: Final = BulkWorkflowsBody.__struct_fields__

ROUTES: Final = endpoints_of(
    WorkflowBulkCalls,
    lambda service: service.workflow_bulk,
    {
        WorkflowBulkCalls.cancel: _bulk_endpoint(WorkflowBulkCalls.cancel, CANCEL_WORKFLOWS),
        WorkflowBulkCalls.retry: _bulk_endpoint(WorkflowBulkCalls.retry, BULK_WORKFLOWS),
        WorkflowBulkCalls.fork: _bulk_endpoint(WorkflowBulkCalls.fork, FORK_WORKFLOWS),
        WorkflowBulkCalls.hold: _bulk_endpoint(WorkflowBulkCalls.hold, BULK_WORKFLOWS),
        WorkflowBulkCalls.release: _bulk_endpoint(WorkflowBulkCalls.release, BULK_WORKFLOWS),
        WorkflowBulkCalls.pin: _bulk_endpoint(WorkflowBulkCalls.pin, PIN_WORKFLOWS),
        WorkflowBulkCalls.delete: _bulk_endpoint(WorkflowBulkCalls.delete, BULK_WORKFLOWS),
    },
)
