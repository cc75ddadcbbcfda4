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
    """

    code: ClassVar[str] = "backend_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = True
    hint: str | None = None
    kind: ClassVar[str | None] = None
    """Value of ``error.type`` in the response; ``None``: omitted."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the error response."""
        return {"Retry-After": "1"} if self.status in (429, 503) else {}

    def to_wire(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the ``error`` object of the response.

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
    """The request or one of its attributes is malformed."""

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


class SchemaViolation(InvalidRequest):
    """The arguments of a job violate the schema of its type.

    Spec: ojs-schema-registry 7.3
    """

    code = "validation_error"
    status = 422


class ResourcesRefused(InvalidRequest):
    """A job requires more resources than its queue allows.

    Spec: ojs-ml-resources 10.2
    """

    code = "resource_limit_exceeded"
    status = 422


class InvalidWorkflow(InvalidRequest):
    """A workflow is invalid; ``validation_errors`` in the details lists each violation and its place.

    Spec: ojs-workflows 11.1
    """

    code = "invalid_workflow"


class Unsupported(OjsterError):
    """The request needs a version or feature that this server does not have."""

    code = "unsupported"
    status = 422
    retryable = False


class NotFound(OjsterError):
    """The requested resource, such as a job, a queue or a workflow, does not exist."""

    code = "not_found"
    status = 404
    retryable = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        if details.get("resource_type") == "job":
            self.hint = "Check the identifier; finished jobs are deleted when their retention period is over."


class MethodNotAllowed(OjsterError):
    """The path exists, but not with this method."""

    code = "method_not_allowed"
    status = 405
    retryable = False


class Conflict(OjsterError):
    """The state of the resource does not allow the operation, or the caller does not hold the job's lease."""

    code = "conflict"
    status = 409
    retryable = False


class Duplicate(OjsterError):
    """A job or workflow with the same id or uniqueness key already exists."""

    code = "duplicate"
    status = 409
    retryable = False


class PayloadTooLarge(OjsterError):
    """A job, a request body, or another value is larger than the server accepts."""

    code = "payload_too_large"
    status = 413
    retryable = False


class BatchTooLarge(PayloadTooLarge):
    """The request covers more jobs than the server processes at once.

    Spec: ojs-bulk-operations 9.1
    """

    code = "batch_size_exceeded"

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

    def __init__(self, message: str, *, wait_micros: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self._wait = -(-(wait_micros or 1_000_000) // 1_000_000)

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the time to wait before a retry, rounded up to seconds."""
        return {"Retry-After": str(self._wait)}

    def to_wire(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the ``error`` object, with the details as its own members, as the specification requires."""
        return super().to_wire(request_id) | self.details


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

    code = "forbidden"
    status = 403
    retryable = False


class BackendUnavailable(OjsterError):
    """The server or its database is unreachable or shutting down. It is unknown whether the request took effect."""

    code = "backend_unavailable"
    status = 503


class BackendError(OjsterError):
    """An internal failure that the caller did not cause."""


class NotInTransaction(RuntimeError):
    """The caller's connection has no open transaction, so each statement would be committed separately."""

    def __init__(self, how: str) -> None:
        super().__init__(f"The connection has no open transaction to enqueue the job in: {how}.")
