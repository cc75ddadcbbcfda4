"""The source of a function that a job carries as its code."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any


def source_of(function: Callable[..., Any]) -> str:
    """Return source with a function ``body(job, …)`` that does the same as a function.

    Raises
    ------
    OSError
        The source is not available, such as in an interactive session.
    TypeError
        The function needs more than its own source.
    """
    name = getattr(function, "__name__", repr(function))
    source = textwrap.dedent(inspect.getsource(function)) if inspect.isfunction(function) else ""
    if why := _obstacle(function, source):
        raise TypeError(f"The function {name!r} cannot be sent as code: {why}.")
    if name == "body":
        return source
    return f"{source}\n\ndef body(job, *args):\n    return {name}(job, *args)\n"


def _obstacle(function: Callable[..., Any], source: str) -> str | None:
    """Return why the source alone does not do what the function does, and what to do."""
    if not inspect.isfunction(function):
        return "it is not a plain function. Write one with 'def'"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "it is declared with 'async def', and code runs without an event loop. Declare it with 'def'"
    if inspect.isgeneratorfunction(function):
        return "it is a generator, which is not a result. Return a list"
    if function.__name__ == "<lambda>":
        return "it is a lambda. Write a function with 'def'"
    if function.__name__.startswith("_"):
        return "names in code cannot begin with '_'. Rename it"
    definition = ast.parse(source).body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return "it is decorated, and its decorators are not part of the code. Use a function without them"
    if function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars)
        return f"it uses variables of the function around it ({names}). Pass them as arguments"
    return None
