"""Registration of an application's cron jobs, by its workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from ojster.client.interface import Client
from ojster.core.errors import (
    BackendError,
    BackendUnavailable,
    NotFound,
    OjsterError,
)
from ojster.schedules.cron import Cron

log = logging.getLogger(__name__)


async def register_crons(client: Client, crons: Iterable[Cron]) -> None:
    """Register cron jobs; those that the server rejects are logged."""
    for cron in crons:
        while True:
            try:
                await client.schedules.register(await _with_current_state(client, cron))
                break
            except (BackendUnavailable, BackendError) as error:
                log.warning("cannot register the cron job %s, trying again: %s", cron.name, error)
                await asyncio.sleep(1.0)
            except OjsterError as error:
                log.error("the cron job %s was rejected: %s", cron.name, error)
                break


async def _with_current_state(client: Client, cron: Cron) -> Cron:
    """Return the cron job, disabled if an operator has disabled it."""
    try:
        known = await client.schedules.find(cron.name)
    except NotFound:
        return cron
    return msgspec.structs.replace(cron, enabled=known.enabled)
