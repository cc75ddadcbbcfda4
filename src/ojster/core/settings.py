"""Defaults and limits of a service, in microseconds. Applications set them with ``ojster.core.public_settings``."""

from __future__ import annotations

from typing import Literal

import msgspec

from ojster.core.durations import DAY, MINUTE, SECOND


class ServiceRetention(msgspec.Struct, frozen=True, kw_only=True):
    """Retention of finished jobs, in microseconds since they finished; ``None``: forever. See ``ojster.Retention``."""

    completed: int | None = DAY
    cancelled: int | None = DAY
    discarded: int | None = 7 * DAY
    dead_letter: int | None = 90 * DAY
    most_dead_letters: int | None = 10_000
    """Maximum number of dead letters: beyond it, the oldest are deleted. Spec: ojs-dead-letter 5.2"""
    audit: int | None = 365 * DAY
    logs: int | None = 7 * DAY


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults and limits of a service: durations in microseconds, sizes in bytes. See ``ojster.Settings``."""

    default_lease: int = 30 * MINUTE
    default_timeout: int | None = 30 * MINUTE
    heartbeat_timeout: int = 30 * SECOND
    largest_job: int = 1_048_576
    largest_workflow: int = 268_435_456
    largest_storage: int = 107_374_182_400
    largest_batch: int = 1_000
    most_generations: int = 100
    most_losses: int = 10
    on_exhaustion: Literal["discard", "dead_letter"] = "discard"
    contributors_cancel: Literal["all", "own"] = "all"
    tenants: Literal["optional", "required"] = "optional"
    default_tenant: str = ""
    schema_mode: Literal["strict", "warn", "off"] = "warn"
    retention: ServiceRetention = ServiceRetention()
