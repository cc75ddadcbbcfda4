"""The JSON of requests and answers about cron jobs and maintenance."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct


class JobTemplateBody(Struct):
    """The template of the jobs that a cron job enqueues."""

    type: str
    args: list[Raw] = []
    meta: dict[str, Raw] = {}
    options: dict[str, Raw] = {}


class CronBody(Struct):
    """A cron job. The schedule is ``expression`` or ``cron``; the job is ``job_template`` or the members beside it."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9\-.]*$", max_length=255)]
    expression: str | None = None
    cron: str | None = None
    timezone: str = "UTC"
    overlap_policy: Literal["skip", "allow", "cancel_previous", "enqueue"] = "skip"
    enabled: bool = True
    description: str | None = None
    job_template: JobTemplateBody | None = None
    type: str | None = None
    args: list[Raw] = []
    meta: dict[str, Raw] = {}
    options: dict[str, Raw] = {}


class PruneBody(Struct, forbid_unknown_fields=True):
    """Options for deleting expired data; with ``dry_run``, it is only counted."""

    dry_run: bool = False


class MaintenanceBody(Struct):
    """Turns maintenance mode on or off, with a reason and an estimated duration (ISO 8601)."""

    enabled: bool
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    estimated_duration: str | None = None


class CronPatchBody(Struct):
    """Enables or disables a cron job."""

    enabled: bool


CRON: Final = msgspec.json.Decoder(CronBody)


PRUNE: Final = msgspec.json.Decoder(PruneBody)


MAINTENANCE: Final = msgspec.json.Decoder(MaintenanceBody)


CRON_PATCH: Final = msgspec.json.Decoder(CronPatchBody)
