"""The errors of Ojster, in one hierarchy.

Each class has a code, an HTTP status and a flag that tells whether a retry can help. The message says what was wrong,
with which value, and what to do.

Spec: ojs-http-binding 16.3
"""

from __future__ import annotations

from typing import Any, ClassVar

DOCS_URL = "https://openjobspec.org/errors/"


class OjsterError(Exception):
    """Base of all errors that Ojster returns to callers.

    Parameters
    ----------
    message:
        What was wrong, with which value, and what to do. Never contains secrets.
    details:
        Machine-readable context; sent as ``error.details``.

    Attributes
    ----------
    code:
        Name of the error for programs, such as ``not_found``.
    status:
        HTTP status of the response.
    retryable:
        Whether the same request may succeed later.
    hint:
        Advice for the reader of the error; ``None`` if there is none.

    Examples
    --------
    >>> from ojster import App, OjsterError
    >>> app = App("sqlite:///:memory:")
    >>> try:
    ...     app.find("019a0000-0000-7000-8000-000000000000")
    ... except OjsterError as error:
    ...     print(error.code, error.status, error.retryable)
    not_found 404 False
    >>> app.close()
    """

    code: ClassVar[str] = "backend_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = True
    hint: str | None = None
    kind: ClassVar[str | None] = None
    """Value of ``error.type`` in the response; ``None``: omitted."""

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the error response."""
        return {"Retry-After": "1"} if self.status in (429, 503) else {}

    def to_wire(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the ``error`` object of the response.

        Parameters
        ----------
        request_id:
            Id of the request; ``None`` leaves it out.

        Returns
        -------
        dict
            The JSON members of the object.

        Spec: ojs-http-binding 16.1
        """
        error: dict[str, Any] = {"code": self.code, "message": self.message, "retryable": self.retryable}
        if self.kind:
            error["type"] = self.kind
        if self.hint:
            error["hint"] = self.hint
        if self.details:
            error["details"] = self.details
        error["docs_url"] = DOCS_URL + self.code.upper()
        if request_id:
            error["request_id"] = request_id
        return error


class InvalidRequest(OjsterError):
    """The request or one of its attributes is malformed.

    Parameters
    ----------
    message:
        What was wrong, with which value, and what to do.
    details:
        Machine-readable context, such as ``field``; stored as ``details`` and sent as ``error.details``.

    Examples
    --------
    >>> from ojster import App, InvalidRequest
    >>> try:
    ...     App("mysql://localhost/jobs")
    ... except InvalidRequest as error:
    ...     print(error.code, error.status)
    invalid_request 400
    """

    code = "invalid_request"
    status = 400
    retryable = False


class InvalidPayload(InvalidRequest):
    """The body is not a JSON object, not UTF-8, or not valid JSON."""

    code = "invalid_payload"


class InvalidPolicy(InvalidRequest):
    """A retry policy is well-formed JSON but breaks a rule.

    Spec: ojs-retry 11
    """

    status = 422
    kind = "validation_error"


class PromiseBroken(OjsterError):
    """A job has ended without what its step promises to put into the collection of the workflow."""

    code = error_type = "promise_broken"
    status = 422
    retryable = False


class InvalidWorkflow(InvalidRequest):
    """A workflow is invalid; ``validation_errors`` in the details lists each violation and its place.

    Parameters
    ----------
    message:
        What was wrong, with which value, and what to do.
    details:
        Machine-readable context, such as ``field``; stored as ``details`` and sent as ``error.details``.

    Examples
    --------
    >>> from ojster import App, InvalidWorkflow, chain
    >>> app = App("sqlite:///:memory:")
    >>> try:
    ...     app.start(chain())
    ... except InvalidWorkflow as error:
    ...     print(error.details["validation_errors"][0]["path"])
    $.steps
    >>> app.close()

    Spec: ojs-workflows 11.1
    """

    code = "invalid_workflow"


class Unsupported(OjsterError):
    """The request needs a version or feature that this server does not have."""

    code = "unsupported"
    status = 422
    retryable = False


class NotFound(OjsterError):
    """The requested resource, such as a job, a queue or a workflow, does not exist.

    Parameters
    ----------
    message:
        What was wrong, with which value, and what to do.
    details:
        Machine-readable context: ``resource_type``, such as ``job``, and ``resource_id``.

    Examples
    --------
    >>> from ojster import App, NotFound
    >>> app = App("sqlite:///:memory:")
    >>> try:
    ...     app.find("019a0000-0000-7000-8000-000000000000")
    ... except NotFound as error:
    ...     print(error.details["resource_type"])
    job
    >>> app.close()
    """

    code = "not_found"
    status = 404
    retryable = False

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message, **details)
        if details.get("resource_type") == "job":
            self.hint = "Check the identifier; finished jobs are deleted when their retention period is over."


class MethodNotAllowed(OjsterError):
    """The path exists, but not with this method."""

    code = "x_method_not_allowed"
    status = 405
    retryable = False


class WaitTimedOut(OjsterError):
    """What the caller waited for has not happened in time. Nothing is lost: wait again.

    Spec: ojs-results 8.2
    """

    code = "x_wait_timeout"
    status = 408


class Conflict(OjsterError):
    """The state of the resource does not allow the operation, or the caller does not hold the job's lease.

    Parameters
    ----------
    message:
        What was wrong, with which value, and what to do.
    details:
        Machine-readable context, such as ``field``; stored as ``details`` and sent as ``error.details``.

    Examples
    --------
    >>> from ojster import App, Conflict
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("report.build")
    ... def build() -> None: ...
    >>> handle = build.enqueue()
    >>> handle.cancel()
    >>> try:
    ...     handle.cancel()
    ... except Conflict as error:
    ...     print(error.code)
    conflict
    >>> app.close()
    """

    code = "conflict"
    status = 409
    retryable = False


class Duplicate(OjsterError):
    """A job or workflow with the same id or uniqueness key already exists.

    Parameters
    ----------
    message:
        What was wrong, with which value, and what to do.
    details:
        Machine-readable context, such as ``field``; stored as ``details`` and sent as ``error.details``.

    Examples
    --------
    >>> from ojster import App, Duplicate, Unique
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("report.build", unique=Unique())
    ... def build(month: str) -> None: ...
    >>> handle = build.enqueue("2026-01")
    >>> try:
    ...     build.enqueue("2026-01")
    ... except Duplicate as error:
    ...     print(error.details["existing_job_id"] == handle.id)
    True
    >>> app.close()
    """

    code = "duplicate"
    status = 409
    retryable = False


class PayloadTooLarge(OjsterError):
    """A job, a request body, or another value is larger than the server accepts.

    Parameters
    ----------
    message:
        What was wrong, with which value, and what to do.
    details:
        Machine-readable context, such as ``limit``, the maximum size in bytes.

    Examples
    --------
    >>> from ojster import App, PayloadTooLarge, Settings
    >>> app = App("sqlite:///:memory:", settings=Settings(largest_job=1_024))
    >>> @app.job("text.index")
    ... def index(text: str) -> None: ...
    >>> try:
    ...     index.enqueue("x" * 2_000)
    ... except PayloadTooLarge as error:
    ...     print(error.details["limit"])
    1024
    >>> app.close()
    """

    code = "payload_too_large"
    status = 413
    retryable = False


class BatchTooLarge(PayloadTooLarge):
    """The request covers more jobs than the server processes at once.

    Spec: ojs-bulk-operations 9.1
    """

    code = "batch_size_exceeded"

    def to_wire(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the ``error`` object, with the maximum number of jobs."""
        return super().to_wire(request_id) | {"max_batch_size": self.details.get("max_batch_size", 0)}

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the maximum number of jobs."""
        return {"X-OJS-Max-Batch-Size": str(self.details["max_batch_size"])}


class QueueFull(OjsterError):
    """A queue with a maximum depth is full.

    Spec: ojs-backpressure 7.1
    """

    code = "QUEUE_FULL"
    status = 429

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the depth and the bound of the queue, and the time to wait before a retry."""
        return {
            "Retry-After": "1",
            "X-OJS-Queue-Depth": str(self.details["depth"]),
            "X-OJS-Queue-Bound": str(self.details["bound"]),
        }


class TenantLimitExceeded(OjsterError):
    """A tenant exceeds one of its limits.

    Parameters
    ----------
    wait_micros:
        Time to wait before a retry, in microseconds; 1 second by default.

    Spec: ojs-multi-tenancy 8.2
    """

    code = "TENANT_LIMIT_EXCEEDED"
    status = 429

    def __init__(self, message: str, /, *, wait_micros: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self._wait = -(-(wait_micros or 1_000_000) // 1_000_000)
        self._own = details

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the time to wait before a retry, rounded up to seconds."""
        return {"Retry-After": str(self._wait)}

    def to_wire(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the ``error`` object, with the limit in its own members, as the specification requires."""
        return super().to_wire(request_id) | self._own


class TenantMissing(InvalidRequest):
    """The job names no tenant, but the server requires one.

    Spec: ojs-multi-tenancy 5.1
    """

    status = 422


class Unauthenticated(OjsterError):
    """The request has no token, or the token is invalid or revoked.

    Spec: ojs-errors (UNAUTHENTICATED)
    """

    code = "unauthenticated"
    status = 401
    retryable = False

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the error response."""
        return {"WWW-Authenticate": "Bearer"}


class TokenExpired(Unauthenticated):
    """The token has expired.

    Spec: ojs-errors (TOKEN_EXPIRED)
    """

    code = "token_expired"


class Forbidden(OjsterError):
    """The caller is not allowed to perform the operation."""

    code = "permission_denied"
    status = 403
    retryable = False


class BackendUnavailable(OjsterError):
    """The server or its database is unreachable or shutting down. It is unknown whether the request took effect.

    Parameters
    ----------
    message:
        What was wrong, with which value, and what to do.
    details:
        Machine-readable context, such as ``field``; stored as ``details`` and sent as ``error.details``.

    Examples
    --------
    >>> from ojster import BackendUnavailable
    >>> error = BackendUnavailable("The server does not answer. Try again later.")
    >>> error.code, error.retryable, error.headers
    ('backend_unavailable', True, {'Retry-After': '1'})
    """

    code = "backend_unavailable"
    status = 503


class BackendError(OjsterError):
    """An internal failure that the caller did not cause."""


class NotInTransaction(RuntimeError):
    """The caller's connection has no open transaction, so each statement would be committed separately.

    ``JobType.enqueue_in``, ``App.start_in`` and their siblings raise it.

    Parameters
    ----------
    how:
        How to open a transaction, in a few words.

    Examples
    --------
    >>> from ojster import NotInTransaction
    >>> try:
    ...     raise NotInTransaction("use `with connection.transaction():`")
    ... except NotInTransaction as error:
    ...     print(error)
    The connection has no open transaction to enqueue the job in: use `with connection.transaction():`.
    """

    def __init__(self, how: str) -> None:
        super().__init__(f"The connection has no open transaction to enqueue the job in: {how}.")
