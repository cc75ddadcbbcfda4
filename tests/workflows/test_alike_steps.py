"""Steps of one list that differ in their arguments alone are read twice, and say what each says that is read."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.errors import OjsterError
from ojster.jobs.known_bodies import KnownBodies
from ojster.workflows.plan import reader
from ojster.workflows.plan.alike_steps import AlikeSteps
from ojster.workflows.plan.reader import StepReader
from tests.workflows.test_alike_requests import ALIKE, LARGEST, OWN, read_raw, said

ARGS = [
    b"[]",
    b"[1]",
    b'["a",{"b":[2]}]',
    b'["\xc3\xa9", "\\ud83d\\ude00"]',
    b'["\\ud800"]',
    b'["\xc3"]',
    b'["args","\\"args\\":[]"]',
    b'[1],"args":[2]',
    b'[1],"id":"x"',
    b" [1] ",
    b"null",
    b"{}",
    b'[{"$ref":"params.x"}]',
    b'[{"\\u0024ref":"params.x"}]',
    b'[{"$ref":"steps.nobody.result"}]',
    b'[{"$x":1}]',
    b'["' + b"x" * LARGEST + b'"]',
    b"[" * 60 + b"]" * 60,
    b"[" * 70 + b"]" * 70,
]
AROUND = [
    b'{"type":"a.b","args":%b}',
    b'{"type": "a.b", "args": %b }',
    b'{"args":%b,"type":"a.b"}',
    b'{"type":"a.b","args":%b,"options":{"queue":"mail","tags":[]}}',
    b'{"type":"a.b","args":%b,"options":null}',
    b'{"type":"a.b","args":%b,"meta":{"args":[1]}}',
    b'{"type":"a.b","meta":{"tenant_id":"acme"},"args":%b}',
    b'{"type":"a.b@2.0","args":%b}',
    b'{"type":"a.b","args":%b,"options":{"unique":{"keys":["args"]}}}',
    b'{"type":"a.b","args":%b,"options":{"delay_until":"+PT1H"}}',
    b'{"type":"a.b","args":%b,"options":{"pending":true}}',
    b'{"type":"a.b","args":%b,"options":{"colour":"red"}}',
    b'{"type":"a.b","args":%b,"options":{"priorty":1}}',
    b'{"type":"a.b","args":%b,"compensaton":1}',
    b'{"type":"a.b","args":%b,"allow_failure":true}',
    b'{"type":"a.b","args":%b,"name":"one"}',
    b'{"type":"a.b","args":%b,"priority_adjustment":1}',
    b'{"type":"a.b","args":%b,"compensate":{"type":"c","args":[]}}',
    b'{"type":"a.b","type":"a.c","args":%b}',
    b'{"type":"wait","delay":1,"args":%b}',
    b'{"type":"gate","args":%b}',
    b'{"type":"?","args":%b}',
    b'{"type":"a.b","args":%b,"others":["others"]}',
]
INSIDE = [
    b'{"type":"chain","steps":[%b],"params":{"x":1}}',
    b'{"type":"group","jobs":[%b],"options":{"priority":3,"queue":"other"},"params":{"x":1}}',
    b'{"type":"chain","steps":[{"type":"group","jobs":[%b]},{"type":"z","args":[]}],"params":{"x":1}}',
    b'{"type":"chain","steps":[%b],"metadata":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}',
    b'{"type":"batch","callbacks":{"on_complete":{"type":"a.b","args":[]}},"jobs":[%b],"params":{"x":1}}',
    b'{"type":"saga","steps":[%b],"params":{"x":1}}',
]


def outcome(body: bytes) -> Any:
    try:
        return said(read_raw(None, body))
    except OjsterError as error:
        return type(error), error.message, error.details


def read_one_by_one(body: bytes) -> Any:
    with patch.object(AlikeSteps, "copy", return_value=None):
        return outcome(body)


@given(
    st.sampled_from(INSIDE),
    st.lists(st.sampled_from(AROUND), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*ARGS[:3] * 5, *ARGS])), max_size=12),
)
def test_a_list_is_read_as_if_each_step_were_alone(
    inside: bytes, around: list[bytes], steps: list[tuple[int, bytes]]
) -> None:
    body = inside % b",".join(around[place % len(around)] % args for place, args in steps)
    assert outcome(body) == read_one_by_one(body)


@pytest.mark.parametrize("around", AROUND)
def test_a_step_that_follows_alike_ones_is_read_as_if_it_were_alone(around: bytes) -> None:
    for inside, args in itertools.product(INSIDE, ARGS):
        body = inside % b",".join(around % own for own in (b"[1]", b"[2]", b"[3]", args, b"[4]"))
        assert outcome(body) == read_one_by_one(body)


@pytest.mark.parametrize("what", ["a chain", "a group with options", "steps with metadata", "traced"])
def test_alike_steps_are_read_twice(what: str) -> None:
    wires = [ALIKE[what](own) for own in OWN]
    name = "jobs" if "jobs" in wires[0] else "steps"
    body = msgspec.json.encode(wires[0] | {name: [wire[name][0] for wire in wires]})
    with patch.object(StepReader, "_step", autospec=True, side_effect=StepReader._step) as read:
        new = read_raw(None, body)
    assert (read.call_count, new.plan.job_count) == (2, len(OWN))


def test_no_step_is_taken_for_an_alike_one_of_another_container() -> None:
    body = (
        b'{"type":"chain","steps":['
        b'{"type":"group","options":{"queue":"one"},"jobs":[%b]},{"type":"group","options":{"queue":"two"},"jobs":[%b]}'
        b"]}"
    )
    jobs = b",".join(b'{"type":"a","args":[%d]}' % number for number in range(4))
    new = read_raw(None, body % (jobs, jobs))
    assert [job.queue for job in new.plan.jobs.values()] == ["one"] * 4 + ["two"] * 4


@pytest.mark.parametrize("count", [3, 8])
def test_too_many_alike_steps_are_refused_as_others_are(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_NODES", 6)
    body = b'{"type":"group","jobs":[%b]}' % b",".join(b'{"type":"a","args":[%d]}' % n for n in range(count))
    assert outcome(body) == read_one_by_one(body)


def test_steps_that_begin_alike_and_end_otherwise_are_tried_as_models_once() -> None:
    steps = [b'{"type":"a","args":[1],"options":{"priority":%d}}' % number for number in range(9)]
    with patch.object(KnownBodies, "remember", autospec=True, side_effect=KnownBodies.remember) as remember:
        new = read_raw(None, b'{"type":"group","jobs":[%b]}' % b",".join(steps))
    assert [job.priority for job in new.plan.jobs.values()] == list(range(9))
    assert remember.call_count == 1
