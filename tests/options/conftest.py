"""Requests with every value there is: answers repeat what the specification does not know."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faithful.spec_answers import SpecAnswers


@pytest.fixture(autouse=True)
def answers_follow_the_specification(spec_check: SpecAnswers | None) -> Iterator[None]:
    """Leave the form of answers to the tests of what the specification allows."""
    yield
    if spec_check is not None:
        spec_check.unexplained()
