"""Runner of jobs that carry their own code: in the sandbox, with the data of their workflow."""

from __future__ import annotations

import logging
from typing import Any, Final, get_args

import msgspec

from ojster.client.interface import Client
from ojster.core.errors import InvalidRequest, OjsterError
from ojster.core.json_objects import read_members
from ojster.core.property_values import Changes, Property, check_changes
from ojster.core.timestamps import parse_timestamp
from ojster.core.values import to_json
from ojster.handlers.context import JobContext
from ojster.handlers.outcomes import Released
from ojster.jobs.code import ATTRIBUTE, read_code
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Release, Then
from ojster.sandbox.sandbox import CodeFailed, End, Sandbox, SandboxRequest

log: Final = logging.getLogger(__name__)

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class ReleasedByCode(Released):
    """The code released its job."""

    def __init__(self, members: dict[str, Any]) -> None:
        super().__init__(str(members.get("then")))
        self._members = members
        result = members.get("result")
        self._result = None if result is None else to_json(result)

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return the release to report to the server."""
        members = self._members
        then: Then = next((known for known in get_args(Then) if known == members.get("then")), "queue")
        return Release(
            job_id,
            worker_id,
            attempt,
            delay=_micros(members.get("delay")) or 0,
            then=then,
            again=members.get("again") is True,
            wait=_micros(members.get("timeout")),
            not_before=_moment(members.get("until")),
            deadline=_moment(members.get("deadline")),
            result=self._result,
        )


def _moment(text: Any) -> int | None:
    """Return a time in microseconds since the epoch; ``None`` unless it is one."""
    try:
        return parse_timestamp(text) if isinstance(text, str) else None
    except InvalidRequest:
        return None


def _micros(seconds: Any) -> int | None:
    """Return a duration in microseconds; ``None`` unless it is a number from 0 to 10**9 seconds."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= 10**9:
        return None
    return round(seconds * 1e6)


class CodeRunner:
    """Runs jobs that carry their code.

    Parameters
    ----------
    client:
        Client for the properties of their workflows and for their notes.
    """

    def __init__(self, sandbox: Sandbox, client: Client) -> None:
        self._sandbox = sandbox
        self._client = client

    async def run(self, context: JobContext, args: list[Any]) -> Any:
        """Run a job and return its result. Its changes of the workflow's properties are in ``context.changes``.

        Raises
        ------
        CodeFailed
            The code failed, or its changes are not valid.
        Released
            The code released its job.
        """
        code = read_code(read_members(context.job.envelope, "The job").get(ATTRIBUTE, b"null"))
        known: dict[str, Property] = {}
        params: dict[str, Any] = {}
        target = None
        if context.workflow_id is not None:
            known = await self._client.workflows.properties(context.workflow_id)
            head = await self._client.workflows.show(context.workflow_id, steps=False)
            params = msgspec.json.decode(head.params) if head.params is not msgspec.UNSET else {}
            target = head.target
        request = SandboxRequest(
            body=code.body,
            modules=code.modules,
            args=tuple(args),
            id=context.id,
            attempt=context.attempt,
            workflow_id=context.workflow_id,
            properties={name: stored.decoded() for name, stored in known.items()},
            params=params if code.params is None else code.params,
            target=target,
            results=context.parent_results,
            resumed=context.resumed,
            was_resumed=context.was_resumed,
        )

        async def note(note: bytes) -> None:
            try:
                await self._client.notes.add_to_job(context.id, note, context.holder.worker_id, context.holder.attempt)
            except OjsterError as error:
                log.warning("a note of job %s was rejected: %s", context.id, error)

        timeout = None if context.job.timeout is None else context.job.timeout / 1e6
        end = await self._sandbox.run(request, timeout=timeout, on_note=note)
        if end.output:
            log.info("job %s printed: %r", context.id, end.output.rstrip())
        if context.workflow_id is not None:
            try:
                context.changes = _changes(known, end)
            except OjsterError as error:
                raise CodeFailed(Failure("PropertiesRefused", error.message, retryable=False)) from None
        if end.failure is not None:
            raise CodeFailed(end.failure, end.class_names)
        if end.release is not None:
            raise ReleasedByCode(end.release)
        return end.result


def _changes(known: dict[str, Property], end: End) -> Changes | None:
    """Return the property changes of the code, with expected versions so that no concurrent change is overwritten."""
    if end.properties is None:
        return None
    after = {str(name): msgspec.Raw(_encode(value)) for name, value in end.properties.items()}
    changed = {
        name: raw for name, raw in after.items() if name not in known or bytes(raw) != _encode(known[name].decoded())
    }
    gone = tuple(sorted(known.keys() - after.keys()))
    expected = {name: known[name].version if name in known else 0 for name in (*changed, *gone)}
    return check_changes(Changes(changed, gone, expected))
