"""Retry policies: the four backoffs, jitter, caps, non-retryable errors and rejected policies."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster import Retry
from ojster.core.durations import SECOND
from ojster.core.errors import InvalidPolicy
from ojster.core.settings import ServiceSettings
from ojster.jobs.policy_wire import parse_retry_policy
from ojster.jobs.retry import RetryPolicy, Verdict, judge
from tests.conftest import Bench

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(0, 50),
    initial_interval=st.integers(1, 60 * SECOND),
    backoff_coefficient=st.floats(1, 1e6),
    max_interval=st.integers(60 * SECOND, 3600 * SECOND),
    jitter=st.booleans(),
    backoff=st.sampled_from(["exponential", "linear", "constant", "polynomial"]),
)


@pytest.mark.parametrize(
    ("backoff", "coefficient", "seconds"),
    [
        ("constant", 2.0, [5, 5, 5, 5]),
        ("linear", 2.0, [5, 10, 15, 20]),
        ("exponential", 2.0, [5, 10, 20, 40]),
        ("exponential", 1.0, [5, 5, 5, 5]),
        ("polynomial", 4.0, [5, 80, 300, 300]),
    ],
)
def test_delays_grow_as_the_specification_says(
    backoff: Literal["constant", "linear", "exponential", "polynomial"], coefficient: float, seconds: list[int]
) -> None:
    policy = RetryPolicy(initial_interval=5 * SECOND, backoff=backoff, backoff_coefficient=coefficient, jitter=False)
    assert [policy.delay(retry, 0.5) // SECOND for retry in range(1, 5)] == seconds


@given(policies, st.integers(1, 100_000), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_never_longer_than_the_cap_and_never_negative(
    policy: RetryPolicy, retry: int, random: float
) -> None:
    assert 0 <= policy.delay(retry, random) <= policy.max_interval


@given(policies, st.integers(1, 50), st.floats(0, 1, exclude_max=True))
def test_jitter_changes_a_delay_by_at_most_half(policy: RetryPolicy, retry: int, random: float) -> None:
    plain = RetryPolicy(**{name: getattr(policy, name) for name in policy.__struct_fields__} | {"jitter": False})
    steady = plain.delay(retry, random)
    assert steady * 0.5 - 1 <= policy.delay(retry, random) <= steady * 1.5 + 1


@given(policies, st.integers(1, 60))
def test_without_jitter_delays_never_shrink(policy: RetryPolicy, retry: int) -> None:
    plain = RetryPolicy(**{name: getattr(policy, name) for name in policy.__struct_fields__} | {"jitter": False})
    assert plain.delay(retry, 0.0) <= plain.delay(retry + 1, 0.0)


@pytest.mark.parametrize(
    ("error", "forbidden"),
    [
        ("validation.payload_invalid", True),
        ("validation.schema_error", False),
        ("auth.token_expired", True),
        ("auth.forbidden", True),
        ("auth", False),
        ("authx.y", False),
        ("external.auth.failure", False),
    ],
)
def test_errors_are_matched_whole_or_by_prefix(error: str, forbidden: bool) -> None:
    policy = RetryPolicy(non_retryable_errors=("validation.payload_invalid", "auth.*"))
    assert policy.forbids(error) is forbidden


def verdict(policy: RetryPolicy, attempt: int, **more: Any) -> Verdict:
    facts: dict[str, Any] = {"error_type": "X", "code": "handler_error", "retryable": None} | more
    return judge(policy, attempt=attempt, max_attempts=policy.max_attempts, **facts)


@given(policies, st.integers(1, 100))
def test_there_are_never_more_attempts_than_allowed(policy: RetryPolicy, attempt: int) -> None:
    assert (verdict(policy, attempt) == Verdict.RETRY) is (attempt < policy.max_attempts)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("DISCARD", Verdict.DISCARD),
        ("FAIL", Verdict.DISCARD),
        ("DEAD_LETTER", Verdict.DEAD_LETTER),
        ("RETRY", Verdict.RETRY),
        ("handler_error", Verdict.RETRY),
    ],
)
def test_the_error_code_of_the_handler_overrides_the_policy(code: str, expected: Verdict) -> None:
    assert verdict(RetryPolicy(on_exhaustion="discard"), 1, code=code) == expected


def test_an_error_that_is_not_retryable_is_final() -> None:
    assert verdict(RetryPolicy(), 1, retryable=False) == Verdict.DISCARD
    assert verdict(RetryPolicy(on_exhaustion="dead_letter"), 1, retryable=False) == Verdict.DEAD_LETTER
    assert verdict(RetryPolicy(non_retryable_errors=("X",)), 1) == Verdict.DISCARD


def test_what_is_left_out_is_the_default() -> None:
    assert parse_retry_policy({}) == RetryPolicy()
    assert parse_retry_policy({"max_attempts": 10, "on_exhaustion": "dead_letter"}) == RetryPolicy(
        max_attempts=10, on_exhaustion="dead_letter"
    )


def test_intervals_may_be_given_in_milliseconds() -> None:
    assert parse_retry_policy({"initial_interval_ms": 1500, "max_interval_ms": 9000}) == RetryPolicy(
        initial_interval=1_500_000, max_interval=9_000_000
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 10**12}, "max_attempts"),
        ({"backoff_coefficient": 0.5}, "backoff_coefficient"),
        ({"backoff_coefficient": "2"}, "backoff_coefficient"),
        ({"backoff_coefficient": 1e300}, "backoff_coefficient"),
        ({"jitter": 1}, "jitter"),
        ({"initial_interval": "1 s"}, "initial_interval"),
        ({"initial_interval": "PT0S"}, "initial_interval"),
        ({"initial_interval": 1}, "initial_interval"),
        ({"max_interval": "P"}, "max_interval"),
        ({"initial_interval": "PT10M"}, "max_interval"),
        ({"non_retryable_errors": "X"}, "non_retryable_errors"),
        ({"non_retryable_errors": [""]}, "non_retryable_errors"),
        ({"on_exhaustion": "explode"}, "on_exhaustion"),
        ({"backoff_strategy": "quadratic"}, "backoff_strategy"),
        ([], "retry"),
    ],
)
def test_a_policy_that_breaks_a_rule_is_refused_and_the_rule_named(given: Any, named: str) -> None:
    with pytest.raises(InvalidPolicy, match=named):
        parse_retry_policy(given)


@pytest.mark.anyio
@pytest.mark.parametrize("engine_settings", [ServiceSettings(on_exhaustion="dead_letter")], ids=["keeps dead letters"])
@pytest.mark.parametrize(
    ("retry", "dead"),
    [
        ({"max_attempts": 1}, 1),
        ({"max_attempts": 1, "on_exhaustion": "discard"}, 0),
        ({"max_attempts": 1, "on_exhaustion": "dead_letter"}, 1),
    ],
)
async def test_the_server_says_what_becomes_of_a_job_whose_policy_does_not(
    bench: Bench, retry: dict[str, Any], dead: int
) -> None:
    job = await bench.push(retry=retry)
    await bench.fail(await bench.fetch_one())
    found = await bench.find(job)
    assert (found.state, found.dead) == ("discarded", dead)


def test_a_python_policy_leaves_it_to_the_server_unless_it_says_so() -> None:
    assert "on_exhaustion" not in Retry().to_wire()
    assert Retry(dead_letter=False).to_wire()["on_exhaustion"] == "discard"
    assert Retry(dead_letter=True).to_wire()["on_exhaustion"] == "dead_letter"
