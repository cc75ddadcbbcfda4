"""The policies of a job as they are given: every name and bound, and what a refusal says."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import rfc8785

from ojster.core.durations import HOUR, MINUTE, SECOND
from ojster.core.errors import InvalidPolicy, InvalidRequest
from ojster.core.states import JobState
from ojster.jobs.policy_wire import (
    RetryPolicyBody,
    parse_retry_policy,
    parse_unique_policy,
    policy_warnings,
    show_retry_policy,
)
from ojster.jobs.retry import RetryPolicy
from ojster.jobs.uniqueness import UniquePolicy, fingerprint

RETRIES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_attempts": 0}, {"max_attempts": 0}),
    ({"max_attempts": 1_000_000}, {"max_attempts": 1_000_000}),
    ({"non_retryable_errors": []}, {}),
    ({"non_retryable_errors": ["a", "b.*"]}, {"non_retryable_errors": ("a", "b.*")}),
    ({"on_exhaustion": "discard"}, {"on_exhaustion": "discard"}),
    ({"on_exhaustion": "dead_letter"}, {"on_exhaustion": "dead_letter"}),
    ({"backoff_coefficient": 1}, {"backoff_coefficient": 1.0}),
    ({"backoff_coefficient": 1e6}, {"backoff_coefficient": 1e6}),
    ({"jitter": False}, {"jitter": False}),
    ({"backoff_strategy": "exponential"}, {}),
    ({"backoff_strategy": "linear"}, {"backoff": "linear"}),
    ({"backoff_strategy": "constant"}, {"backoff": "constant"}),
    ({"backoff_strategy": "none"}, {"backoff": "constant"}),
    ({"backoff_strategy": "fixed"}, {"backoff": "constant"}),
    ({"backoff_strategy": "polynomial"}, {"backoff": "polynomial"}),
    ({"strategy": "linear"}, {"backoff": "linear"}),
    ({"backoff": "linear"}, {"backoff": "linear"}),
    ({"backoff_strategy": "linear", "strategy": "constant", "backoff": "polynomial"}, {"backoff": "linear"}),
    ({"backoff_strategy": None, "strategy": "constant", "backoff": "polynomial"}, {"backoff": "constant"}),
    ({"initial_interval": "PT0.000001S"}, {"initial_interval": 1}),
    ({"initial_interval": "2s"}, {"initial_interval": 2 * SECOND}),
    ({"initial_interval": "2s", "initial_interval_ms": 7}, {"initial_interval": 2 * SECOND}),
    ({"initial_interval_ms": 1}, {"initial_interval": 1_000}),
    ({"max_interval": "PT1S"}, {"max_interval": SECOND}),
    ({"max_interval": "PT1H"}, {"max_interval": HOUR}),
    ({"max_interval_ms": 10**12}, {"max_interval": 10**15}),
    ({"max_attempts": None, "jitter": None, "backoff_coefficient": None, "non_retryable_errors": None}, {}),
    ({"on_exhaustion": None, "initial_interval": None, "max_interval": None, "initial_interval_ms": None}, {}),
    ({"unknown": 1}, {}),
]


@pytest.mark.parametrize(("given", "expected"), RETRIES, ids=[str(n) for n in range(len(RETRIES))])
def test_a_retry_policy_is_read_in_each_of_its_forms(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse_retry_policy(given) == RetryPolicy(**expected)


BROKEN: list[tuple[Any, str, str]] = [
    ([], "retry", "retry must be an object."),
    ({"max_attempts": -1}, "retry.max_attempts", "must be an integer from 0 to 1000000, not -1."),
    ({"max_attempts": 1_000_001}, "retry.max_attempts", "not 1000001."),
    ({"max_attempts": True}, "retry.max_attempts", "not True."),
    ({"non_retryable_errors": "x"}, "retry.non_retryable_errors", "must be an array of non-empty strings, not 'x'."),
    ({"non_retryable_errors": ["x", ""]}, "retry.non_retryable_errors", "not ['x', '']."),
    ({"non_retryable_errors": [1]}, "retry.non_retryable_errors", "not [1]."),
    ({"on_exhaustion": "x"}, "retry.on_exhaustion", "must be 'discard' or 'dead_letter', not 'x'."),
    ({"backoff_coefficient": 0.99}, "retry.backoff_coefficient", "must be a number from 1.0 to 1000000, not 0.99."),
    ({"backoff_coefficient": 1_000_001}, "retry.backoff_coefficient", "not 1000001."),
    ({"backoff_coefficient": True}, "retry.backoff_coefficient", "not True."),
    ({"backoff_coefficient": "2"}, "retry.backoff_coefficient", "not '2'."),
    ({"jitter": 1}, "retry.jitter", "must be true or false, not 1."),
    ({"backoff_strategy": "x"}, "retry.backoff_strategy", "must be one of exponential, linear, constant, none, fixed"),
    ({"strategy": "x"}, "retry.strategy", "not 'x'."),
    ({"backoff": 5}, "retry.backoff", "not 5."),
    ({"backoff": []}, "retry.backoff", "not []."),
    ({"initial_interval": 5}, "retry.initial_interval", "must be an ISO 8601 duration such as 'PT30S', not 5."),
    ({"initial_interval": "x"}, "retry.initial_interval", "retry.initial_interval: 'x' is not an ISO 8601 duration"),
    ({"initial_interval": "PT0S"}, "retry.initial_interval", "must be longer than zero, not 'PT0S'."),
    ({"initial_interval_ms": 0}, "retry.initial_interval", "must be longer than zero, not 0."),
    ({"initial_interval_ms": -1}, "retry.initial_interval_ms", "must be a number of milliseconds, not -1."),
    ({"initial_interval_ms": True}, "retry.initial_interval_ms", "not True."),
    ({"max_interval_ms": 3_153_600_000_001}, "retry.max_interval_ms", "not 3153600000001."),
    ({"max_interval": "PT0.5S"}, "retry.max_interval", "(by default it is 'PT5M'), not 'PT0.5S'."),
    ({"max_interval_ms": 999}, "retry.max_interval", "must not be shorter than initial_interval"),
    ({"max_interval_ms": 999}, "retry.max_interval", "not 999."),
]


@pytest.mark.parametrize(("given", "field", "reason"), BROKEN, ids=[str(n) for n in range(len(BROKEN))])
def test_a_refused_retry_policy_names_the_rule_and_the_value(given: Any, field: str, reason: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        parse_retry_policy(given)
    assert refused.value.details == {"field": field}
    assert reason in refused.value.message


def test_a_retry_policy_is_shown_complete() -> None:
    policy = RetryPolicy(7, 2 * SECOND, 3.0, MINUTE, False, ("a",), "dead_letter", "linear")
    assert show_retry_policy(policy) == RetryPolicyBody(7, "PT2S", 3.0, "PT1M", False, ("a",), "dead_letter", "linear")
    assert show_retry_policy(RetryPolicy()) == RetryPolicyBody(3, "PT1S", 2.0, "PT5M", True, ())


UNIQUE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"keys": ["queue", "args"]}, {"keys": ("queue", "args")}),
    ({"keys": []}, {}),
    ({"key": ["type", "queue"]}, {"keys": ("type", "queue")}),
    ({"key": ["order"]}, {"keys": ("type", "args"), "args_keys": ("order",)}),
    ({"key": ["queue", "order"]}, {"keys": ("queue", "args"), "args_keys": ("order",)}),
    ({"key": ["args", "order"]}, {"keys": ("args",), "args_keys": ("order",)}),
    ({"key": ["order"], "keys": ["queue"]}, {"keys": ("queue", "args"), "args_keys": ("order",)}),
    ({"key": ["order"], "args_keys": ["id"]}, {"keys": ("type", "args"), "args_keys": ("id",)}),
    ({"keys": ["args"], "args_keys": ["id"]}, {"keys": ("args",), "args_keys": ("id",)}),
    ({"keys": ["meta"], "meta_keys": ["id"]}, {"keys": ("meta",), "meta_keys": ("id",)}),
    ({"period": "PT1H"}, {"period": HOUR}),
    ({"period": "1h"}, {"period": HOUR}),
    ({"within": "PT1H"}, {"period": HOUR}),
    ({"period": "PT1H", "within": "PT1M", "period_ms": 5}, {"period": HOUR}),
    ({"period_ms": 5}, {"period": 5_000}),
    ({"period_ms": 10**12}, {"period": 10**15}),
    ({"period_ms": 0}, {}),
    ({"states": ["active", "completed"]}, {"states": frozenset({JobState.ACTIVE, JobState.COMPLETED})}),
    ({"states": []}, {"states": frozenset()}),
    ({"on_conflict": None}, {}),
    ({"b": 1, "a": 2}, {}),
    ({"on_conflict": "reject"}, {}),
    ({"on_conflict": "replace"}, {"on_conflict": "replace"}),
    ({"on_conflict": "replace_except_schedule"}, {"on_conflict": "replace_except_schedule"}),
    ({"on_conflict": "ignore"}, {"on_conflict": "ignore"}),
    ({"on_conflict": "use_existing"}, {"on_conflict": "ignore"}),
]


@pytest.mark.parametrize(("given", "expected"), UNIQUE, ids=[str(n) for n in range(len(UNIQUE))])
def test_a_uniqueness_policy_is_read_in_each_of_its_forms(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse_unique_policy(given) == UniquePolicy(**expected)


REFUSED: list[tuple[Any, str, str]] = [
    ([], "unique", "unique must be an object."),
    ({"keys": ["x"]}, "unique.keys", "unique.keys: 'x' is not one of type, queue, args, meta."),
    ({"keys": "type"}, "unique.keys", "unique.keys must be an array of strings."),
    ({"key": [1]}, "unique.key", "unique.key must be an array of strings."),
    ({"args_keys": 5}, "unique.args_keys", "unique.args_keys must be an array of strings."),
    ({"keys": ["meta"]}, "unique.meta_keys", "must name keys when 'meta' is in unique.keys."),
    ({"states": ["x"]}, "unique.states", "unique.states: 'x' is not one of scheduled"),
    ({"on_conflict": "x"}, "unique.on_conflict", "must be one of reject, replace, replace_except_schedule, ignore"),
    ({"on_conflict": 5}, "unique.on_conflict", "not 5."),
    ({"period_ms": -1}, "unique.period_ms", "unique.period_ms must be a number of milliseconds."),
    ({"period_ms": 3_153_600_000_001}, "unique.period_ms", "unique.period_ms must be a number of milliseconds."),
    ({"period_ms": True}, "unique.period_ms", "unique.period_ms must be a number of milliseconds."),
    ({"period": 5}, "unique.period", "unique.period must be an ISO 8601 duration such as 'PT1H', not 5."),
    ({"within": "x"}, "unique.within", "unique.within must be an ISO 8601 duration such as 'PT1H', not 'x'."),
]


@pytest.mark.parametrize(("given", "field", "reason"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_a_refused_uniqueness_policy_names_the_rule_and_the_value(given: Any, field: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_unique_policy(given)
    assert refused.value.details == {"field": field}
    assert reason in refused.value.message


def of_arguments(*args: Any) -> str:
    return fingerprint(UniquePolicy(keys=("args",)), type="a", queue="q", args=list(args), meta={})


def test_the_largest_number_of_a_double_is_a_number_in_a_fingerprint() -> None:
    for number in (2**53 - 1, -(2**53 - 1)):
        plain = rfc8785.dumps({"type": "a", "args": [number]})
        assert of_arguments(number) == hashlib.sha256(plain).hexdigest()
    assert of_arguments(2**53) != of_arguments(2**53 + 1)
    assert of_arguments(True) != of_arguments(1)


def test_an_argument_is_chosen_by_its_name_or_by_its_place() -> None:
    def chosen(key: str, *args: Any) -> str:
        policy = UniquePolicy(keys=("args",), args_keys=(key,))
        return fingerprint(policy, type="a", queue="q", args=list(args), meta={})

    assert chosen("1", "x", 7) == chosen("1", "y", 7) != chosen("1", "x", 8)
    assert chosen("0", {"0": "named"}, 5) == chosen("0", 1, {"0": "named"})
    assert chosen("k", {"k": 1}, {"k": 2}) == chosen("k", {"k": 1})
    for key in ("2", "k", "-1", "9" * 5_000):
        with pytest.raises(InvalidRequest, match=f"args has no key '{key}'") as refused:
            chosen(key, "x", 7)
        assert refused.value.details == {"field": "unique.args_keys"}


IDLE: list[tuple[dict[str, Any], str]] = [
    ({"args_keys": ["order"]}, "unique.args_keys has no effect, because unique.keys does not have 'args'. Add it."),
    ({"keys": ["queue"], "args_keys": ["order"]}, "unique.args_keys has no effect"),
    ({"keys": ["args"], "meta_keys": ["order"]}, "unique.meta_keys has no effect"),
    ({"states": []}, "unique has no effect, because unique.states is empty."),
    ({"period": "PT0S"}, "unique has no effect, because its period is 0."),
    ({"within": "PT0.0S"}, "unique has no effect, because its period is 0."),
]


@pytest.mark.parametrize(("unique", "reason"), IDLE)
def test_a_member_of_a_unique_policy_that_has_no_effect_brings_a_warning(unique: dict[str, Any], reason: str) -> None:
    (warning,) = policy_warnings({"unique": unique})
    assert warning.startswith(reason)


@pytest.mark.parametrize(
    "unique",
    [
        {},
        {"keys": ["args"], "args_keys": ["order"]},
        {"keys": ["meta"], "meta_keys": ["order"]},
        {"key": ["order"], "args_keys": ["id"]},
        {"keys": None, "args_keys": None, "meta_keys": [], "states": None},
        {"states": ["active"]},
    ],
)
def test_a_unique_policy_whose_members_have_an_effect_brings_no_warning(unique: dict[str, Any]) -> None:
    assert policy_warnings({"unique": unique}) == []
