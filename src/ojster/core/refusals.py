"""Refusals of a job by the rules for its contents."""

from __future__ import annotations

from typing import Any

from ojster.core.errors import Conflict, InvalidRequest, NotFound, OjsterError, PayloadTooLarge, Unsupported


class SchemaViolation(InvalidRequest):
    """The arguments of a job violate the schema of its type, or a new schema breaks what the last one allowed.

    Spec: ojs-schema-registry 7.3, 8.4
    """

    code = "validation_error"
    status = 422


class ResourcesRefused(InvalidRequest):
    """A job requires more resources than its queue allows.

    Spec: ojs-ml-resources 10.2
    """

    code = "x_resource_limit_exceeded"
    status = 422


class JobTypeNotAllowed(InvalidRequest):
    """The queue of a job takes only other job types.

    Spec: ojs-queue-config 6.5
    """

    code = "job_type_not_allowed"
    status = 422


class ExtensionNotSupported(Unsupported):
    """The request depends on an extension that the server does not have.

    Spec: ojs-extension-lifecycle 8.3
    """

    code = "EXTENSION_NOT_SUPPORTED"


class MetadataTooLarge(PayloadTooLarge):
    """The ``meta`` of a job is larger than 64 KiB.

    Spec: ojs-payload-limits 9.2
    """

    code = "metadata_too_large"


def size_details(largest: int, actual: int | None, field: str) -> dict[str, Any]:
    """Return the details of an error about a value that takes too many bytes; ``actual``: how many, if it is known.

    Spec: ojs-payload-limits 9.1
    """
    known = {} if actual is None else {"actual_bytes": actual}
    return {"limit": largest, "max_bytes": largest, **known, "field": field}


class ResultTooLarge(PayloadTooLarge):
    """A result is larger than allowed; the job stays active.

    Spec: ojs-results 7.2
    """

    code = "RESULT_TOO_LARGE"


class ResultExpired(NotFound):
    """A job has completed, and its result was deleted after its ``result_ttl``.

    Spec: ojs-results 8.2
    """

    code = "x_result_expired"
    status = 410


class JobDropped(OjsterError):
    """Enqueue middleware has dropped a job: nothing was enqueued, and nothing went wrong.

    Parameters
    ----------
    message:
        Which job was dropped.
    details:
        Machine-readable context; none.

    Examples
    --------
    >>> from ojster import App, JobDropped
    >>> app = App("sqlite:///:memory:")
    >>> @app.enqueue_middleware.append
    ... async def only_letters(request, enqueue):
    ...     return await enqueue(request) if request["type"] == "letter" else None
    >>> @app.job("draft")
    ... def draft() -> None: ...
    >>> try:
    ...     draft.enqueue()
    ... except JobDropped as dropped:
    ...     print(dropped)
    Middleware has dropped the job of type "draft"; it was not enqueued.
    >>> app.close()

    Spec: ojs-middleware 7.2
    """

    code = "x_job_dropped"
    status = 422
    retryable = False


class CancellationRequested(Conflict):
    """An active job is not cancelled by a filter; its worker is told to stop it.

    Spec: ojs-bulk-operations 6.1
    """
