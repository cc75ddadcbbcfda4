"""Bounds of requests: the last value that is accepted, and the first that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.durations import LONGEST_MILLIS
from ojster.core.errors import InvalidRequest, OjsterError
from ojster.core.events import EventFilter
from ojster.core.rate_limit import Limits
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.queries import Page
from ojster.jobs.retry import RetryPolicy
from tests.conftest import Bench, Http, request

pytestmark = pytest.mark.anyio

CENTURY_MS = 100 * 365 * 24 * 3600 * 1000

OPTIONS: list[tuple[str, Any, Any]] = [
    ("priority", 100, 101),
    ("priority", -100, -101),
    ("queue", "q" * 128, "q" * 129),
    ("timeout_ms", CENTURY_MS, CENTURY_MS + 1),
    ("retry", {"max_attempts": 1_000_000}, {"max_attempts": 1_000_001}),
    ("retry", {"initial_interval_ms": 1, "max_interval_ms": LONGEST_MILLIS}, {"max_interval_ms": LONGEST_MILLIS + 1}),
    ("retry", {"backoff_coefficient": 1}, {"backoff_coefficient": 0.99}),
    ("retry", {"backoff_coefficient": 1e6}, {"backoff_coefficient": 1.1e6}),
]


async def test_a_number_that_no_database_stores_is_refused(bench: Bench) -> None:
    job = await bench.push()
    with pytest.raises(InvalidRequest, match=r"'after' is 1000000000000000000: Expected `int` <= 999999999999999999"):
        await bench.service.jobs.log(job.id, 10**18)
    with pytest.raises(InvalidRequest, match="'after' is -1"):
        EventFilter(after=-1)
    with pytest.raises(InvalidRequest, match=r"A number is out of range: integers must be from -2\^63 to 2\^63 - 1"):
        await bench.service.rate_limits.override("key", Limits(1), 2**63)


@pytest.mark.parametrize(
    ("name", "last", "beyond"), OPTIONS, ids=[f"{name}-{n}" for n, (name, *_) in enumerate(OPTIONS)]
)
async def test_an_option_is_accepted_up_to_its_bound(bench: Bench, name: str, last: Any, beyond: Any) -> None:
    await bench.push(**{name: last})
    with pytest.raises(OjsterError) as refused:
        await bench.push(**{name: beyond})
    assert name in str(refused.value.details.get("field"))


async def test_a_type_has_at_most_255_characters(bench: Bench) -> None:
    await bench.push("t" * 255)
    with pytest.raises(OjsterError, match="at most 255 characters"):
        await bench.push("t" * 256)


async def test_metadata_has_at_most_64_kib(bench: Bench) -> None:
    empty = len('{"k":""}')
    await bench.push(meta={"k": "x" * (65_536 - empty)})
    with pytest.raises(OjsterError, match="at most 65536 are allowed"):
        await bench.push(meta={"k": "x" * (65_537 - empty)})


async def test_a_checkpoint_has_at_most_1_mib(bench: Bench) -> None:
    job = await bench.push()
    await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b'"%b"' % (b"x" * (1_048_576 - 2))))
    with pytest.raises(OjsterError, match="at most 1048576"):
        await bench.service.jobs.save_checkpoint(NewCheckpoint(job.id, b'"%b"' % (b"x" * (1_048_576 - 1))))


async def test_a_batch_has_at_most_1000_jobs(http: Http) -> None:
    jobs = [{"type": "a", "args": []} for _ in range(1_001)]
    refused = await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs})
    assert (refused.status_code, refused.json()["error"]["details"]["limit"]) == (413, 1_000)
    assert (await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs[:1_000]})).status_code == 201


async def test_a_page_says_whether_there_is_more(bench: Bench) -> None:
    await bench.service.jobs.enqueue([request() for _ in range(3)])
    full = await bench.service.jobs.select(page=Page(3))
    assert (len(full.jobs), full.next_before) == (3, None)
    part = await bench.service.jobs.select(page=Page(2))
    assert (len(part.jobs), part.next_before) == (2, part.jobs[-1].seq)


async def test_a_page_has_at_most_200_jobs(http: Http) -> None:
    answer = (await http("GET", "/ojs/v1/jobs?limit=500")).json()
    assert answer["pagination"]["limit"] == 200


@pytest.mark.parametrize(("random", "delay"), [(0.0, 5_000), (0.5, 10_000), (0.999, 14_990)])
def test_jitter_is_between_half_and_one_and_a_half(random: float, delay: int) -> None:
    assert RetryPolicy(initial_interval=10_000, max_interval=10**9).delay(1, random) == delay


def test_jitter_never_exceeds_the_longest_interval() -> None:
    assert RetryPolicy(initial_interval=10_000, max_interval=12_000).delay(1, 0.999) == 12_000


async def test_durations_are_counted_in_milliseconds(bench: Bench, http: Http) -> None:
    job = await bench.push()
    bench.clock.advance(2.5)
    claimed = await bench.fetch_one()
    bench.clock.advance(1.5)
    await bench.ack(claimed)
    await bench.run_due()
    events = (await http("GET", "/ojs/v1/events?types=job.completed")).json()["events"]
    assert [event["data"]["duration_ms"] for event in events] == [1_500]
    stats = (await http("GET", f"/ojs/v1/queues/{job.queue}/stats")).json()["stats"]
    assert (stats["avg_wait_ms"], stats["avg_duration_ms"]) == (2_500, 1_500)


async def test_a_state_in_a_filter_is_not_widened_by_a_time(http: Http) -> None:
    answer = await http(
        "POST",
        "/ojs/v1/jobs/batch/cancel",
        {"filter": {"state": "available", "created_before": "2000-01-01T00:00:00Z"}},
    )
    assert answer.json()["summary"]["total"] == 0
