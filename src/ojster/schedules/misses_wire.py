"""The JSON of missed runs of cron jobs."""

from __future__ import annotations

from typing import Self

from msgspec import Struct

from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Count, Timestamp
from ojster.schedules.misses import Miss


class CronMissInfo(Struct, kw_only=True):
    """Consecutive occurrences of a cron job, from ``since`` to ``until``, that started nothing for one ``reason``.

    The reason is ``overlap_skip``, ``dst_skip``, ``maintenance``, ``late`` or the code of a refusal, such as
    ``QUEUE_FULL``. There were at least ``occurrences`` if ``is_complete`` is false. ``active_id`` is the run with which
    they would have overlapped.
    """

    since: Timestamp
    until: Timestamp
    occurrences: Count
    is_complete: bool
    reason: str
    message: str
    active_id: str | None
    noted_at: Timestamp


class CronMissesAnswer(Struct):
    """The missed runs of a cron job, the newest first."""

    misses: list[CronMissInfo]

    @classmethod
    def of(cls, misses: list[Miss]) -> Self:
        return cls(
            [
                CronMissInfo(
                    since=format_timestamp(miss.since),
                    until=format_timestamp(miss.until),
                    occurrences=miss.occurrences,
                    is_complete=miss.is_complete,
                    reason=miss.reason,
                    message=miss.message,
                    active_id=miss.active_id,
                    noted_at=format_timestamp(miss.noted_at),
                )
                for miss in misses
            ]
        )

    def value(self) -> list[Miss]:
        return [
            Miss(
                since=parse_timestamp(miss.since),
                until=parse_timestamp(miss.until),
                occurrences=miss.occurrences,
                is_complete=miss.is_complete,
                reason=miss.reason,
                message=miss.message,
                active_id=miss.active_id,
                noted_at=parse_timestamp(miss.noted_at),
            )
            for miss in self.misses
        ]
