"""Calls about cron jobs, made to a server."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import msgspec

from ojster.client.connection import (
    RemoteCapability,
    list_of,
    read_timestamp,
)
from ojster.core.timestamps import parse_timestamp
from ojster.schedules.cron import Cron

_encode: Final = msgspec.json.Encoder().encode


class RemoteSchedules(RemoteCapability):
    """Calls about cron jobs."""

    async def register(self, item: Cron) -> tuple[Cron, bool]:
        """Register or update a cron job."""
        body = {
            "name": item.name,
            "expression": item.expression,
            "timezone": item.timezone,
            "overlap_policy": item.overlap_policy,
            "enabled": item.enabled,
            "description": item.description,
            "job_template": msgspec.Raw(item.template),
        }
        answer = await self._connection.call("POST", "/cron", body)
        cron = _cron(answer["cron"])
        return cron, cron.run_count == 0

    async def switch(self, name: str, enabled: bool) -> Cron:
        """Enable or disable a cron job."""
        return _cron(
            (await self._connection.call("PATCH", f"/cron/{quote(name, safe='')}", {"enabled": enabled}))["cron"]
        )

    async def unregister(self, name: str) -> Cron:
        """Remove a cron job."""
        return _cron((await self._connection.call("DELETE", f"/cron/{quote(name, safe='')}"))["cron"])

    async def find(self, name: str) -> Cron:
        """Return a cron job."""
        return _cron((await self._connection.call("GET", f"/cron/{quote(name, safe='')}"))["cron"])

    async def all(self) -> list[Cron]:
        """Return all cron jobs."""
        found: list[Cron] = []
        while True:
            answer = await self._connection.call("GET", f"/cron?limit=200&offset={len(found)}")
            found += [_cron(raw) for raw in list_of(answer["crons"])]
            if not msgspec.json.decode(answer["pagination"])["has_more"]:
                return found


def _cron(raw: msgspec.Raw) -> Cron:
    shown = msgspec.json.decode(raw)
    return Cron(
        template=_encode(shown["job_template"]),
        created_at=parse_timestamp(shown["created_at"]),
        last_run_at=read_timestamp(shown["last_run_at"]),
        next_run_at=read_timestamp(shown["next_run_at"]),
        **{
            name: shown[name]
            for name in ("name", "expression", "timezone", "overlap_policy", "enabled", "description", "run_count")
        },
    )
