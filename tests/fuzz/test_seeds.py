"""The seeds of fuzzing are valid inputs, and a few hundred changes of them are no findings."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.mutation import encode, mutate
from tests.fuzz.parsers import TARGETS
from tests.fuzz.report import Finding, Report
from tests.fuzz.targets import CORPUS, Target


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_each_seed_is_accepted_or_refused(target: Target) -> None:
    accepted = 0
    for seed in target.seeds():
        try:
            target.run(seed)
            accepted += 1
        except Exception as error:
            if not target.is_refusal(error):
                raise
    assert accepted


def test_each_folder_of_seeds_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*TARGETS, "http"}


def test_changes_are_the_same_for_the_same_seed() -> None:
    seeds = TARGETS["job"].seeds()
    one, other = (mutate(seeds[0], seeds, random.Random(5)) for _ in range(2))
    assert one == other


def test_numbers_that_python_does_not_write_are_written() -> None:
    assert encode({"a": "\ue000inf", "b": "\ud800"}) == b'{"a":1e999,"b":"\\ud800"}'


def test_a_finding_is_shown_once_by_its_smallest_input() -> None:
    report = Report()
    assert report.add(Finding("job", "error", "a.py:1", "it is wrong", b"xxx"))
    assert report.add(Finding("job", "error", "a.py:1", "it is wrong", b"x"))
    assert not report.add(Finding("job", "error", "a.py:1", "it is wrong", b"xx"))
    assert len(report) == 1
    assert "b'x'" in str(report)
