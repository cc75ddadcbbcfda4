"""Conditions of steps, in the Common Expression Language (CEL), over results and parameters.

CEL has no side effects, and its library limits the work of an evaluation, so a condition is harmless and cannot hang.
The library is an extra: ``pip install 'ojster[conditions]'``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ojster.core.errors import Unsupported

if TYPE_CHECKING:
    from cel_expr_python import cel

LONGEST_CONDITION: Final = 10_000

_STRING: Final = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_STEPS: Final = re.compile(
    _STRING + r"""|(?<![\w.])steps\b\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\])?"""
)
"""Matches strings, which are ignored, and ``steps`` with an optional step name after it."""

_BRACKETS: Final = re.compile(_STRING + r"|(\.\s*(?:all|exists|exists_one|map|filter)\s*\()|([(\[{])|([)\]}])")
"""Matches strings, which are ignored; the start of a list macro; other opening brackets; closing brackets."""


class InvalidCondition(ValueError):
    """The condition is invalid or cannot be evaluated."""


def check_condition(text: str, names: Iterable[str] = ()) -> frozenset[str]:
    """Validate a condition, and return the names of the steps that it refers to.

    Parameters
    ----------
    text:
        The condition, such as ``steps.check.result.ok && params.size > 3``.
    names:
        Variables that it may use besides ``steps`` and ``params``.

    Raises
    ------
    InvalidCondition
        It is not a valid condition.
    Unsupported
        The library for conditions is not installed.
    """
    if len(text) > LONGEST_CONDITION:
        raise InvalidCondition(f"The condition is longer than {LONGEST_CONDITION} characters.")
    program = _compile(text, frozenset(names))
    kind = str(program.return_type())
    if kind not in ("BOOL", "DYN"):
        raise InvalidCondition(f"The condition {text!r:.80} is of type {kind.lower()}; it must be true or false.")
    found = {match[1] or match[2] or match[3] for match in _STEPS.finditer(text) if match[0].startswith("steps")}
    if None in found:
        raise InvalidCondition("A condition must name each step that it refers to: steps.NAME or steps['NAME'].")
    _refuse_nested_macros(text)
    return frozenset(name for name in found if name is not None)


def _refuse_nested_macros(text: str) -> None:
    """Reject nested list macros, because their run time is unbounded."""
    open_brackets: list[bool] = []
    for match in _BRACKETS.finditer(text):
        if match[1]:
            if any(open_brackets):
                raise InvalidCondition("Macros such as 'map' and 'exists' cannot be nested.")
            open_brackets.append(True)
        elif match[2]:
            open_brackets.append(False)
        elif match[3] and open_brackets:
            open_brackets.pop()


def evaluate(text: str, values: Mapping[str, Any]) -> bool:
    """Return whether a condition is true.

    Parameters
    ----------
    values:
        Values of ``steps``, ``params`` and other variables.

    Raises
    ------
    InvalidCondition
        It cannot be evaluated, or its value is not a boolean.
    """
    names = frozenset(values) - {"steps", "params"}
    try:
        answer = _compile(text, names).eval(data={name: _plain(value) for name, value in values.items()}).value()
    except RuntimeError as error:
        raise InvalidCondition(f"The condition {text!r:.80} cannot be evaluated: {_first_line(error)}") from None
    if not isinstance(answer, bool):
        shown = answer if answer is not None else "an error. Does it refer to a missing value?"
        raise InvalidCondition(f"The condition {text!r:.80} is neither true nor false, but {shown!s:.200}")
    return answer


@lru_cache(maxsize=1024)
def _compile(text: str, names: frozenset[str]) -> cel.Expression:
    try:
        from cel_expr_python import cel
    except ImportError:
        raise Unsupported("Conditions ('if') need an extra on this server: pip install 'ojster[conditions]'.") from None
    environment = cel.NewEnv(variables=dict.fromkeys(("steps", "params", *names), cel.Type.DYN))
    try:
        return environment.compile(text)
    except RuntimeError as error:
        raise InvalidCondition(f"The condition {text!r:.80} is invalid: {_first_line(error)}") from None


def _plain(value: Any) -> Any:
    """Return a value that CEL can hold: integers beyond 64 bits become floating-point numbers."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: ")
