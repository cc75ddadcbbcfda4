"""The errors of the API: status, code, and whether a retry makes sense.

Spec: ojs-errors
"""

from __future__ import annotations

import pytest

from ojster.core import errors, refusals
from ojster.core.errors import OjsterError

TABLE = [
    (errors.InvalidPayload, "invalid_payload", 400, False),
    (errors.InvalidRequest, "invalid_request", 400, False),
    (errors.InvalidWorkflow, "invalid_workflow", 400, False),
    (errors.TokenExpired, "token_expired", 401, False),
    (errors.Unauthenticated, "unauthenticated", 401, False),
    (errors.Forbidden, "permission_denied", 403, False),
    (errors.NotFound, "not_found", 404, False),
    (errors.MethodNotAllowed, "x_method_not_allowed", 405, False),
    (errors.WaitTimedOut, "x_wait_timeout", 408, True),
    (errors.Conflict, "conflict", 409, False),
    (errors.Duplicate, "duplicate", 409, False),
    (errors.BatchTooLarge, "batch_size_exceeded", 413, False),
    (errors.PayloadTooLarge, "payload_too_large", 413, False),
    (refusals.MetadataTooLarge, "metadata_too_large", 413, False),
    (refusals.ResultTooLarge, "RESULT_TOO_LARGE", 413, False),
    (refusals.ResultExpired, "x_result_expired", 410, False),
    (refusals.JobDropped, "x_job_dropped", 422, False),
    (refusals.CancellationRequested, "conflict", 409, False),
    (refusals.JobTypeNotAllowed, "job_type_not_allowed", 422, False),
    (refusals.ExtensionNotSupported, "EXTENSION_NOT_SUPPORTED", 422, False),
    (errors.InvalidPolicy, "invalid_request", 422, False),
    (refusals.ResourcesRefused, "x_resource_limit_exceeded", 422, False),
    (errors.PromiseBroken, "promise_broken", 422, False),
    (refusals.SchemaViolation, "validation_error", 422, False),
    (errors.TenantMissing, "invalid_request", 422, False),
    (errors.Unsupported, "unsupported", 422, False),
    (errors.QueueFull, "QUEUE_FULL", 429, True),
    (errors.TenantLimitExceeded, "TENANT_LIMIT_EXCEEDED", 429, True),
    (errors.BackendError, "backend_error", 500, True),
    (errors.BackendUnavailable, "backend_unavailable", 503, True),
]


@pytest.mark.parametrize(("kind", "code", "status", "retryable"), TABLE, ids=[kind.__name__ for kind, *_ in TABLE])
def test_each_error_has_its_code_and_status(kind: type[OjsterError], code: str, status: int, retryable: bool) -> None:
    error = kind("what was wrong", field="x")
    shown = error.to_wire("req_1")
    assert (kind.status, shown["code"], shown["retryable"]) == (status, code, retryable)
    assert (shown["message"], shown["request_id"]) == ("what was wrong", "req_1")
    assert shown["docs_url"].endswith(code.upper())


def test_the_table_is_complete() -> None:
    found = {kind for kind in _below(OjsterError) if kind.__module__ in (errors.__name__, refusals.__name__)}
    assert found == {kind for kind, *_ in TABLE}


def _below(kind: type[OjsterError]) -> set[type[OjsterError]]:
    children = set(kind.__subclasses__())
    return children.union(*map(_below, children)) if children else children


@pytest.mark.parametrize("kind", [kind for kind, *_ in TABLE], ids=lambda kind: kind.__name__)
def test_only_what_passes_by_says_when_to_retry(kind: type[OjsterError]) -> None:
    error = kind("full", depth=1, bound=1, limit=1, max_batch_size=1)
    assert ("Retry-After" in error.headers) == (kind.status in (429, 503))


def test_a_tenant_learns_when_its_next_second_begins() -> None:
    assert errors.TenantLimitExceeded("too fast", wait_micros=1_200_000).headers == {"Retry-After": "2"}
    assert errors.TenantLimitExceeded("too fast").headers == {"Retry-After": "1"}
