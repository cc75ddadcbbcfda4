"""CloudEvents in requests: jobs are made of them by the triggers of the server.

Spec: ojs-cloudevents-interop 9, 10.3; CloudEvents 1.0, HTTP protocol binding 3
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Final, Literal
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, Raw

from ojster.core.errors import InvalidPayload, InvalidRequest, OjsterError
from ojster.core.json_objects import Members, read_members
from ojster.core.parsing import read_value
from ojster.core.refusals import JobDropped
from ojster.core.timestamps import parse_timestamp
from ojster.core.turns import read_aside
from ojster.jobs.bulk_wire import BatchAnswer, BatchResultBody, BatchSummaryBody
from ojster.jobs.idempotency import Key, StoredReply
from ojster.jobs.new_job import NewJob
from ojster.server.answer import MEDIA_TYPE, Answer, encode
from ojster.server.pushes import DROPPED, answer_once, push_once, pushed_id, pushed_job
from ojster.server.request import HttpRequest
from ojster.server.triggers import CloudEvent

STRUCTURED: Final = b"application/cloudevents+json"
BATCH: Final = b"application/cloudevents-batch+json"

Form = Literal["structured", "binary", "batch"]

_FAMILY: Final = b"application/cloudevents"
_PREFIX: Final = b"ce-"
_ATTRIBUTES: Final = frozenset(CloudEvent.__struct_fields__) - {"members"}
_ESCAPED: Final = re.compile(rb"\\(.)")


def form_of(request: HttpRequest, *, of_many: bool = False) -> Form | None:
    """Return the form of the CloudEvent that a request is; ``None``: it is a request of Open Job Spec.

    Parameters
    ----------
    of_many:
        Whether the endpoint takes batches instead of single events.

    Raises
    ------
    InvalidRequest
        The endpoint does not take this form.

    Spec: ojs-cloudevents-interop 9
    """
    if request.content_type == MEDIA_TYPE:
        return None
    kind = request.content_type.partition(b";")[0].strip().lower()
    if kind.startswith(_FAMILY):
        if kind != (BATCH if of_many else STRUCTURED):
            taken = f"Send {BATCH.decode()}" if of_many else f"Send {STRUCTURED.decode()}, and batches to /jobs/batch"
            raise InvalidRequest(f"The content type {kind.decode('latin-1')[:80]!r} is not supported here. {taken}.")
        return "batch" if of_many else "structured"
    if of_many or kind == MEDIA_TYPE or not any(name.startswith(_PREFIX) for name, _ in request.headers):
        return None
    return "binary"


async def enqueue_event(request: HttpRequest) -> Answer:
    """Push the job of a CloudEvent and return it; for an event that came before, return the first answer again."""
    _refuse_key(request)
    prepared = await _job_of(request, await read_event(request))
    return Answer(DROPPED) if prepared is None else await answer_once(request, *prepared)


async def entries_of(request: HttpRequest) -> list[Raw]:
    """Return the CloudEvents of a batch, unread."""
    _refuse_key(request)
    try:
        return msgspec.json.decode(await request.body(also=BATCH), type=list[Raw])
    except msgspec.DecodeError as error:
        raise InvalidPayload(f"A batch of CloudEvents must be a JSON array: {error}.") from None


async def enqueue_events(request: HttpRequest, entries: Sequence[Raw]) -> Answer:
    """Push the job of each CloudEvent of a batch, whatever becomes of the others.

    If the database is away, the whole batch is refused: its sender can repeat it, and no event makes two jobs.
    """
    outcomes = await asyncio.gather(*(_push_entry(request, entry) for entry in entries))
    results: list[BatchResultBody] = []
    jobs: list[Raw] = []
    for index, outcome in enumerate(outcomes):
        result = BatchResultBody(index, 200)
        if isinstance(outcome, OjsterError):
            if outcome.status >= 500:
                raise outcome
            result.status, result.error = outcome.status, outcome.to_wire()
        elif outcome is not None:
            result.status, result.job_id = outcome.status, pushed_id(outcome)
            result.deduplicated = True if outcome.status == 200 else UNSET
            jobs.append(pushed_job(outcome))
        results.append(result)
    failed = sum(result.error is not UNSET for result in results)
    summary = BatchSummaryBody(len(results), len(results) - failed, failed)
    status = 200 if not failed else 207 if failed < len(results) else 422
    return Answer(encode(BatchAnswer(results, summary, jobs, len(jobs))), status)


async def _push_entry(request: HttpRequest, entry: Raw) -> StoredReply | OjsterError | None:
    try:
        prepared = await _job_of(request, _event_of(read_members(entry, "The CloudEvent")))
        return None if prepared is None else await push_once(request, *prepared)
    except OjsterError as refusal:
        return refusal


async def _job_of(request: HttpRequest, event: CloudEvent) -> tuple[NewJob, Key] | None:
    """Return the job of an event, and the key under which it is pushed once; ``None``: middleware has dropped it."""
    try:
        job = await request.service.jobs.prepare(request.services.triggers.request_of(event))
    except JobDropped:
        return None
    name = hashlib.sha256(encode([event.source, event.id])).hexdigest()
    # The same event may come in another form, so what else it says is not compared. The queue is: who may push to one
    # queue must not get the answer to somebody's event of another.
    return job, Key("cloud_event", name, job.queue, request.services.triggers.dedup_window_us)


def _refuse_key(request: HttpRequest) -> None:
    if request.header(b"idempotency-key") is not None:
        raise InvalidRequest("A CloudEvent is known by its 'source' and 'id'. Remove the header Idempotency-Key.")


async def read_event(request: HttpRequest) -> CloudEvent:
    """Return the CloudEvent of a request.

    Raises
    ------
    InvalidPayload, InvalidRequest, PayloadTooLarge
        It is none of version 1.0, or its body is too large, or no JSON.
    """
    if form_of(request) == "binary":
        return await _binary(request)
    body = await request.body(also=STRUCTURED)
    return _event_of(await read_aside(len(body), read_members, body))


async def _binary(request: HttpRequest) -> CloudEvent:
    kind = request.content_type.partition(b";")[0].strip().lower()
    body = (await request.body(also=kind if kind.endswith(b"+json") else b"")).strip()
    members: Members = {}
    for header, value in request.headers:
        if header.startswith(_PREFIX):
            name = header[len(_PREFIX) :].decode("latin-1")
            if name in members or name == "data" or not name.isalnum():
                raise InvalidRequest(f"The header {header.decode('latin-1')[:80]!r} is no attribute, or occurs twice.")
            members[name] = Raw(encode(_decoded(value, name)))
    if body:
        await read_aside(len(body), read_value, body, "data")
        members["data"] = Raw(body)
    return _event_of(members)


def _decoded(value: bytes, name: str) -> str:
    """Return the text of a header: without quotes, and with the characters that were percent-encoded."""
    if len(value) > 1 and value[:1] == value[-1:] == b'"':
        value = _ESCAPED.sub(rb"\1", value[1:-1])
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"The header 'ce-{name}' is not UTF-8.", field=name) from None


def _event_of(members: Members) -> CloudEvent:
    """Return the event with these members.

    Raises
    ------
    InvalidRequest
        An attribute is missing or malformed, or the data is not JSON.
    """
    attributes = {name: msgspec.json.decode(members[name]) for name in _ATTRIBUTES & members.keys()}
    try:
        event = msgspec.convert(attributes, CloudEvent)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The request is no CloudEvent of version 1.0: {error}.") from None
    if event.time is not None:
        parse_timestamp(event.time)
    if bytes(members.get("data_base64", b"null")) != b"null":
        members["data"] = _from_base64(members)
    event.members = members
    return event


def _from_base64(members: Members) -> Raw:
    if bytes(members.get("data", b"null")) != b"null":
        raise InvalidRequest("A CloudEvent has 'data' or 'data_base64', not both.", field="data_base64")
    try:
        decoded = base64.b64decode(msgspec.json.decode(members["data_base64"], type=str), validate=True).strip()
    except (msgspec.ValidationError, ValueError):
        raise InvalidRequest("'data_base64' is not Base64.", field="data_base64") from None
    read_value(decoded, "data_base64")
    return Raw(decoded)
