"""Calls about maintenance, made to a server."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.client.connection import RemoteCapability

MAX_SWEEP_SECONDS: Final = 3_600.0
"""Read timeout for a sweep or a prune, in seconds, in addition to the usual 30."""


class RemoteMaintenance(RemoteCapability):
    """Calls about maintenance."""

    async def prune(self, *, dry_run: bool = False) -> dict[str, int]:
        """Delete everything past its retention, or only count it; return the numbers by kind, such as ``jobs``."""
        answer = await self._connection.call("POST", "/admin/prune", {"dry_run": dry_run}, wait=MAX_SWEEP_SECONDS)
        return msgspec.json.decode(answer["pruned"], type=dict[str, int])
