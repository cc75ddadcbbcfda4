"""Calls about cron jobs, made to a server."""

from __future__ import annotations

from ojster.client.connection import RemoteCapability
from ojster.schedules.calls import ScheduleCalls
from ojster.schedules.cron import Cron, OnConflict, Registered
from ojster.schedules.wire import CronRequestBody, RegisteredCronAnswer


class RemoteSchedules(RemoteCapability, ScheduleCalls):
    """Calls about cron jobs."""

    async def register(self, item: Cron, on_conflict: OnConflict = "replace") -> Registered:
        """Register or update a cron job; with ``on_conflict="reject"``, refuse to update it."""
        body = CronRequestBody.of(item, on_conflict)
        return (await self._connection.ask(RegisteredCronAnswer, "POST", "/cron", body)).value()
