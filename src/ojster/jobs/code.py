"""What does a job look like that carries the code that it runs? (seed 002: ``body``)

The code is Python source with a function ``body``. Only workers get such a job that were told to run code: it needs the
fact ``FACT`` of its worker. Here it is checked and never run.
"""

from __future__ import annotations

import ast
import warnings
from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest

CODE_TYPE: Final = "ojster.code"
"""The type of jobs that carry code."""

ATTRIBUTE: Final = "ojster_code"
"""The attribute of the job in which the code stands."""

FACT: Final = "ojster.code"
"""What a worker provides that runs code: ``confined``, or ``weak`` where the platform cannot confine it."""

LARGEST_BODY: Final = 65_536
"""How many bytes the source may have."""

MOST_MODULES: Final = 100


class Code(msgspec.Struct, frozen=True):
    """Code that a job carries.

    Parameters
    ----------
    body:
        Python source with a function ``body``, which is called with the job and the job's arguments.
    modules:
        The modules that it may import, of those that the worker allows; ``None``: all of these.
    """

    body: str
    modules: tuple[str, ...] | None = None


def read_code(raw: bytes | msgspec.Raw) -> Code:
    """Return the code that a job carries.

    Raises
    ------
    InvalidRequest
        It is malformed, no Python, or has no function ``body``.
    """
    try:
        code = msgspec.json.decode(raw, type=Code)
    except msgspec.MsgspecError as error:
        raise _wrong(f"it must have a 'body', and can have 'modules': {error}") from None
    if len(code.body.encode(errors="replace")) > LARGEST_BODY:
        raise _wrong(f"the body has more than {LARGEST_BODY} bytes")
    if len(code.modules or ()) > MOST_MODULES:
        raise _wrong(f"it names more than {MOST_MODULES} modules")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code.body, "<body>")
    except SyntaxError as error:
        raise _wrong(f"the body is no Python: {error.msg} (line {error.lineno})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise _wrong(f"the body cannot be read: {error}") from None
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "body"]
    if len(found) != 1:
        raise _wrong("the body must define one function 'body(job)'")
    arguments = found[0].args
    if not arguments.args and not arguments.posonlyargs and arguments.vararg is None:
        raise _wrong("the function 'body' must take the job")
    return code


def _wrong(why: str) -> InvalidRequest:
    return InvalidRequest(f"The code of the job is refused: {why}.", field="body")
