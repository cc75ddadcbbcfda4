"""Hypothesis strategies: arguments of jobs, and attempts that fail. Needs ``hypothesis``."""

from __future__ import annotations

import inspect
import typing
from typing import Any

from hypothesis import strategies as st

from ojster.handlers.job_type import JobType

__all__ = ["arguments_of", "failures", "json_values"]


def json_values(max_leaves: int = 10) -> st.SearchStrategy[Any]:
    """Return JSON values: what a job without annotations may get.

    Parameters
    ----------
    max_leaves:
        Maximum number of values in a value; 10 by default.
    """
    simple = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text()
    simple = simple.filter(lambda value: not isinstance(value, float) or abs(value) < float("inf"))
    return st.recursive(
        simple, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=max_leaves
    )


def arguments_of(handler: JobType[..., Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return positional arguments that fit the annotations of a handler.

    Examples
    --------
    >>> from ojster import App
    >>> app = App("sqlite:///:memory:")
    >>> @app.job
    ... def add(a: int, b: int = 0) -> int: ...
    >>> from ojster.testing.strategies import arguments_of
    >>> strategy = arguments_of(add)  # @given(arguments_of(add))
    >>> app.close()
    """
    hints = typing.get_type_hints(inspect.unwrap(handler.function))
    parts = []
    for parameter in list(handler.signature.parameters.values())[int(handler.takes_context) :]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            continue
        hint = hints.get(parameter.name, Any)
        parts.append(json_values() if hint in (Any, object) else st.from_type(hint))
    return st.tuples(*parts)


def failures(max_size: int = 4) -> st.SearchStrategy[list[BaseException | None]]:
    """Return what happens to the next attempts, for ``JobTester.fail_next``.

    Parameters
    ----------
    max_size:
        Maximum number of attempts; 4 by default.
    """
    errors = st.sampled_from([ConnectionError, TimeoutError, ValueError, MemoryError]).map(
        lambda kind: kind("of a test")
    )
    return st.lists(st.none() | errors, max_size=max_size)
