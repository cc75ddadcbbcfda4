"""The code policy: submitted code is limited to a subset of Python, and known escapes fail with an error."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import msgspec
import pytest

from ojster.core.errors import InvalidRequest
from ojster.jobs.code import LARGEST_BODY, UNAVAILABLE, read_code
from ojster.sandbox import policy
from ojster.sandbox.sandbox import CodeFailed, End, Sandbox, SandboxRequest

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux confines code"),
]


async def run(source: str, **more: Any) -> End:
    return await Sandbox(values={"answer": 42}).run(SandboxRequest(source, **more), timeout=20)


ESCAPES = {
    "subclasses": "return ().__class__.__base__.__subclasses__()",
    "getattr": "return getattr((), '__class__')",
    "getattr of format": "return getattr('{0.__class__}', 'format')(1)",
    "format": "return '{0.__class__.__init__.__globals__}'.format(job)",
    "format_map": "return '{x.__class__}'.format_map({'x': 1})",
    "str.format": "return str.format('{0.__class__}', 1)",
    "frames": "def g(): yield 1\n    return g().gi_frame",
    "frames of an error": "try:\n        1 / 0\n    except ArithmeticError as e:\n        return e.__traceback__",
    "frames by with_traceback": "try:\n        1 / 0\n    except ArithmeticError as e:\n        return e.tb_frame",
    "code objects": "return (lambda: 1).__code__",
    "func_globals": "return body.__globals__",
    "import": "import os\n    return os.getcwd()",
    "import sys": "import sys",
    "import a child": "import urllib.request",
    "import from": "from os import path",
    "import star": "from json import *",
    "import by name": "return __import__('os')",
    "importlib": "import importlib",
    "the modules of a module": "import json\n    return json.codecs",
    "the modules of random": "import random\n    return random._os",
    "builtins": "return __builtins__",
    "eval": "return eval('1')",
    "exec": "exec('x = 1')",
    "compile": "return compile('1', '', 'eval')",
    "globals": "return globals()",
    "locals": "return locals()",
    "vars": "return vars(job)",
    "dir": "return dir(job)",
    "type": "return type('X', (), {})",
    "an operator": "import operator",
    "breakpoint": "breakpoint()",
    "input": "input()",
    "a dunder name": "__x = 1",
    "a dunder attribute": "job.__class__ = dict",
    "a dunder method": "class A:\n        __slots__ = ()\n    return A().__dict__",
    "a match by attributes": "match job:\n        case object(__class__=found):\n            return found",
    "async frames": "async def g(): pass\n    return g().cr_frame",
    "a decorator": "@__import__\n    def os(): pass",
    "files": "return open('/etc/passwd').read()",
    "files by number": "return open(3).read()",
    "attributes by functools": "import functools\n    return functools.update_wrapper(body, map)",
    "attributes by wraps": "from functools import wraps\n    return wraps(map)(body)",
    "format of UserString": "from collections import UserString\n    return UserString('{0.__class__}').format(1)",
}
"""Known escapes from the literature. Each must fail with an error."""


@pytest.mark.parametrize("escape", ESCAPES)
async def test_a_known_way_out_is_closed(escape: str) -> None:
    end = await run(f"def body(job):\n    {ESCAPES[escape]}\n")
    assert end.error is not None, end.result
    assert end.error["message"]


async def test_honest_code_finds_what_it_needs() -> None:
    end = await run(
        '''
import json, math, re
from collections import Counter
from datetime import datetime, timedelta
import urllib.parse

LIMIT: int = 3

class Cart:
    """A class like any other."""

    def __init__(self, items):
        self.items = items

    @property
    def total(self):
        return sum(price for _, price in self.items)

def squares(n):
    for i in range(n):
        yield i * i

def body(job, factor, *, unused=None):
    job["visits"] = job.get("visits", 0)
    job["visits"] += 1
    count = 0
    def bump():
        nonlocal count
        count += 1
        return count
    bump()
    (first, *rest), last = [[1, 2, 3], 4]
    with open("note.txt", "w") as file:
        print("written", file=file)
    print("hello", answer, sep="-")
    try:
        raise KeyError("x")
    except KeyError as error:
        caught = str(error)
    matrix = {(x, y): x * y for x in range(2) for y in range(2)}
    return {
        "cart": Cart([("a", 2), ("b", 3)]).total * factor,
        "squares": [*squares(LIMIT)],
        "json": json.loads(json.dumps({"pi": round(math.pi, 2)})),
        "re": re.findall(r"[a-z]+", "ab 12 cd"),
        "counter": Counter("aab")["a"],
        "date": str(datetime.strptime("2026-11-22", "%Y-%m-%d") + timedelta(days=1)),
        "quoted": urllib.parse.quote("a b"),
        "unpacked": [first, rest, last],
        "f": f"{answer:>4}|{caught!r}",
        "matrix": len(matrix),
        "count": count,
        "params": job.params,
        "who": [job.id, job.attempt, job.target, job.results],
        "walrus": (n := 5) + n,
    }
''',
        args=(10,),
        id="j",
        params={"p": 1},
        target="/t",
        results={"0": "before"},
        properties={"kept": True},
    )
    assert end.error is None, end.error
    assert end.result == {
        "cart": 50,
        "squares": [0, 1, 4],
        "json": {"pi": 3.14},
        "re": ["ab", "cd"],
        "counter": 2,
        "date": "2026-11-23 00:00:00",
        "quoted": "a%20b",
        "unpacked": [1, [2, 3], 4],
        "f": "  42|\"'x'\"",
        "matrix": 4,
        "count": 1,
        "params": {"p": 1},
        "who": ["j", 1, "/t", {"0": "before"}],
        "walrus": 10,
    }
    assert end.properties == {"kept": True, "visits": 1}
    assert end.output.endswith("hello-42\n")


async def test_code_changes_properties_also_when_it_fails() -> None:
    end = await run(
        "def body(job):\n    job['a'] = 1\n    del job['b']\n    raise ValueError('no')", properties={"b": 2}
    )
    assert end.failure is not None
    assert (end.failure.type, end.failure.message, end.properties) == ("ValueError", "no", {"a": 1})
    assert end.failure.backtrace == ("line 4, in body",)
    untouched = await run("def body(job): return len(job)", properties={"b": 2})
    assert (untouched.result, untouched.properties) == (1, None)


async def test_code_fails_with_a_code_and_details() -> None:
    end = await run("def body(job): raise Fail('gone', code='http_404', retryable=False, details={'status': 404})")
    assert end.failure is not None
    assert (end.failure.code, end.failure.retryable, end.failure.details) == ("http_404", False, {"status": 404})


@pytest.mark.parametrize(
    ("raised", "release"),
    [
        ("Wait(3, again=True)", {"then": "wait", "timeout": 3, "again": True}),
        ("Wait()", {"then": "wait", "timeout": None, "again": False}),
        ("Snooze(2)", {"then": "queue", "delay": 2}),
        ("RetryWorkflow()", {"then": "retry"}),
        ("SkipRest({'x': 1})", {"then": "skip", "result": {"x": 1}}),
    ],
)
async def test_code_lets_go_of_its_job(raised: str, release: dict[str, Any]) -> None:
    assert (await run(f"def body(job): raise {raised}")).release == release


async def test_a_result_that_is_not_json_is_rejected() -> None:
    for result in ("{1, 2}", "object()", "float('nan')", "1 + 2j"):
        end = await run(f"def body(job): return {result}")
        assert end.failure is not None, result
        assert "must be JSON" in end.failure.message


async def test_a_task_may_narrow_what_it_imports_but_not_widen_it() -> None:
    source = "def body(job):\n    import json\n    return json.dumps(1)"
    assert (await run(source, modules=("json",))).result == "1"
    denied = await run(source, modules=("math",))
    assert denied.failure is not None
    assert "'json' is not allowed here. Allowed modules: math" in denied.failure.message
    with pytest.raises(CodeFailed, match="does not allow the module 'os'"):
        await run(source, modules=("os",))


async def test_notes_come_while_the_code_runs() -> None:
    heard: list[bytes] = []

    async def hear(note: bytes) -> None:
        heard.append(note)

    source = "def body(job):\n    info('one')\n    job.info({'two': 2})\n    return 3"
    end = await Sandbox().run(SandboxRequest(source), timeout=20, on_note=hear)
    assert (heard, end.result) == ([b'"one"', b'{"two": 2}'], 3)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ({}, "must have a 'body'"),
        ({"body": 3}, "must have a 'body'"),
        ({"body": "def body(job:"}, "not valid Python"),
        ({"body": "x = 1"}, "must define one function"),
        ({"body": "def body(): pass"}, "must take the job"),
        ({"body": "def body(job): pass\ndef body(job): pass"}, "must define one function"),
        ({"body": "async def body(job): pass"}, "must define one function"),
        ({"body": "def body(job): pass\n#" + "x" * LARGEST_BODY}, "more than"),
        ({"body": "def body(job): return " + "(" * 500 + ")" * 500}, "Python"),
        ({"body": "def body(job): pass\0"}, "null bytes"),
        ({"body": "def body(job): pass", "modules": ["x"] * 101}, "modules"),
    ],
)
def test_code_that_cannot_be_run_is_refused_before_and_never_run(code: dict[str, Any], reason: str) -> None:
    import msgspec

    with pytest.raises(InvalidRequest, match=reason):
        read_code(msgspec.json.encode(code))


async def test_where_nothing_confines_code_there_are_no_files() -> None:
    end = await Sandbox(weak=True).run(SandboxRequest("def body(job): return open('/etc/passwd').read()"), timeout=20)
    assert end.failure is not None
    assert end.failure.type == "NameError"


async def test_the_harmless_builtins_are_there() -> None:
    end = await run(
        """
class Counter:
    def __init__(self):
        self.n = 0

    def add(self, by):
        self.n += by
        return self

def kind(value):
    match value:
        case {"type": "a", **rest}:
            return ["a", rest]
        case [first, *others]:
            return ["list", first, others]
        case Counter(n=5):
            return "five"
        case int() | float() as number if number > 3:
            return number
        case None:
            return "nothing"
        case _:
            return "other"

def body(job):
    try:
        raise TimeoutError("slow")
    except (ConnectionError, TimeoutError) as error:
        caught = format(str(error), ">6")
    return {
        "sorted": sorted({3, 1, 2}, reverse=True),
        "zip": [list(pair) for pair in zip("ab", (1, 2))],
        "tuple": list(tuple(range(2))),
        "bytes": bytes([65, 66]).decode(),
        "type": type(1) is int,
        "caught": caught,
        "attribute": Counter().add(2).add(3).n,
        "match": [kind({"type": "a", "x": 1}), kind([1, 2, 3]), kind(Counter().add(5)), kind(4), kind(None), kind("x")],
        "format": "{0} {name:>{width}} {job.id} {items[0]}".format("a", name="b", width=3, job=job, items=[7]),
        "format_map": "{x!r}".format_map({"x": "y"}),
        "bin": bin(5),
    }
""",
        id="j",
    )
    assert end.error is None, end.error
    assert end.result == {
        "sorted": [3, 2, 1],
        "zip": [["a", 1], ["b", 2]],
        "tuple": [0, 1],
        "bytes": "AB",
        "type": True,
        "caught": "  slow",
        "attribute": 5,
        "match": [["a", {"x": 1}], ["list", 1, [2, 3]], "five", 4, "nothing", "other"],
        "format": "a   b j 7",
        "format_map": "'y'",
        "bin": "0b101",
    }


MORE_ESCAPES = {
    "format of an index": "return '{x[0].__class__}'.format(x=[1])",
    "format in a format": "return '{0:{1.__class__}}'.format(1, 2)",
    "format_map of an attribute": "return '{x.gi_frame}'.format_map({'x': (i for i in ())})",
    "a frame in a pattern": "match (i for i in ()):\n        case object(gi_frame=found):\n            return found",
    "a dunder name in a pattern": "match job:\n        case __x:\n            return 1",
    "a dunder rest in a pattern": "match job:\n        case {**__x}:\n            return 1",
    "a class by type": "return type('X', (object,), {})",
    "an attribute in place": "job.__class__ += 1",
    "the format of a type": "return type('').format('{0.__class__}', 1)",
}


@pytest.mark.parametrize("escape", MORE_ESCAPES)
async def test_what_authors_expect_opens_no_way_out(escape: str) -> None:
    end = await run(f"def body(job):\n    {MORE_ESCAPES[escape]}\n")
    assert end.error is not None, end.result


@pytest.mark.parametrize(
    ("raised", "release"),
    [
        (
            "Snooze(until=datetime(2027, 1, 2, tzinfo=timezone.utc))",
            {"then": "queue", "delay": 0.0, "until": "2027-01-02T00:00:00+00:00"},
        ),
        (
            "Wait(deadline='2027-01-02T00:00:00+01:00', again=True)",
            {"then": "wait", "timeout": None, "again": True, "deadline": "2027-01-02T00:00:00+01:00"},
        ),
    ],
)
async def test_code_waits_until_a_time(raised: str, release: dict[str, Any]) -> None:
    source = f"from datetime import datetime, timezone\ndef body(job): raise {raised}"
    assert (await run(source)).release == release
    end = await run("from datetime import datetime\ndef body(job): raise Snooze(until=datetime(2027, 1, 2))")
    assert end.error is not None
    assert "has no time zone" in end.error["message"]


@pytest.mark.parametrize("name", sorted(UNAVAILABLE))
def test_code_that_uses_what_is_missing_is_refused_when_it_is_saved(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' is not available"):
        read_code(msgspec.json.encode({"body": f"def body(job):\n    return [{name}() for x in job]"}))


@pytest.mark.parametrize(
    "source",
    [
        "def body(job):\n    nonlocal x",
        "def body(job):\n    x = 1\n    global x",
        "def body(job, job): pass",
    ],
)
def test_names_that_python_refuses_are_refused_when_they_are_saved(source: str) -> None:
    with pytest.raises(InvalidRequest, match="not valid Python"):
        read_code(msgspec.json.encode({"body": source}))


def test_own_names_may_be_those_of_missing_functions() -> None:
    source = "from json import loads as eval\ndef dir(x): return x\ndef body(job, vars):\n    return dir(eval(vars))"
    assert read_code(msgspec.json.encode({"body": source})).body == source


def test_each_public_builtin_is_available_or_known_to_be_missing() -> None:
    there = policy.namespace({}, {}, print, files=True)["__builtins__"]
    ours = {name for name in dir(builtins) if not name.startswith("_")}
    interactive = {"copyright", "credits", "exit", "quit", "license", "help"}
    handled = {"print"}  # RestrictedPython rewrites its calls
    odd = {"BaseException", "BaseExceptionGroup", "GeneratorExit", "KeyboardInterrupt", "SystemExit"}
    constants = {"Ellipsis", "NotImplemented", "PythonFinalizationError"}
    assert ours - set(there) - interactive - handled - odd - constants == {
        name for name in UNAVAILABLE if name[0] != "_"
    }
