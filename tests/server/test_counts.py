"""What processes that share a port count together."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ojster.server.counts import Counts, Series, SharedCounts, add_up

counted = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(
        st.tuples(st.sampled_from("xyz")),
        st.builds(Series, st.integers(0, 9).map(float), st.tuples(st.integers(0, 9), st.integers(0, 9)).map(list)),
    ).map(lambda series: list(series.items())),
).map(lambda series: Counts({name: list(found) for name, found in series.items()}))


@given(st.lists(counted))
def test_sums_have_every_number_once_and_leave_what_was_added_unchanged(several: list[Counts]) -> None:
    sums = add_up(several)
    again = add_up(several)
    assert sums == again
    for name in ("a", "b"):
        given_ = [series for one in several for _, series in one.series.get(name, [])]
        assert sum(series.total for series in sums.get(name, {}).values()) == sum(one.total for one in given_)
        assert sum(sum(series.buckets) for series in sums.get(name, {}).values()) == sum(
            sum(one.buckets) for one in given_
        )


def one_count(number: float) -> Counts:
    return Counts({"requests": [(("enqueue",), Series(number, [int(number)]))]})


def total(counts: SharedCounts, mine: Counts) -> float:
    return add_up([mine, *counts.others()])["requests"]["enqueue",].total


def test_each_process_sees_the_numbers_of_all(tmp_path: Path) -> None:
    first, second = SharedCounts(tmp_path, 1), SharedCounts(tmp_path, 2)
    first.write(one_count(3))
    second.write(one_count(4))
    assert total(first, one_count(5)) == 9
    assert total(second, one_count(4)) == 7


def test_a_process_goes_on_with_the_numbers_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    SharedCounts(tmp_path, 1).write(one_count(3))
    again = SharedCounts(tmp_path, 1)
    assert total(again, one_count(2)) == 5
    again.write(one_count(2))
    again.write(one_count(4))
    assert total(SharedCounts(tmp_path, 2), one_count(1)) == 8


def test_a_process_that_died_while_it_wrote_leaves_the_former_numbers(tmp_path: Path) -> None:
    SharedCounts(tmp_path, 1).write(one_count(3))
    (tmp_path / "new.counts.1").write_bytes(b"half")
    assert total(SharedCounts(tmp_path, 1), one_count(0)) == 3
