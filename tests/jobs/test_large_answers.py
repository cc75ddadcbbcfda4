"""Answers have a bounded size: the rest of a list comes with the next call."""

from __future__ import annotations

from unittest import mock

import pytest

from ojster.server import answer
from ojster.server.answer import number_that_fits
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio


def test_a_list_has_one_entry_at_least() -> None:
    with mock.patch.object(answer, "LARGEST_LIST", 10):
        assert number_that_fits([]) == 0
        assert number_that_fits([b"x" * 100]) == 1
        assert number_that_fits([b"x" * 100, b"y"]) == 1
        assert number_that_fits([b"x" * 4, b"y" * 4]) == 2
        assert number_that_fits([b"x" * 4, b"y" * 4, b"z"]) == 2


async def test_a_fetch_hands_out_what_fits_and_the_next_one_the_rest(http: Http, bench: Bench) -> None:
    ids = [(await bench.push("a", "x" * 10_000)).id for _ in range(10)]
    with mock.patch.object(answer, "LARGEST_LIST", 35_000):
        first = await http.fetch(count=10, worker_id="w")
        assert [job["id"] for job in first] == ids[:3]
        second = await http.fetch(count=10, worker_id="w")
    rest = await http.fetch(count=10, worker_id="w")
    assert [job["id"] for job in second + rest] == ids[3:]
    assert {job["attempt"] for job in first + second + rest} == {1}


async def test_a_list_goes_on_where_the_answer_was_full(http: Http, bench: Bench) -> None:
    ids = [(await bench.push("a", "x" * 10_000)).id for _ in range(10)]
    found, cursor, pages = [], "", 0
    with mock.patch.object(answer, "LARGEST_LIST", 35_000):
        while True:
            page = (await http("GET", f"/ojs/v1/jobs?limit=5{cursor}")).json()
            found += [job["id"] for job in page["jobs"]]
            pages += 1
            if not page["pagination"]["has_more"]:
                break
            cursor = f"&cursor={page['pagination']['next_cursor']}"
    assert found == ids[::-1]
    assert pages == 4
