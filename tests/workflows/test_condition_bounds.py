"""The bounds of conditions hold however a condition is written, and whatever values it refers to."""

from __future__ import annotations

import pytest

from ojster.workflows.plan.conditions import InvalidCondition, check_condition, evaluate
from tests.conftest import Http

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "condition",
    [
        'true // "\n && [1].exists(x, x == 1) // "',
        '"""a"b""".size() > 0 && [1].exists(x, x == 1)',
        "'''a'b'''.size() > 0",
        r'r"\".size() > 0 && r"\" == params.x',
        r"bR'\'.size() > 0",
    ],
    ids=["a comment", "triple quotes", "triple single quotes", "raw strings", "raw bytes"],
)
def test_what_hides_macros_and_names_from_a_reader_is_refused(condition: str) -> None:
    with pytest.raises(InvalidCondition, match="neither comments nor triple quotes nor raw strings"):
        check_condition(condition)


@pytest.mark.parametrize("condition", ["params.url == 'https://example.com'", 'params.r == "" && params.b == b"r"'])
def test_plain_strings_may_look_like_them(condition: str) -> None:
    assert check_condition(condition) == frozenset()


def test_macros_in_a_comment_of_an_older_workflow_cannot_take_all_memory() -> None:
    levels = 20  # each doubles the text
    body = f"v{levels}.size() > 1"
    for level in range(levels, 0, -1):
        before = f"v{level - 1}" if level > 1 else "params.s"
        body = f"[{before} + {before}].exists(v{level}, {body})"
    with pytest.raises(InvalidCondition):
        evaluate(f'true // "\n && {body} // "', {"steps": {}, "params": {"s": "x" * 1_000}})


def test_an_integer_that_no_double_holds_is_a_reason_why_a_condition_cannot_be_evaluated() -> None:
    with pytest.raises(InvalidCondition):
        evaluate("params.n == 1", {"steps": {}, "params": {"n": 10**400}})


async def test_a_job_can_be_acknowledged_whatever_the_condition_after_it_refers_to(http: Http) -> None:
    steps = b'[{"type":"a","args":[]},{"type":"b","args":[],"if":"params.n == 1"}]'
    body = b'{"type":"chain","params":{"n":1%b},"steps":%b}' % (b"0" * 400, steps)
    assert (await http("POST", "/ojs/v1/workflows", body)).status_code == 201
    (job,) = await http.fetch()
    answer = await http("POST", "/ojs/v1/workers/ack", {"job_id": job["id"]})
    assert answer.status_code == 200, answer.text


async def test_a_workflow_whose_first_condition_fails_is_created_or_refused(http: Http) -> None:
    steps = b'[{"type":"a","args":[],"if":"params.n == 1"}]'
    body = b'{"type":"chain","params":{"n":1%b},"steps":%b}' % (b"0" * 400, steps)
    answer = await http("POST", "/ojs/v1/workflows", body)
    assert answer.status_code in (201, 400), answer.text
