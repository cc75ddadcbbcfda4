"""Code jobs: jobs that carry the Python source that they run.

The source defines a function ``body``. A code job requires ``CODE_CAPABILITY``, so only workers that are configured
to run code get it. This module validates the source and never runs it.
"""

from __future__ import annotations

import ast
import hashlib
import symtable
import warnings
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest

CODE_TYPE: Final = "ojster.code"
"""The type of jobs that carry code."""

ATTRIBUTE: Final = "ojster_code"
"""The attribute of the job that holds the code."""

CODE_CAPABILITY: Final = "ojster.code"
"""The capability of workers that run code: ``confined``, or ``weak`` where the platform cannot confine it."""

LARGEST_BODY: Final = 65_536
"""Maximum size of the source, in bytes."""

MOST_MODULES: Final = 100

UNAVAILABLE: Final = frozenset(
    {
        "__import__",
        "aiter",
        "anext",
        "breakpoint",
        "compile",
        "dir",
        "eval",
        "exec",
        "globals",
        "input",
        "locals",
        "memoryview",
        "vars",
    }
)
"""Built-in functions of Python that code cannot use (``ojster.sandbox.policy``)."""


class Code(msgspec.Struct, frozen=True):
    """The code of a job.

    Parameters
    ----------
    body:
        Python source with a function ``body``, which is called with the job and the job's arguments.
    modules:
        Modules that it may import, from those that the worker allows; ``None``: all that the worker allows.
    params:
        The parameters of the definition that it is a step of, within a workflow; ``None``: those of the workflow.
    """

    body: str
    modules: tuple[str, ...] | None = None
    params: dict[str, Any] | None = None


def kind_of(code: Code) -> str:
    """Return the type that unique keys have for a code job: all have one type, but what they do is in their code."""
    return f"{CODE_TYPE} {hashlib.sha256(code.body.encode()).hexdigest()}"


def read_code(raw: bytes | msgspec.Raw) -> Code:
    """Return the code that a job carries.

    Raises
    ------
    InvalidRequest
        It is malformed, not valid Python, or does not define exactly one suitable function ``body``.
    """
    try:
        code = msgspec.json.decode(raw, type=Code)
    except msgspec.MsgspecError as error:
        raise _wrong(f"it must have a 'body' and may have 'modules': {error}") from None
    if len(code.body.encode(errors="replace")) > LARGEST_BODY:
        raise _wrong(f"the body has more than {LARGEST_BODY} bytes")
    if len(code.modules or ()) > MOST_MODULES:
        raise _wrong(f"it names more than {MOST_MODULES} modules")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code.body, "<body>")
            names = _global_names(code.body)
    except SyntaxError as error:
        raise _wrong(f"the body is not valid Python: {error.msg} (line {error.lineno})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise _wrong(f"the body cannot be read: {error}") from None
    if missing := sorted(names & UNAVAILABLE):
        raise _wrong(f"{missing[0]!r} is not available to code; docs/node-workflow.md lists what is")
    bodies = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "body"]
    if len(bodies) != 1:
        raise _wrong("the body must define one function 'body(job)'")
    arguments = bodies[0].args
    if not arguments.args and not arguments.posonlyargs and arguments.vararg is None:
        raise _wrong("the function 'body' must take the job as its first argument")
    return code


def _global_names(source: str) -> set[str]:
    """Return the names that a source reads and does not define itself."""
    top = symtable.symtable(source, "<body>", "exec")
    own = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    symbols: set[str] = set()
    scopes = [top]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (scope is top or symbol.is_global()):
                symbols.add(symbol.get_name())
    return symbols - own


def _wrong(why: str) -> InvalidRequest:
    return InvalidRequest(f"The code of the job is invalid: {why}.", field="body")
