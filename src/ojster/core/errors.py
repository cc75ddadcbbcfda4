"""Which errors can Ojster answer with, and what does each mean to the caller?

One hierarchy. Every member knows its code (ojs-http-binding.md section 16.3), its HTTP status and whether trying
again can help; the message says what was wrong, with which value, and what to do.
"""

from __future__ import annotations

from typing import Any, ClassVar

DOCS_URL = "https://openjobspec.org/errors/"


class OjsterError(Exception):
    """The base of everything that Ojster refuses or fails at.

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
    """Sent as ``error.type`` where the specification asks for one."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer that it becomes."""
        return {"Retry-After": "1"} if self.status in (429, 503) else {}

    def to_wire(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the ``error`` object of ojs-http-binding.md section 16.1."""
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
    """The body is no JSON object, not UTF-8, or holds something that JSON forbids."""

    code = "invalid_payload"


class InvalidPolicy(InvalidRequest):
    """A retry policy is well-formed JSON but breaks a rule of ojs-retry.md section 11."""

    status = 422
    kind = "validation_error"


class SchemaViolation(InvalidRequest):
    """The arguments of a job violate the schema of its type (ojs-schema-registry.md section 7.3)."""

    code = "validation_error"
    status = 422


class ResourcesRefused(InvalidRequest):
    """A job needs more than its queue allows (ojs-ml-resources.md section 10.2)."""

    code = "resource_limit_exceeded"
    status = 422


class InvalidWorkflow(InvalidRequest):
    """A workflow breaks a rule; ``validation_errors`` in the details say which, and where (ojs-workflows.md 11.1)."""

    code = "invalid_workflow"


class Unsupported(OjsterError):
    """The caller asks for a version or feature that this server does not have."""

    code = "unsupported"
    status = 422
    retryable = False


class NotFound(OjsterError):
    """There is no such job, queue, cron job or dead letter."""

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
    """The state of the job does not allow this, or the caller does not hold its lease."""

    code = "conflict"
    status = 409
    retryable = False


class Duplicate(OjsterError):
    """A job with this id or this unique key exists already."""

    code = "duplicate"
    status = 409
    retryable = False


class PayloadTooLarge(OjsterError):
    """The job or the body is larger than the server accepts."""

    code = "payload_too_large"
    status = 413
    retryable = False


class BatchTooLarge(PayloadTooLarge):
    """The request is about more jobs than the server deals with at once (ojs-bulk-operations.md section 9.1)."""

    code = "batch_size_exceeded"

    @property
    def headers(self) -> dict[str, str]:
        """How many jobs are allowed."""
        return {"X-OJS-Max-Batch-Size": str(self.details["max_batch_size"])}


class QueueFull(OjsterError):
    """There is no place left in a queue that has a bound (ojs-backpressure.md section 7.1)."""

    code = "QUEUE_FULL"
    status = 429

    @property
    def headers(self) -> dict[str, str]:
        """How full it is, and when to try again."""
        return {
            "Retry-After": "1",
            "X-OJS-Queue-Depth": str(self.details["depth"]),
            "X-OJS-Queue-Bound": str(self.details["bound"]),
        }


class TenantLimitExceeded(OjsterError):
    """A tenant has more than it may have (ojs-multi-tenancy.md section 8.2)."""

    code = "TENANT_LIMIT_EXCEEDED"
    status = 429

    def __init__(self, message: str, *, wait_micros: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self._wait = -(-(wait_micros or 1_000_000) // 1_000_000)

    @property
    def headers(self) -> dict[str, str]:
        """When to try again."""
        return {"Retry-After": str(self._wait)}

    def to_wire(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the ``error`` object; the specification has the details in it, and not in an object of their own."""
        return super().to_wire(request_id) | self.details


class TenantMissing(InvalidRequest):
    """It is not said whose a job is, and must be (ojs-multi-tenancy.md section 5.1)."""

    status = 422


class Unauthenticated(OjsterError):
    """It is not known who calls: there is no token, or it is worth nothing (ojs-errors.md: UNAUTHENTICATED)."""

    code = "unauthenticated"
    status = 401
    retryable = False

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer that it becomes."""
        return {"WWW-Authenticate": "Bearer"}


class TokenExpired(Unauthenticated):
    """The token was good once (ojs-errors.md: TOKEN_EXPIRED)."""

    code = "token_expired"


class Forbidden(OjsterError):
    """It is not for this caller."""

    code = "forbidden"
    status = 403
    retryable = False


class BackendUnavailable(OjsterError):
    """The server or its database cannot be reached or is shutting down; nothing is known to have happened."""

    code = "backend_unavailable"
    status = 503


class BackendError(OjsterError):
    """Something failed that is not the caller's fault."""


class NotInTransaction(RuntimeError):
    """A caller's connection has no transaction open, so each statement on it would be committed by itself."""

    def __init__(self, how: str) -> None:
        super().__init__(f"A job can be enqueued with this connection only inside a transaction: {how}.")
