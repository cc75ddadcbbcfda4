"""Fingerprints of unique jobs: the parts of a job that count, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.errors import InvalidRequest
from ojster.core.states import UNFINISHED
from ojster.jobs.policy_wire import parse_unique_policy
from ojster.jobs.uniqueness import UniquePolicy, fingerprint


def _is_unicode(value: Any) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
).filter(_is_unicode)


def mark(policy: UniquePolicy, **job: Any) -> str:
    return fingerprint(policy, **({"type": "a.b", "queue": "q", "args": [], "meta": {}} | job))


ARGS = UniquePolicy(keys=("args",))


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [shuffled(member) for member in value]
    return value


@given(st.lists(json_values, max_size=4))
def test_the_order_of_members_does_not_matter(args: list[Any]) -> None:
    assert mark(ARGS, args=args) == mark(ARGS, args=shuffled(args))


def test_the_order_of_arguments_does() -> None:
    assert mark(ARGS, args=[1, 2]) != mark(ARGS, args=[2, 1])


def test_the_type_always_counts() -> None:
    assert mark(ARGS, type="a.b") != mark(ARGS, type="a.c")


def test_the_queue_counts_only_if_it_is_named() -> None:
    assert mark(UniquePolicy(), queue="a") == mark(UniquePolicy(), queue="b")
    assert mark(UniquePolicy(keys=("queue",)), queue="a") != mark(UniquePolicy(keys=("queue",)), queue="b")


def test_equal_numbers_are_equal_however_they_are_written() -> None:
    assert mark(ARGS, args=[1]) == mark(ARGS, args=[1.0])


def test_integers_beyond_a_double_stay_apart() -> None:
    assert mark(ARGS, args=[2**53]) != mark(ARGS, args=[2**53 + 1])


def test_the_same_text_in_another_normal_form_is_the_same() -> None:
    assert mark(ARGS, args=["caf\u00e9"]) == mark(ARGS, args=["cafe\u0301"])


def test_only_the_chosen_arguments_count() -> None:
    policy = UniquePolicy(keys=("args",), args_keys=("user",))
    assert mark(policy, args=[{"user": 1, "x": 1}]) == mark(policy, args=[{"user": 1, "x": 2}])
    assert mark(policy, args=[{"user": 1}]) != mark(policy, args=[{"user": 2}])
    by_position = UniquePolicy(keys=("args",), args_keys=("0",))
    assert mark(by_position, args=[7, 1]) == mark(by_position, args=[7, 2])


def test_only_the_chosen_metadata_counts() -> None:
    policy = UniquePolicy(keys=("meta",), meta_keys=("tenant",))
    assert mark(policy, meta={"tenant": "a", "trace": 1}) == mark(policy, meta={"tenant": "a", "trace": 2})


def test_a_chosen_key_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no key 'user'"):
        mark(UniquePolicy(keys=("args",), args_keys=("user",)), args=[1])
    with pytest.raises(InvalidRequest, match="no key 'tenant'"):
        mark(UniquePolicy(keys=("meta",), meta_keys=("tenant",)))


def test_a_known_fingerprint_does_not_change() -> None:
    """Other implementations compute the same fingerprint: SHA-256 of the canonical JSON."""
    import hashlib

    canonical = '{"args":{"user_id":42},"queue":"notifications","type":"email.send"}'
    policy = UniquePolicy(keys=("type", "queue", "args"), args_keys=("user_id",))
    found = mark(policy, type="email.send", queue="notifications", args=[{"user_id": 42, "locale": "en"}])
    assert found == hashlib.sha256(canonical.encode()).hexdigest()


def test_the_default_states_are_those_that_are_not_finished() -> None:
    assert parse_unique_policy({}).states == UNFINISHED


@pytest.mark.parametrize(
    "given",
    [
        {"keys": ["argz"]},
        {"keys": "type"},
        {"keys": ["Type"]},
        {"keys": ["meta"]},
        {"keys": ["meta"], "meta_keys": []},
        {"states": ["done"]},
        {"on_conflict": "explode"},
        {"on_conflict": []},
        {"period": "1 h"},
        {"period": 5},
        [],
    ],
)
def test_a_policy_that_breaks_a_rule_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_unique_policy(given)
