"""Refusals of a job by the rules for its contents."""

from __future__ import annotations

from ojster.core.errors import Conflict, InvalidRequest, PayloadTooLarge


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

    code = "x_resource_limit_exceeded"
    status = 422


class JobTypeNotAllowed(InvalidRequest):
    """The queue of a job takes only other job types.

    Spec: ojs-queue-config 6.5
    """

    code = "job_type_not_allowed"
    status = 422


class MetadataTooLarge(PayloadTooLarge):
    """The ``meta`` of a job is larger than 64 KiB.

    Spec: ojs-payload-limits 9.2
    """

    code = "metadata_too_large"


class CancellationRequested(Conflict):
    """An active job is not cancelled by a filter; its worker is told to stop it.

    Spec: ojs-bulk-operations 6.1
    """
