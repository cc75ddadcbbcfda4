"""Workers on servers of others, which have the calls of the specification alone.

They have no batches of reports, no releases, no long polls and no deregistration. A worker that found this out when it
reports would have run handlers for nothing.

Spec: ojs-http-binding 10, ojs-conformance 6
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from ojster.client.client import HttpClient
from ojster.client.connection import list_of
from ojster.client.fleet import RemoteFleet
from ojster.client.jobs import RemoteJobs
from ojster.client.transport import NETWORK_ERRORS
from ojster.core.errors import BackendUnavailable, InvalidRequest, MethodNotAllowed, NotFound, Unsupported
from ojster.core.errors import OjsterError as Refusal
from ojster.core.job import Job
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.job_json import from_json
from ojster.jobs.messages import Acknowledgement, FailureReport, Release

T = TypeVar("T")

POLL_SECONDS: Final = 1.0
"""Pause between two fetches that bring no job, in seconds: servers of others answer them at once."""

OWN_NAME: Final = "ojster"


class _Implementation(Struct):
    name: str


class _Manifest(Struct):
    implementation: _Implementation


async def adapt(client: HttpClient) -> str | None:
    """Make a worker's calls with those of the specification alone, if the server is not Ojster.

    Returns
    -------
    str or None
        The name of the other server; ``None``: it is Ojster, and nothing has changed.

    Raises
    ------
    BackendUnavailable
        The server cannot be reached.
    Unsupported
        It is no server of Open Job Spec, or does not say so in a manifest.
    """
    name = await _name_of(client)
    if name in (None, OWN_NAME):
        return None
    client.jobs = OtherJobs(client.jobs)
    client.fleet = OtherFleet(client.fleet)
    return name


async def _name_of(client: HttpClient) -> str | None:
    """Return the name in the manifest of a server; ``None`` if it shows none, but takes batches of reports."""
    connection = client._connection
    try:
        response = await connection.transport.send("GET", "/ojs/manifest")
    except NETWORK_ERRORS as error:
        raise connection.unreachable(error) from error
    if response.status >= 500:
        raise BackendUnavailable(f"The server {client.url} answered {response.status} to a request for its manifest.")
    if response.is_success:
        try:
            return msgspec.json.decode(response.content, type=_Manifest).implementation.name
        except msgspec.MsgspecError:
            pass  # a page of a proxy, for example
    try:  # a proxy may pass on only what is below /ojs/v1
        await connection.call("POST", "/workers/ack/batch", {"acks": []}, patience=0.0)
    except (NotFound, MethodNotAllowed) as error:
        raise Unsupported(
            f"The server {client.url} shows no manifest at /ojs/manifest, and takes no batches of reports. No job was "
            "fetched. Check the URL, and that a proxy in front of the server passes /ojs/ on."
        ) from error
    return None


class OtherJobs(RemoteJobs):
    """A worker's calls about jobs, each with one job, made to a server of others.

    Its reports name neither the worker nor the attempt: the specification has no members for them in these requests,
    and allows no others. So a report that comes after the end of the lease may count for the next attempt.
    """

    def __init__(self, own: RemoteJobs) -> None:
        super().__init__(own._connection)
        self.middleware = own.middleware

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        """Claim jobs; ask for them again until one comes or ``wait`` seconds have passed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            jobs = await self._claim(request)
            left = deadline - loop.time()
            if jobs or left <= 0:
                return jobs
            await asyncio.sleep(min(POLL_SECONDS, left))

    async def _claim(self, request: Claim) -> list[Job]:
        body: dict[str, Any] = {"queues": list(request.queues), "count": request.count, "worker_id": request.worker_id}
        if request.lease is not None:
            body["visibility_timeout_ms"] = request.lease // 1000
        call = asyncio.ensure_future(self._connection.call("POST", "/workers/fetch", body, patience=0.0))
        try:
            answer = await asyncio.shield(call)
        except asyncio.CancelledError:  # the server does not notice: the jobs would wait until their leases end
            call.add_done_callback(self._hand_back)
            raise
        return await self._readable(list_of(answer["jobs"]))

    def _hand_back(self, call: asyncio.Future[Any]) -> None:
        if not call.cancelled() and call.exception() is None:
            jobs = [from_json(bytes(raw)) for raw in list_of(call.result()["jobs"])]
            self._handbacks = asyncio.ensure_future(self.release([Release(job.id) for job in jobs]))

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> list[Job | Refusal]:
        """Complete jobs, one by one."""
        return await self._each(items, self._acknowledge)

    async def acknowledge_and_fetch(
        self, items: Sequence[Acknowledgement], request: Claim
    ) -> tuple[list[Job | Refusal], list[Job] | Refusal]:
        """Complete jobs, and then claim further ones."""
        outcomes = await self.acknowledge(items)
        try:
            return outcomes, await self._claim(request)
        except Refusal as error:
            return outcomes, error

    async def fail(self, items: Sequence[FailureReport]) -> list[Job | Refusal]:
        """Report failed attempts, one by one."""
        return await self._each(items, self._fail)

    async def release(self, items: Sequence[Release]) -> list[Job | Refusal]:
        """Hand back unfinished jobs, one by one. Any delay is lost; what waits for somebody fails."""
        return await self._each(items, self._release)

    async def _each(self, items: Sequence[T], call: Callable[[T], Coroutine[Any, Any, Job]]) -> list[Job | Refusal]:
        """Make a call for each item; return each outcome.

        If the server could not be asked about an item, that error is its outcome: the server has the other reports, and
        would refuse them, or take them for those of later attempts, if they were sent again.
        """
        outcomes = await asyncio.gather(*map(call, items), return_exceptions=True)
        for outcome in outcomes:
            if not isinstance(outcome, Job | Refusal):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, Job | Refusal)]

    async def _acknowledge(self, item: Acknowledgement) -> Job:
        if item.append or item.changes is not None or item.result_file is not None:
            raise InvalidRequest(
                "This server completes jobs with a result alone. Steps that a job appends, changes of shared "
                "properties and results in files need Ojster."
            )
        body: dict[str, Any] = {"job_id": item.job_id}
        if item.result is not None:
            body["result"] = msgspec.Raw(item.result)
        return await self._report("ack", body, "completed")

    async def _fail(self, item: FailureReport) -> Job:
        return await self._report("nack", {"job_id": item.job_id, "error": _shown(item.failure)}, "retryable")

    async def _release(self, item: Release) -> Job:
        if item.then == "queue":
            return await self._report("nack", {"job_id": item.job_id, "requeue": True}, "available")
        why = (
            f"The server has no release with 'then': {item.then!r}. Suspension, skipping and retries of workflows need "
        )
        failure = Failure("Unsupported", f"{why}Ojster.", retryable=False)
        return await self._fail(FailureReport(item.job_id, failure))

    async def _report(self, path: str, body: dict[str, Any], state: str) -> Job:
        """Send one report; return what is known of its job."""
        await self._connection.call("POST", f"/workers/{path}", body)
        return from_json(msgspec.json.encode({"id": body["job_id"], "state": state}))


def _shown(failure: Failure) -> dict[str, Any]:
    """Return the error of a report, without what only Ojster reads."""
    names = ("type", "message", "code", "retryable", "details")
    return {name: value for name in names if (value := getattr(failure, name)) is not None}


class OtherFleet(RemoteFleet):
    """A worker's calls about itself, made to a server of others."""

    def __init__(self, own: RemoteFleet) -> None:
        super().__init__(own._connection)

    async def leave(self, worker_id: str, *, lost: bool = False) -> None:
        """Do nothing: the worker stops its heartbeats, and the leases of what it holds end."""
