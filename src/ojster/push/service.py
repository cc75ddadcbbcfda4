"""Calls about push endpoints."""

from __future__ import annotations

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.jobs.attributes import readers
from ojster.jobs.names import check_queue_name, check_type, refuse_reserved
from ojster.jobs.rate_limit_wire import parse_rate
from ojster.jobs.scope import CapabilityService
from ojster.push import endpoints
from ojster.push.calls import PushCalls
from ojster.push.endpoint import PushEndpoint, check_id
from ojster.push.endpoints import NewEndpoint, Switch, SwitchKind, Trouble
from ojster.push.wire import PushEndpointBody, PushEndpointInfo, show_endpoint


class PushService(CapabilityService, PushCalls):
    """Calls about push endpoints.

    A server also checks whether it may call a URL when an endpoint names it; every delivery is checked in any case.
    """

    async def put(self, id: str, body: PushEndpointBody) -> PushEndpointInfo:
        """Create or replace a push endpoint; return it with the secret that signs deliveries.

        Raises
        ------
        InvalidRequest
            The id, a queue, a job type or the rate is invalid, or no endpoint gets jobs of the type.
        Forbidden
            A queue is reserved, or is none of those that the caller is limited to; or an endpoint with this id gets the
            jobs of all tenants.
        """
        queues = tuple(dict.fromkeys(map(check_queue_name, body.queues)))
        for queue in queues:
            refuse_reserved(queue)
        self.scope.check_queue(queues)
        name = self.scope.named(check_id(id))
        if (known := await self.database.read(endpoints.find_endpoints, name)) is not None:
            self.scope.check_queue(known.queues)  # what is replaced may have jobs of others
        rate = None if body.config.rate is None else msgspec.to_builtins(body.config.rate)
        wanted = PushEndpoint(
            id=name,
            url=body.endpoint,
            secret="",
            created_at=0,
            queues=queues,
            job_types=tuple(sorted(set(map(_check_pushed_type, body.job_types)))),
            concurrency=body.config.max_concurrency,
            rate=parse_rate(rate, "config.rate"),
            timeout=body.config.timeout_ms * 1000,
            tenant=self.scope.tenant,
        )
        if not wanted.url:
            raise InvalidRequest("'endpoint' is empty. Give the URL of the function.", field="endpoint")
        new = NewEndpoint(wanted, body.config.signing_secret, is_of_all=self.scope.tenant is None)
        return show_endpoint(await self.scope.do(endpoints.put_endpoints, new), with_secret=True)

    async def all(self) -> list[PushEndpointInfo]:
        """Return the push endpoints, by id: those of the caller's tenant, and of the queues that it is limited to."""
        known = await self.scope.look(endpoints.list_endpoints, None)
        return [show_endpoint(endpoint) for endpoint in known if self._sees(endpoint)]

    async def find(self, id: str) -> PushEndpointInfo:
        """Return a push endpoint.

        Raises
        ------
        NotFound
            There is no such endpoint.
        """
        return show_endpoint(await self._find(id))

    async def pause(self, id: str) -> PushEndpointInfo:
        """Send no more jobs to a function. Raises as ``find``."""
        return show_endpoint(await self._switch(id, "pause"))

    async def resume(self, id: str) -> PushEndpointInfo:
        """Send jobs to a function again. Raises as ``find``."""
        return show_endpoint(await self._switch(id, "resume"))

    async def rotate(self, id: str) -> PushEndpointInfo:
        """Give a push endpoint a new secret, and return it with that. Raises as ``find``."""
        changed = await self._switch(id, "rotate")
        return show_endpoint(changed, with_secret=True)

    async def delete(self, id: str) -> None:
        """Delete a push endpoint; its jobs go back to their queues. Raises as ``find``."""
        known = await self._find(id)
        await self.scope.do(endpoints.delete_endpoints, known.id)

    async def stored(self) -> list[PushEndpoint]:
        """Return all push endpoints with their secrets, for the servers that send jobs to them."""
        self.scope.require_all_tenants("Sending jobs to push endpoints")
        return await self.database.read(endpoints.list_endpoints, None)

    async def note_trouble(self, trouble: Trouble) -> None:
        """Suspend a push endpoint, or turn it off, because its function takes no jobs."""
        await self.database.run(endpoints.note_troubles, trouble)

    async def recover(self, stored_id: str) -> None:
        """End the troubles of a push endpoint, whose function has answered."""
        await self.database.run(endpoints.recover_endpoints, stored_id)

    async def _switch(self, id: str, to: SwitchKind) -> PushEndpoint:
        known = await self._find(id)
        return await self.scope.do(endpoints.switch_endpoints, Switch(known.id, to))

    async def _find(self, id: str) -> PushEndpoint:
        name = self.scope.named(id)
        endpoint = await self.database.read(endpoints.find_endpoints, name)
        if endpoint is None or not self._sees(endpoint):
            raise endpoints.no_endpoint(name)
        return endpoint

    def _sees(self, endpoint: PushEndpoint) -> bool:
        is_theirs = self.scope.tenant in (None, endpoint.tenant)
        return is_theirs and all(self.scope.covers(queue) for queue in endpoint.queues)


def _check_pushed_type(type: str) -> str:
    """Return a job type if functions can run its jobs. Only workers run code, and only servers end wait steps."""
    if check_type(type) in readers().types:
        raise InvalidRequest(
            f"Jobs of the type {type!r} are never sent to push endpoints. Leave it out of 'job_types'.",
            field="job_types",
        )
    return type
