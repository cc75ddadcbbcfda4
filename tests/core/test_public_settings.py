"""Settings of an application are seconds or ``timedelta``, and reach the service in microseconds."""

from __future__ import annotations

from datetime import timedelta

from ojster import Retention, Settings
from ojster.core import settings
from ojster.core.durations import HOUR, SECOND
from ojster.core.public_settings import in_microseconds


def test_the_defaults_are_those_of_the_engine() -> None:
    assert in_microseconds(Settings()) == settings.ServiceSettings()


def test_seconds_and_timedeltas_mean_the_same() -> None:
    kept = Retention(completed=3600, discarded=timedelta(hours=1), dead_letter=None, most_dead_letters=3)
    found = in_microseconds(Settings(default_lease=1.5, default_timeout=None, largest_job=2_000, retention=kept))
    assert found == settings.ServiceSettings(
        default_lease=3 * SECOND // 2,
        default_timeout=None,
        largest_job=2_000,
        retention=settings.ServiceRetention(completed=HOUR, discarded=HOUR, dead_letter=None, most_dead_letters=3),
    )
