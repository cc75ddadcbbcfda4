"""Tests of the shop after its move: each thing that Celery did for it."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from shop_with_ojster import app, charge, place, remind, report, tell

from ojster.testing import JobTester


@pytest.fixture
def jobs() -> Iterator[JobTester]:
    with JobTester(app) as tester:
        yield tester


def test_an_order_is_packed_in_parallel_and_then_shipped(jobs: JobTester) -> None:
    run = place(7, ["hat", "coat", "scarf"], "ada@example.com")
    jobs.drain()
    assert run.result() == "order 7: 3 parcels"
    assert len(jobs.all("shop.pack")) == 3


def test_a_refused_card_is_not_charged_again(jobs: JobTester) -> None:
    charge.enqueue({"order": 7, "cents": 2_000_000})
    jobs.drain(check=False)
    (job,) = jobs.all(charge)
    assert (job.state, job.attempt, job.max_attempts) == ("discarded", 1, 6)


def test_mail_goes_through_a_queue_of_its_own_and_may_wait(jobs: JobTester) -> None:
    handle = remind(7, "ada@example.com")
    jobs.drain()
    assert (handle.refresh().state, handle.job.queue) == ("scheduled", "mail")
    jobs.advance(timedelta(hours=1))
    jobs.drain()
    assert handle.result() == "order 7 waits"
    assert jobs.all(tell)[0].max_attempts == 4


def test_the_report_is_written_every_morning(jobs: JobTester) -> None:
    jobs.advance(timedelta(days=1))
    jobs.drain()
    assert [job.state for job in jobs.all(report)] == ["completed"]
