"""Which requests carry code, and which code is accepted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.errors import Duplicate, InvalidRequest
from ojster.core.json_objects import Members
from ojster.jobs.code import LARGEST_BODY, MOST_MODULES, Code, read_code
from ojster.jobs.contents import carries_code, objects_in
from tests.conftest import Bench, request

BODY = "def body(job): return 1"


@pytest.mark.parametrize(
    "request_of",
    [
        {"type": "ojster.code"},
        {"type": "ojster.code@2"},
        {"job_type": "ojster.code"},
        {"type": "a", "ojster_code": {}},
        {"body": BODY},
        {"type": "chain", "steps": [{"type": "a"}, {"body": BODY}]},
        {"type": "a", "reactions": [{"enqueue": {"type": "ojster.code"}}]},
        [{"type": "a"}, {"type": "ojster.code"}],
    ],
)
def test_a_request_that_makes_a_job_with_code_is_known(request_of: Any) -> None:
    assert carries_code(objects_in(msgspec.json.encode(request_of)))


@pytest.mark.parametrize(
    "request_of",
    [
        {"type": "a"},
        {"type": "ojster.codex"},
        {"type": "ojster"},
        {"type": 5},
        {"type": "a", "body": BODY},
        *({"type": "a", name: {"ojster_code": {}}} for name in ("args", "params", "meta", "metadata", "properties")),
        {"type": "a", "options": {"body": BODY}},
        "ojster.code",
        5,
    ],
)
def test_values_are_no_code_whatever_they_look_like(request_of: Any) -> None:
    assert not carries_code(objects_in(msgspec.json.encode(request_of)))


def read(body: str, **more: Any) -> Code:
    return read_code(msgspec.json.encode({"body": body, **more}))


@pytest.mark.parametrize(
    "body",
    [
        BODY,
        "def body(*args): pass",
        "def body(job, /): pass",
        "import json\ndef other(): pass\ndef body(job): return json.dumps(other())",
        "def body(job):\n    vars = 1\n    return vars",
        "dir = 5\ndef body(job): return dir",
        "class A:\n    def eval(self): pass\ndef body(job): return A().eval()",
    ],
)
def test_a_function_of_the_job_is_code(body: str) -> None:
    assert read(body) == Code(body)


REFUSED: list[tuple[str, str]] = [
    ("x = 1", "the body must define one function 'body(job)'"),
    ("def other(job): pass", "the body must define one function 'body(job)'"),
    ("def body(job): pass\ndef body(job): pass", "the body must define one function 'body(job)'"),
    ("async def body(job): pass", "the body must define one function 'body(job)'"),
    ("def body(): pass", "the function 'body' must take the job as its first argument"),
    ("def body(*, job): pass", "the function 'body' must take the job as its first argument"),
    ("def body(**job): pass", "the function 'body' must take the job as its first argument"),
    ("def body(job: pass", "the body is not valid Python:"),
    ("\n\ndef", "(line 3)"),
    ("def body(job): pass\0", "the body"),
    *(
        (f"def body(job): return {name}", f"{name!r} is not available to code")
        for name in ("__import__", "aiter", "anext", "breakpoint", "compile", "dir", "eval", "exec", "globals")
    ),
    *((f"{name}\ndef body(job): pass", f"{name!r} is not") for name in ("input", "locals", "memoryview", "vars")),
    ("def body(job):\n    def inner(): return eval\n    return inner", "'eval' is not available to code"),
    ("def body(job): return (vars, eval)", "'eval' is not available to code"),
]


@pytest.mark.parametrize(("body", "reason"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_is_no_such_function_is_refused_with_the_reason(body: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(body)
    assert reason in refused.value.message
    assert refused.value.details == {"field": "body"}


def test_code_has_bounds() -> None:
    def long(length: int) -> str:
        return BODY + "#" * (length - len(BODY))

    assert read(long(LARGEST_BODY)).body == long(LARGEST_BODY)
    with pytest.raises(InvalidRequest, match="the body has more than 65536 bytes"):
        read(long(LARGEST_BODY + 1))
    modules = [f"m{n}" for n in range(MOST_MODULES)]
    assert read(BODY, modules=modules).modules == tuple(modules)
    with pytest.raises(InvalidRequest, match="it names more than 100 modules"):
        read(BODY, modules=[*modules, "one"])


@pytest.mark.parametrize("given", [{}, {"body": 5}, {"body": BODY, "modules": "json"}, []])
def test_code_has_a_body_and_maybe_modules(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="it must have a 'body' and may have 'modules'"):
        read_code(msgspec.json.encode(given))


@pytest.mark.anyio
async def test_code_jobs_with_other_code_are_no_duplicates(bench: Bench) -> None:
    def carrying(body: str, *args: Any) -> Members:
        unique = {"keys": ["type", "args"], "on_conflict": "reject"}
        code = msgspec.Raw(msgspec.json.encode({"body": body}))
        return request("ojster.code", *args, unique=unique) | {"ojster_code": code}

    one, other = "def body(job, x):\n    return 1", "def body(job, x):\n    return 2"
    for job in (carrying(one, 1), carrying(other, 1), carrying(one, 2)):
        await bench.service.jobs.enqueue([job])
    with pytest.raises(Duplicate):
        await bench.service.jobs.enqueue([carrying(one, 1)])
