"""The connection of a client to a server: requests, retries, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar
from urllib.parse import urlencode

import msgspec

from ojster.client.transport import (
    AUTHORITY_VARIABLE,
    CANNOT_CONNECT,
    CERTIFICATE_ERRORS,
    NETWORK_ERRORS,
    SHORT_SECONDS,
    Response,
    Transport,
)
from ojster.core.calls import Calls, Declaration, Declared, Deletion, Listing, NumberedListing
from ojster.core.errors import BackendError, BackendUnavailable, OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import Members, read_answer_members
from ojster.core.shown_errors import error_of
from ojster.core.timestamps import parse_timestamp
from ojster.jobs.failure import Failure
from ojster.jobs.job_json import from_json
from ojster.jobs.messages import FailureReport
from ojster.jobs.queries import Page
from ojster.storage.database import without_password

log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_RETRY_SECONDS: Final = 10.0
"""Default time for which a call is retried while the server is unreachable, in seconds."""

_HEADERS: Final = {"Content-Type": "application/openjobspec+json", "Accept": "application/openjobspec+json"}
_encode: Final = msgspec.json.Encoder().encode


class Connection:
    """The HTTP connections of a client, for one event loop; parameters as of ``ojster.client.client.HttpClient``."""

    def __init__(
        self, url: str, *, patience: float = DEFAULT_RETRY_SECONDS, headers: Mapping[str, str] | None = None
    ) -> None:
        place = url.rstrip("/").removesuffix("/ojs/v1")
        self.url = without_password(place)
        """The server, for errors."""
        self.patience = patience
        self.transport = Transport(place, _HEADERS | dict(headers or {}))

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        wait: float = 0.0,
        patience: float | None = None,
        also: int | None = None,
        once: bool = False,
    ) -> Members:
        """Make a request; return the members of its answer. See ``request``."""
        raw = await self.request(method, path, body, wait=wait, patience=patience, also=also, once=once)
        return _read_object(raw, f"{self.url} answered {method} {path}")

    async def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Any = None,
        *,
        wait: float = 0.0,
        patience: float | None = None,
        once: bool = False,
    ) -> T:
        """Make a request; return its answer, of the type ``kind`` in a ``wire`` module. See ``request``."""
        return read_answer(kind, await self.request(method, path, body, wait=wait, patience=patience, once=once))

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        wait: float = 0.0,
        patience: float | None = None,
        also: int | None = None,
        once: bool = False,
    ) -> bytes:
        """Make a request; return the JSON object of its answer, or raise the error that it describes.

        While the server is unreachable or answers 503, the request is retried for ``patience`` seconds. An answer with
        the status ``also`` is returned, not raised as an error. With ``once``, a request that may have arrived is not
        sent again, because the server would do twice what it asks for.
        """
        content = None if body is None else _encode(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.patience if patience is None else patience)
        pause = 0.05
        while True:
            try:
                response = await self.transport.send(method, "/ojs/v1" + path, content, patience=SHORT_SECONDS + wait)
            except NETWORK_ERRORS as error:
                problem = self.unreachable(error)
                if once and not isinstance(error, CANNOT_CONNECT):
                    raise BackendUnavailable(
                        f"The connection to {self.url} was lost before the answer came ({error}). Check whether it was "
                        "done before you send it again."
                    ) from error
            else:
                if response.status != 503:
                    return content_of(response, path, also)
                problem = self.unavailable(response)
            if loop.time() + pause > deadline:
                raise problem
            log.debug("%s Retrying in %.2f s.", problem, pause)
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, 1.0)

    async def batch(self, path: str, name: str, items: Sequence[Any]) -> list[Job | OjsterError]:
        """Send a batch, and return the outcome of each item."""
        if not items:
            return []
        answer = await self.call("POST", path, {name: items})
        return [outcome_of(raw) for raw in list_of(answer["results"])]

    async def list_page(self, path: str, query: Mapping[str, Any]) -> tuple[dict[str, msgspec.Raw], int, int | None]:
        """Return a page of a list, the length of the list, and the cursor of the next page."""
        answer = await self.call("GET", f"{path}?{query_of(query)}")
        page = msgspec.json.decode(answer["pagination"])
        cursor = page.get("next_cursor")
        return answer, page["total"], int(cursor) if cursor else None

    def unreachable(self, error: Exception) -> BackendUnavailable:
        """Return the error for a failed connection."""
        advice = "Check the URL, and that the server runs (ojster serve)."
        if isinstance(error, CERTIFICATE_ERRORS):
            advice = f"Name the authority of its certificate in {AUTHORITY_VARIABLE}."
        return BackendUnavailable(f"The server {self.url} cannot be reached: {error or type(error).__name__}. {advice}")

    def unavailable(self, response: Response) -> BackendUnavailable:
        """Return the error for an answer with 503. It has the reason of the server; a proxy before it gives none."""
        reason = "Retry later."
        with contextlib.suppress(BackendError):
            reason = _error_in(response, self.url).message
        return BackendUnavailable(f"The server {self.url} is unavailable (503). {reason}")


class RemoteCapability(Calls):
    """The calls of one capability, made to a server. It inherits those that a declaration describes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def make(self, declared: Declared, arguments: Mapping[str, Any]) -> Any:
        """Send a declared call to the server; return what its answer shows."""
        call, path = declared.call, declared.path_of(arguments)
        query = query_of(declared.query_of(arguments))
        if isinstance(call, Listing | NumberedListing):
            return await self._collect(call, path, query)
        content = await self._connection.request(
            call.method,
            f"{path}?{query}" if query else path,
            declared.body_of(arguments),
            wait=call.wait,
            once=call.once,
        )
        answer = read_answer(call.answer, content)  # also of a deletion: another server's page may be a success, too
        return None if isinstance(call, Deletion) else answer.value()

    async def _collect(self, call: Declaration[Any], path: str, query: str) -> list[Any]:
        """Return all pages of a list in one. A server may make smaller pages than it is asked for."""
        values: list[Any] = []
        while True:
            position = f"{path}?{query}&" if query else f"{path}?"
            answer = await self._connection.ask(call.answer, "GET", f"{position}limit=200&offset={len(values)}")
            entries = answer.value()
            values += entries
            if not entries or len(values) >= answer.pagination.total:
                return values


def query_of(parameters: Mapping[str, Any]) -> str:
    """Return a query. Values that are ``None`` or empty are left out, and those of a list repeat their name."""
    lists = {name: value if isinstance(value, list | tuple) else [value] for name, value in parameters.items()}
    pairs = [(name, _shown(value)) for name, values in lists.items() for value in values if value not in (None, "")]
    return urlencode(pairs)


def _shown(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def content_of(response: Response, path: str, also: int | None = None) -> bytes:
    """Return the content of the answer of a path, or raise the error in it. ``also``: a status that is no error."""
    if response.is_success or response.status == also:
        return response.content
    raise _error_in(response, path)


class ShownError(TypedDict, total=False):
    """What a client reads of an error."""

    code: str
    message: str
    details: dict[str, Any] | None


class Refusal(msgspec.Struct):
    """An answer that describes an error."""

    error: ShownError


def _error_in(response: Response, path: str) -> OjsterError:
    """Return the error that an answer describes, or raise ``BackendError`` if it is none of an Ojster server."""
    try:
        return error_of(read_answer(Refusal, response.content).error, response.status)
    except BackendError as error:
        message = f"{path} answered {response.status}. {error} Is there an Ojster server at this URL?"
        raise BackendError(message) from None


class _AnswerMembers(Members):
    """The members of an answer. One that is missing is an error of the server."""

    def __missing__(self, name: str) -> msgspec.Raw:
        raise BackendError(f"The server's answer has no member {name!r}.")


def _read_object(raw: bytes, what: str) -> Members:
    try:
        return _AnswerMembers(read_answer_members(raw))
    except OjsterError as error:
        raise BackendError(f"{what} without JSON: {error}") from None


def read_answer(kind: type[T], raw: bytes) -> T:
    """Return an answer as the type that its route declares, or raise ``BackendError`` if it is none."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise BackendError(f"The server's answer is no {kind.__name__}: {error}.") from None
    except msgspec.DecodeError as error:
        raise BackendError(f"The server answered without JSON: {error}.") from None


def outcome_of(raw: msgspec.Raw) -> Job | OjsterError:
    """Return the job, or the error, of one item of a batch."""
    shown = read_answer_members(bytes(raw))
    return error_of(msgspec.json.decode(shown["error"])) if "error" in shown else from_json(bytes(raw))


def job_of(raw: msgspec.Raw) -> Job:
    """Return the job that JSON describes."""
    return from_json(bytes(raw))


def readable_jobs(raws: Sequence[msgspec.Raw]) -> tuple[list[Job], list[FailureReport]]:
    """Return the fetched jobs that this client can read, and reports of failure for the others.

    One that it cannot read, for example of a server that is newer, must not keep the others from their handlers.
    """
    jobs: list[Job] = []
    failures: list[FailureReport] = []
    for raw in raws:
        try:
            jobs.append(job_of(raw))
        except (OjsterError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            attempt = msgspec.json.decode(raw, type=_Attempt)
            log.error("cannot read the job %s, and report its attempt as failed: %s", attempt.id, error)
            failure = Failure("UnreadableJob", f"The client cannot read the job: {error}. Update the client.")
            start = None if attempt.started_at is None else parse_timestamp(attempt.started_at)
            failures.append(FailureReport(attempt.id, failure, attempt.worker_id, attempt.attempt, started_at=start))
    return jobs, failures


class _Attempt(msgspec.Struct):
    """What a report says of the attempt of a fetched job."""

    id: str
    worker_id: str | None = None
    attempt: int | None = None
    started_at: str | None = None


def log_warnings(answer: Mapping[str, msgspec.Raw]) -> None:
    """Log what the server warns of, such as members of a job that look misspelt."""
    for warning in msgspec.json.decode(answer["warnings"], type=list[str]) if "warnings" in answer else ():
        log.warning("%s", warning)


def list_of(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """Return the elements of a JSON array."""
    return msgspec.json.decode(raw, type=list[msgspec.Raw])


def paging(page: Page) -> dict[str, Any]:
    """Return the query parameters of a page."""
    return {"limit": page.limit, "offset": page.offset, "cursor": page.before}
