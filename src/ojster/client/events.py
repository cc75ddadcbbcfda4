"""Calls about notification channels, made to a server."""

from __future__ import annotations

from urllib.parse import quote

from ojster.client.connection import RemoteCapability
from ojster.events.calls import EventCalls
from ojster.events.channel import Channel
from ojster.events.wire import ChannelBody


class RemoteEvents(RemoteCapability, EventCalls):
    """Calls about notification channels."""

    async def put_channel(self, channel: Channel) -> bool:
        """Create or change a channel; return whether it is new."""
        body = ChannelBody(
            channel.method,
            channel.sender,
            list(channel.to),
            list(channel.cc),
            channel.subject,
            channel.url,
            channel.secret,
        )
        known = {other.name for other in await self.channels()}
        await self._connection.call("PUT", f"/channels/{quote(channel.name, safe='')}", body)
        return channel.name not in known
