"""Calls about notification channels, made to a server."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from ojster.client.connection import (
    RemoteCapability,
)
from ojster.events.channel import Channel, read_channel


class RemoteEvents(RemoteCapability):
    """Calls about notification channels."""

    async def put_channel(self, channel: Channel) -> bool:
        """Create or change a channel; return whether it is new."""
        shown = channel.to_wire()
        body = {name: value for name, value in shown.items() if name not in ("name", "created_at")}
        if channel.secret is not None:
            body["secret"] = channel.secret
        known = {one.name for one in await self.channels()}
        await self._connection.call("PUT", f"/channels/{quote(channel.name, safe='')}", body)
        return channel.name not in known

    async def channels(self) -> list[Channel]:
        """Return all channels."""
        answer = await self._connection.call("GET", "/channels")
        return [read_channel(shown) for shown in msgspec.json.decode(answer["channels"])]

    async def delete_channel(self, name: str) -> None:
        """Delete a channel."""
        await self._connection.call("DELETE", f"/channels/{quote(name, safe='')}")
