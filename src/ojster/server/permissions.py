"""The operations that a caller needs for each endpoint.

An endpoint that is not listed needs ``inspect`` if it is a GET for one workspace, and ``admin`` otherwise. A new
endpoint is therefore restricted by default.

Spec: ojs-security 7.2
"""

from __future__ import annotations

from typing import Final

from ojster.core.access import Operation

PUBLIC: Final = frozenset(
    {
        "/",
        "/dashboard",
        "/dashboard/{path:path}",
        "/docs",
        "/docs/start.js",
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-ui.css",
        "/health",
        "/ojs/manifest",
        "/openapi.json",
        "/ready",
        "/session",
        "/session/login",
        "/session/return",
    }
)
"""Paths that need no token."""

_ENQUEUE: Final = (Operation.ENQUEUE,)
_DEQUEUE: Final = (Operation.DEQUEUE,)
_CANCEL: Final = (Operation.CANCEL,)
_ADMIN: Final = (Operation.ADMIN,)
_INSPECT: Final = (Operation.INSPECT,)
_CANCEL_OR_DEQUEUE: Final = (Operation.CANCEL, Operation.DEQUEUE)
_MAKE: Final = (Operation.ENQUEUE, Operation.DEQUEUE, Operation.CANCEL)

OPERATIONS: Final[dict[str, tuple[Operation, ...]]] = {
    "GET /ping": tuple(Operation),
    "POST /jobs": _ENQUEUE,
    "POST /jobs/results": _INSPECT,
    "POST /jobs/batch": _ENQUEUE,
    "POST /jobs/bulk": _ENQUEUE,
    "POST /workflows": _ENQUEUE,
    "POST /cron": _ENQUEUE,
    "POST /crons": _ENQUEUE,
    "POST /cron/{name}/trigger": _ENQUEUE,
    "POST /crons/{name}/trigger": _ENQUEUE,
    "PUT /job-types/{type}": _ENQUEUE,
    "POST /workers/fetch": _DEQUEUE,
    "POST /workers/ack": _DEQUEUE,
    "POST /workers/ack/batch": _DEQUEUE,
    "POST /workers/nack": _DEQUEUE,
    "POST /workers/nack/batch": _DEQUEUE,
    "POST /workers/release": _DEQUEUE,
    "POST /workers/release/batch": _DEQUEUE,
    "POST /workers/heartbeat": _DEQUEUE,
    "POST /workers/beat": _DEQUEUE,
    "DELETE /workers/{id}": (Operation.DEQUEUE, Operation.ADMIN),
    "POST /jobs/{id}/ack": _DEQUEUE,
    "POST /jobs/{id}/nack": _DEQUEUE,
    "POST /jobs/{id}/release": _DEQUEUE,
    "PUT /jobs/{id}/progress": _DEQUEUE,
    "POST /workers/progress": _DEQUEUE,
    "PUT /jobs/{id}/checkpoint": _DEQUEUE,
    "POST /jobs/{id}/checkpoint": _DEQUEUE,
    "DELETE /jobs/{id}/checkpoint": _CANCEL_OR_DEQUEUE,
    "POST /jobs/{id}/agent/usage": _DEQUEUE,
    "POST /jobs/{id}/info": _CANCEL_OR_DEQUEUE,
    "POST /workflows/{id}/info": _CANCEL_OR_DEQUEUE,
    "POST /workflows/{id}/properties": _CANCEL_OR_DEQUEUE,
    "POST /workflows/{id}/items": _CANCEL_OR_DEQUEUE,
    "DELETE /workflows/{id}/items/{item}": _CANCEL_OR_DEQUEUE,
    "POST /collections/{name}/items": _CANCEL_OR_DEQUEUE,
    "DELETE /collections/{name}/items/{item}": _CANCEL_OR_DEQUEUE,
    "POST /jobs/{job}/items": _DEQUEUE,
    "DELETE /jobs/{job}/items/{item}": _DEQUEUE,
    "POST /files": _MAKE,
    "PUT /files": _MAKE,
    "PATCH /files/{id}": _MAKE,
    "GET /files/{id}": (*_MAKE, Operation.INSPECT),
    "PATCH /jobs/{id}": _CANCEL,
    "DELETE /jobs/{id}": _CANCEL,
    "POST /jobs/{id}/cancel": _CANCEL,
    "POST /jobs/{id}/activate": _CANCEL,
    "POST /jobs/batch/cancel": _CANCEL,
    "POST /jobs/batch/retry": _CANCEL,
    "POST /jobs/bulk/cancel": _CANCEL,
    "POST /jobs/bulk/retry": _CANCEL,
    "POST /dead-letter/{id}/retry": _CANCEL,
    "POST /dead-letter/retry": _CANCEL,
    "DELETE /workflows/{id}": _CANCEL,
    "POST /workflows/{id}/cancel": _CANCEL,
    "POST /workflows/{id}/retry": _CANCEL,
    "POST /workflows/{id}/hold": _CANCEL,
    "POST /workflows/{id}/release": _CANCEL,
    "POST /workflows/{id}/resume": _CANCEL,
    "POST /workflows/{id}/steps/{step}/cancel": _CANCEL,
    "POST /workflows/{id}/steps/{step}/dependencies": _CANCEL,
    "POST /workflows/{id}/steps/{step}/retry": _CANCEL,
    "GET /admin/attention": _INSPECT,
    "GET /admin/queues": _INSPECT,
    "GET /admin/queues/{name}": _INSPECT,
    "GET /admin/stats": _INSPECT,
    "GET /admin/stats/history": _INSPECT,
    "GET /admin/unrunnable": _INSPECT,
    "GET /admin/system/maintenance": _INSPECT,
    "GET /webhooks/subscriptions": _ADMIN,
    "GET /webhooks/subscriptions/{id}": _ADMIN,
    "GET /webhooks/deliveries": _ADMIN,
    "GET /webhooks/deliveries/{id}": _ADMIN,
}
"""Accepted operations by method and path: the caller needs at least one."""


def operations_for(method: str, path: str, *, for_all: bool) -> tuple[Operation, ...]:
    """Return the accepted operations of an endpoint: the caller needs at least one. Empty if it is public.

    Parameters
    ----------
    path:
        The path without ``/ojs/v1``.
    for_all:
        Whether the endpoint concerns all workspaces.
    """
    if path in PUBLIC:
        return ()
    usual = (Operation.INSPECT,) if method == "GET" and not for_all else _ADMIN
    return OPERATIONS.get(f"{method} {path}", usual)
