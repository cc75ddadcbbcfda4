"""Calls that are enqueued together have the requests that each would have alone, or the same refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster import App
from ojster.core.json_objects import MAX_VALUE_DEPTH, Members
from ojster.core.values import each_to_json, to_json
from ojster.handlers.codec import Codec, Gzip
from ojster.handlers.job_type import JobType
from ojster.handlers.named_arguments import arguments_of_call
from ojster.jobs.models import AlikeRequests
from tests.client.test_deep_values import nested

DEEPEST = MAX_VALUE_DEPTH - 1  # the list of arguments is a level, too

LONG = "x" * 200


class Animal(pydantic.BaseModel):
    name: str


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(st.characters(codec="utf-8")),
        st.dates(),
        st.builds(Animal, name=st.text(max_size=3)),
        st.sampled_from([nested(DEEPEST), nested(DEEPEST + 1), LONG, LONG + "[{" * 40, {"$ref": "x"}]),
        st.sampled_from([object(), "\ud800", msgspec.Raw(b"1],[2"), msgspec.Raw(b"[ 1 , 2 ]"), msgspec.Raw(b"]")]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=6,
)


@given(st.lists(st.lists(VALUES, max_size=3), max_size=6))
def test_values_that_are_encoded_together_are_what_each_is_alone(values: list[list[Any]]) -> None:
    together = each_to_json(values)
    if together is not None:
        assert together == [to_json(value) for value in values]


def test_values_of_all_kinds_are_encoded_together() -> None:
    values = [(), [None], (1.5, LONG, nested(DEEPEST)), [{"a": [Animal(name="cat")]}], [date(2027, 1, 1)]]
    assert each_to_json(values) == [to_json(list(value)) for value in values]


@pytest.mark.parametrize(
    "wrong",
    [math.nan, -math.inf, object(), nested(DEEPEST + 1), "\ud800", msgspec.Raw(b"1],[2")],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_to_json_refuses_is_left_to_it(wrong: Any) -> None:
    assert each_to_json([[None], [LONG, wrong]]) is None


def outcome(function: Callable[[], Sequence[Members]]) -> object:
    """Return the requests that a function makes, or its error."""
    try:
        return [{name: bytes(raw) for name, raw in members.items()} for members in function()]
    except Exception as error:
        return type(error), str(error)


Calls = list[tuple[Any, ...] | list[Any] | Mapping[str, Any]]

CALLS: list[Calls] = [
    [],
    [("ada",)],
    [("ada", 1), ["grace", 2], {"to": "joan", "times": 3}, {"to": "jean"}],
    [("ada", 1), ("grace", "many")],
    [("ada",), ("grace", 1, 2)],
    [("ada",), (math.nan,)],
    [("ada",), (object(),)],
    [("ada",), {"whom": "grace"}],
    [("ada",), (nested(DEEPEST + 1),)],
    [(object(),), ()],
    [(nested(DEEPEST + 1),), {"whom": "grace"}],
    [(1,), ("grace", 1, 2)],
]


@pytest.mark.parametrize("codecs", [(), (Gzip(),)], ids=["plain", "encoded"])
@pytest.mark.parametrize("calls", CALLS, ids=map(str, range(len(CALLS))))
def test_calls_have_the_requests_that_each_would_have_alone(calls: Calls, codecs: Sequence[Codec]) -> None:
    app = App("sqlite:///:memory:", codecs=codecs)

    @app.job("send", priority=3)
    def send(to: str, times: int = 1, *, urgent: bool = False) -> None: ...

    @app.job("note")
    def note(to: Any, times: Any = 1) -> None: ...

    job_types: list[JobType[Any, Any]] = [send, note]
    for job_type in job_types:
        for carried in ({}, {"traceparent": "00-1"}):
            together = outcome(partial(job_type._requests, calls, carried))
            each = outcome(partial(one_by_one, job_type, calls, carried))
            assert together == each
    assert isinstance(note._requests([(1,), (2,)], {}), AlikeRequests) == (not codecs)
    app.close()


def one_by_one(job_type: JobType[Any, Any], calls: Calls, carried: Mapping[str, str]) -> list[Members]:
    return [job_type.request(*arguments_of_call(call), carried) for call in calls]
