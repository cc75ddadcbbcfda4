"""Calls about notification channels, as a service, a server and its client have them."""

from __future__ import annotations

from typing import Final

from ojster.core.calls import Call, Calls, Deletion
from ojster.core.wire import DeletedAnswer
from ojster.events.channel import Channel
from ojster.events.wire import ChannelsAnswer

_TAG: Final = "Notifications"


class EventCalls(Calls):
    """Calls about notification channels."""

    async def put_channel(self, channel: Channel) -> bool:
        """Create or replace a notification channel; return whether it is new. The endpoint is written by hand."""
        raise NotImplementedError

    @Call("GET", "/channels", "list_channels", _TAG, ChannelsAnswer)
    async def channels(self) -> list[Channel]:
        """List the channels, without their secrets."""

    @Deletion("DELETE", "/channels/{name}", "delete_channel", _TAG, DeletedAnswer)
    async def delete_channel(self, name: str) -> None:
        """Delete a channel and drop its pending notifications."""
