"""Calls about events and notification channels."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.events import EventFilter, EventPage, page_of_events
from ojster.core.signatures import new_secret
from ojster.core.tenant import called, split
from ojster.events import log as event_log
from ojster.events import notifications
from ojster.events.calls import EventCalls
from ojster.events.channel import Channel, check_channel
from ojster.events.event_types import check_event_types, check_filter
from ojster.jobs.scope import CapabilityService
from ojster.storage.memory import Local


class _Following:
    """When this process last asked for the recording of events, in microseconds since the epoch."""

    def __init__(self) -> None:
        self.asked_at = 0


_following: Final = Local[_Following](_Following)


class EventService(CapabilityService, EventCalls):
    """Calls about events and notification channels."""

    async def put_channel(self, channel: Channel) -> bool:
        """Create or change a notification channel; return whether it is new. A webhook without a secret gets one.

        Raises
        ------
        InvalidRequest
            The channel is invalid.
        """
        self.scope.need_all_queues("A channel")
        check_channel(channel)
        secret = channel.secret or new_secret() if channel.method == "webhook" else None
        kept = msgspec.structs.replace(channel, name=self.scope.named(channel.name), secret=secret)
        return await self.scope.do(notifications.put_channels, kept)

    async def channels(self) -> list[Channel]:
        """Return the channels, by name."""
        channels = await self.database.read(notifications.list_channels, None)
        mine = [channel for channel in channels if self.scope.sees(split(channel.name)[0])]
        return [msgspec.structs.replace(channel, name=called(channel.name)) for channel in mine]

    async def delete_channel(self, name: str) -> None:
        """Delete a channel.

        Raises
        ------
        NotFound
            The channel does not exist.
        """
        self.scope.need_all_queues("A channel")
        await self.scope.do(notifications.delete_channels, self.scope.named(name))

    async def select(self, chosen: EventFilter) -> EventPage:
        """Return a page of recent events, oldest first.

        Raises
        ------
        InvalidRequest
            A type of events does not exist, or has none of what the filter names; or a name is malformed.
        Forbidden
            The caller is limited to some queues, and the filter does not name some of these alone.
        """
        check_event_types(chosen.types, "types")
        check_filter(chosen.types, chosen.queues, chosen.job_types)
        self.scope.check_queue(chosen.queues or None)
        chosen = msgspec.structs.replace(chosen, tenant=self.scope.tenant)
        await self._follow()
        return await self.database.read(event_log.select_events, chosen)

    async def newest(self, chosen: EventFilter) -> list[dict[str, Any]]:
        """Return the newest events, newest first: of the last transactions that one read of the log has.

        Raises as ``select``.
        """
        check_event_types(chosen.types, "types")
        check_filter(chosen.types, chosen.queues, chosen.job_types)
        self.scope.check_queue(chosen.queues or None)
        chosen = msgspec.structs.replace(chosen, tenant=self.scope.tenant)
        begin = await self.last() - event_log.MAX_BATCHES_PER_READ * event_log.NUMBERS_PER_BATCH
        stretch = await self.database.read(event_log.read_on, max(begin, 0))
        return page_of_events(reversed(stretch.events), chosen).events

    async def read_on(self, number: int) -> event_log.Stretch:
        """Return the events of all tenants after the event with a number."""
        await self._follow()
        return await self.database.read(event_log.read_on, number)

    async def last(self) -> int:
        """Return the number from which to follow the events: all later events have a higher one."""
        await self._follow()
        return await self.database.read(event_log.last_event, None)

    async def _follow(self) -> None:
        """Keep the recording of events switched on, and number the visible events."""
        now = self.database.clock()
        if now >= _following.of(self.database.memory).asked_at + event_log.FOLLOW_PERIOD_US // 2:
            _following.of(self.database.memory).asked_at = now
            await self.database.run(event_log.record_follower, None)
        await self.database.order_events()
