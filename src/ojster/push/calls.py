"""Calls about push endpoints, as a service, a server and its client have them."""

from __future__ import annotations

from typing import Final

from ojster.core.access import ADMIN_ONLY
from ojster.core.calls import Call, Calls, Deletion, Handled, Listing
from ojster.push.wire import (
    DeletedPushEndpointAnswer,
    PushEndpointAnswer,
    PushEndpointBody,
    PushEndpointInfo,
    PushEndpointsAnswer,
)

_TAG: Final = "Push"
_ALL: Final = "/push/endpoints"
_ONE: Final = f"{_ALL}/{{id}}"


class PushCalls(Calls):
    """Calls about push endpoints.

    Spec: ojs-serverless 2
    """

    @Handled("PUT", _ONE, "put_push_endpoint", _TAG, PushEndpointAnswer, body=PushEndpointBody)
    async def put(self, id: str, body: PushEndpointBody) -> PushEndpointInfo:
        """Create or replace a push endpoint. The answer has the secret that signs deliveries. A paused one stays so."""

    @Listing("GET", _ALL, "list_push_endpoints", _TAG, PushEndpointsAnswer, needs=ADMIN_ONLY, page_size=200)
    async def all(self) -> list[PushEndpointInfo]:
        """List the push endpoints, without their secrets."""

    @Call("GET", _ONE, "show_push_endpoint", _TAG, PushEndpointAnswer, needs=ADMIN_ONLY)
    async def find(self, id: str) -> PushEndpointInfo:
        """Show a push endpoint, without its secret."""

    @Call("POST", f"{_ONE}/pause", "pause_push_endpoint", _TAG, PushEndpointAnswer)
    async def pause(self, id: str) -> PushEndpointInfo:
        """Send no more jobs to a function. Those that it has go on."""

    @Call("POST", f"{_ONE}/resume", "resume_push_endpoint", _TAG, PushEndpointAnswer)
    async def resume(self, id: str) -> PushEndpointInfo:
        """Send jobs to a function again, at once, whatever trouble it had."""

    @Call("POST", f"{_ONE}/rotate-secret", "rotate_push_secret", _TAG, PushEndpointAnswer)
    async def rotate(self, id: str) -> PushEndpointInfo:
        """Give a push endpoint a new secret; for a day, deliveries are signed with both."""

    @Deletion("DELETE", _ONE, "delete_push_endpoint", _TAG, DeletedPushEndpointAnswer)
    async def delete(self, id: str) -> None:
        """Delete a push endpoint. Jobs that its function has go back to their queues."""
