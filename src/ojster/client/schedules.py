"""Calls about cron jobs, made to a server."""

from __future__ import annotations

from urllib.parse import quote

from ojster.client.connection import RemoteCapability, job_of
from ojster.core.job import Job
from ojster.schedules.cron import Cron, OnConflict, Registered
from ojster.schedules.wire import (
    CronAnswer,
    CronPatchBody,
    CronRequestBody,
    CronsAnswer,
    DeletedCronAnswer,
    RegisteredCronAnswer,
    read_cron,
)


class RemoteSchedules(RemoteCapability):
    """Calls about cron jobs."""

    async def register(self, item: Cron, on_conflict: OnConflict = "replace") -> Registered:
        """Register or update a cron job; with ``on_conflict="reject"``, refuse to update it."""
        body = CronRequestBody.of(item, on_conflict)
        answer = await self._connection.ask(RegisteredCronAnswer, "POST", "/cron", body)
        return Registered(read_cron(answer.cron), answer.is_new, answer.is_changed)

    async def switch(self, name: str, enabled: bool) -> Cron:
        """Enable or disable a cron job."""
        return read_cron((await self._connection.ask(CronAnswer, "PATCH", _path(name), CronPatchBody(enabled))).cron)

    async def trigger(self, name: str) -> Job:
        """Enqueue the job of a cron job now."""
        return job_of((await self._connection.call("POST", f"{_path(name)}/trigger", once=True))["job"])

    async def unregister(self, name: str) -> Cron:
        """Remove a cron job."""
        return read_cron((await self._connection.ask(DeletedCronAnswer, "DELETE", _path(name))).cron)

    async def find(self, name: str) -> Cron:
        """Return a cron job."""
        return read_cron((await self._connection.ask(CronAnswer, "GET", _path(name))).cron)

    async def all(self) -> list[Cron]:
        """Return all cron jobs."""
        found: list[Cron] = []
        while True:
            answer = await self._connection.ask(CronsAnswer, "GET", f"/cron?limit=200&offset={len(found)}")
            found += [read_cron(shown) for shown in answer.crons]
            if not answer.pagination.has_more:
                return found


def _path(name: str) -> str:
    return f"/cron/{quote(name, safe='')}"
