"""Pages of a long list: so many jobs are examined as one call may, and the next page goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ojster.jobs import pages
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import JobPage, Page
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_EXAMINED", 10)


async def pushed(bench: Bench, types: str) -> list[str]:
    """Push jobs of the types ``a``, ``b``, …; return their ids, the newest first."""
    return [(await bench.push(type)).id for type in types][::-1]


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_all_that_match_are_found_by_following_the_cursor(http: Http, bench: Bench, limit: int) -> None:
    types = "abaaaaaaaaaabaaaaaaaaaaaaaaaaaabba"
    ids = await pushed(bench, types)
    wanted = [id for id, type in zip(ids, types[::-1], strict=True) if type == "b"]
    found: list[str] = []
    cursor: str | None = ""
    pages = 0
    while cursor is not None:
        answer = (await http("GET", f"/ojs/v1/jobs?type=b&limit={limit}{cursor}")).json()
        found += [job["id"] for job in answer["jobs"]]
        position = answer["pagination"]
        assert position["has_more"] == ("next_cursor" in position)
        assert len(answer["jobs"]) <= limit
        assert position["is_complete"] is False, "no page of a long list tells how many there are in all"
        cursor = f"&cursor={position['next_cursor']}" if position["has_more"] else None
        pages += 1
        assert pages < 20
    assert found == wanted


async def test_a_page_says_whether_all_jobs_were_examined(http: Http, bench: Bench) -> None:
    await pushed(bench, "b" * 3 + "a" * 30)
    first = (await http("GET", "/ojs/v1/jobs?type=b")).json()
    assert (first["jobs"], first["pagination"]["total"], first["pagination"]["is_complete"]) == ([], 0, False)
    assert first["pagination"]["has_more"] is True
    frequent = (await http("GET", "/ojs/v1/jobs?type=a&limit=2")).json()["pagination"]
    assert (frequent["total"], frequent["is_complete"]) == (10, False)


async def test_few_jobs_are_examined_at_once(http: Http, bench: Bench) -> None:
    await pushed(bench, "b" * 3 + "a" * 7)
    only = (await http("GET", "/ojs/v1/jobs?type=b")).json()["pagination"]
    assert (only["total"], only["has_more"], "is_complete" in only) == (3, False, False)


async def test_few_jobs_of_a_queue_or_state_are_examined_at_once(http: Http, bench: Bench) -> None:
    await bench.push("b", queue="mail")
    await pushed(bench, "a" * 30)
    for condition in ("queue=mail", "state=active"):
        position = (await http("GET", f"/ojs/v1/jobs?type=b&{condition}")).json()["pagination"]
        assert (position["has_more"], "is_complete" in position) == (False, False)
    found = (await http("GET", "/ojs/v1/jobs?type=b&queue=mail")).json()
    assert found["pagination"]["total"] == 1


async def test_lists_with_numbers_and_other_orders_examine_all(http: Http, bench: Bench) -> None:
    await pushed(bench, "b" * 3 + "a" * 30)
    assert (await http("GET", "/ojs/v1/admin/jobs?type=b")).json()["pagination"]["total"] == 3
    for place in ("page=1&per_page=2", "page=2&per_page=2", "offset=0", "offset=1"):
        assert (await http("GET", f"/ojs/v1/jobs?type=b&{place}")).json()["pagination"]["total"] == 3, place
    whole = await bench.service.jobs.select(JobFilter(type="b"), Page())
    assert (whole.total, whole.is_complete) == (3, True)


async def test_lists_that_are_counted_stay_exact(http: Http, bench: Bench) -> None:
    await pushed(bench, "a" * 30)
    position = (await http("GET", "/ojs/v1/jobs?state=available&limit=2")).json()["pagination"]
    assert (position["total"], "is_complete" in position) == (30, False)


class Noting:
    """A transaction that notes how many rows its statements on jobs may return."""

    def __init__(self, tx: Transaction, limits: list[int]) -> None:
        self._tx = tx
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        if "LIMIT :limit" in sql:
            self._limits.append(parameters["limit"])
        return self._tx.execute(sql, parameters)


async def test_a_list_ends_with_the_last_match_and_reads_none_of_the_other_jobs(bench: Bench) -> None:
    mail = await bench.push("b", queue="mail")
    await pushed(bench, "a" * 30)
    limits: list[int] = []

    def listed(tx: Transaction, requests: Sequence[tuple[JobFilter, Page]]) -> list[JobPage]:
        return pages.list_jobs(Noting(tx, limits), requests)  # type: ignore[arg-type]

    for wanted, page, found, limit in (
        (JobFilter(states=("cancelled",)), Page(), [], 0),
        (JobFilter(states=("active",)), Page(is_bounded=True), [], 0),
        (JobFilter(queue="none"), Page(is_counted=False), [], 0),
        (JobFilter(queue="mail"), Page(is_bounded=True), [mail.id], 1),
        (JobFilter(queue="mail"), Page(offset=1), [], 0),
        (JobFilter(queue="mail"), Page(offset=7), [], 0),
        (JobFilter(queue="mail", states=("available",)), Page(sort="priority"), [mail.id], 1),
        (JobFilter(type="b"), Page(), [mail.id], 1),
        (JobFilter(type="b"), Page(is_bounded=True), [], 0),
    ):
        limits.clear()
        listing = await bench.service.database.survey(listed, (wanted, page))
        assert ([job.id for job in listing.jobs], limits) == (found, [limit]), wanted


async def test_few_jobs_that_wait_for_a_time_are_listed_like_many(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await bench.push("later", number, scheduled_at="+PT1H")
        await bench.push("now", number, retry={"max_attempts": 2})
    await bench.fail(await bench.fetch_one(), type="Down")
    await bench.fetch_one()
    lists = []
    for few in (pages.FEW, 0):
        monkeypatch.setattr(pages, "FEW", few)
        for states in (("scheduled",), ("active",), ("retryable",), ("scheduled", "active", "retryable")):
            listing = await bench.service.jobs.select(JobFilter(states=states), Page(2))
            lists.append((listing.jobs, listing.total, listing.next_before))
    assert lists[:4] == lists[4:]
    assert [total for _, total, _ in lists[:4]] == [3, 1, 1, 5]


async def test_whoever_reads_all_pages_does_without_their_numbers(bench: Bench) -> None:
    ids = await pushed(bench, "b" + "a" * 25 + "b")
    for conditions in (JobFilter(type="b"), JobFilter(type="b", where=("args.0=x",))):
        found, before = [], None
        while True:
            wanted = Page(1, before=before, is_bounded=True)
            counted = await bench.service.jobs.select(conditions, wanted)
            page = await bench.service.jobs.select(conditions, msgspec.structs.replace(wanted, is_counted=False))
            assert (page.jobs, page.next_before) == (counted.jobs, counted.next_before)
            assert page.examined is None
            assert conditions.where or not page.total
            found += [job.id for job in page.jobs]
            if (before := page.next_before) is None:
                break
        assert found == ([] if conditions.where else [ids[0], ids[-1]])
