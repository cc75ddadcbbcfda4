"""Calls about maintenance, made to a server."""

from __future__ import annotations

import msgspec

from ojster.client.connection import RemoteCapability
from ojster.jobs.sweeps import MAX_SWEEP_SECONDS


class RemoteMaintenance(RemoteCapability):
    """Calls about maintenance."""

    async def prune(self, *, dry_run: bool = False) -> dict[str, int]:
        """Delete everything past its retention, or only count it; return the numbers by kind, such as ``jobs``."""
        answer = await self._connection.call("POST", "/admin/prune", {"dry_run": dry_run}, wait=MAX_SWEEP_SECONDS)
        return msgspec.json.decode(answer["pruned"], type=dict[str, int])
