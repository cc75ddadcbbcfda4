"""When is a step left out? Conditions in the Common Expression Language, over results and parameters.

The language has no side effects, and is evaluated by the library of its makers with a limit on its work: a condition
can neither do harm nor hang. It is an extra: ``pip install 'ojster[conditions]'``.
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
"""Strings, which are left out, and ``steps`` with the name of one behind it."""

_BRACKETS: Final = re.compile(_STRING + r"|(\.\s*(?:all|exists|exists_one|map|filter)\s*\()|([(\[{])|([)\]}])")
"""Strings, which are left out; the beginning of a macro that goes through a list; other brackets."""


class InvalidCondition(ValueError):
    """A condition that cannot be evaluated. The message says why."""


def check_condition(text: str, names: Iterable[str] = ()) -> frozenset[str]:
    """Check a condition, and return the names of the steps that it looks at.

    Parameters
    ----------
    text:
        The condition, such as ``steps.check.result.ok && params.size > 3``.
    names:
        What it may look at besides ``steps`` and ``params``.

    Raises
    ------
    InvalidCondition
        It is no condition.
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
        raise InvalidCondition("A condition must name each step that it looks at: steps.NAME or steps['NAME'].")
    _refuse_nested_macros(text)
    return frozenset(name for name in found if name is not None)


def _refuse_nested_macros(text: str) -> None:
    """Refuse to go through a list for each element of a list: that could take any time."""
    open_brackets: list[bool] = []
    for match in _BRACKETS.finditer(text):
        if match[1]:
            if any(open_brackets):
                raise InvalidCondition("Macros such as 'map' and 'exists' cannot stand inside each other.")
            open_brackets.append(True)
        elif match[2]:
            open_brackets.append(False)
        elif match[3] and open_brackets:
            open_brackets.pop()


def evaluate(text: str, values: Mapping[str, Any]) -> bool:
    """Tell whether a condition holds.

    Parameters
    ----------
    values:
        What ``steps``, ``params`` and other names stand for.

    Raises
    ------
    InvalidCondition
        It cannot be evaluated, or is neither true nor false.
    """
    names = frozenset(values) - {"steps", "params"}
    try:
        answer = _compile(text, names).eval(data={name: _plain(value) for name, value in values.items()}).value()
    except RuntimeError as error:
        raise InvalidCondition(f"The condition {text!r:.80} cannot be evaluated: {_first_line(error)}") from None
    if not isinstance(answer, bool):
        shown = answer if answer is not None else "an error: does it look at something that is not there?"
        raise InvalidCondition(f"The condition {text!r:.80} is neither true nor false, but {shown!s:.200}")
    return answer


@lru_cache(maxsize=1024)
def _compile(text: str, names: frozenset[str]) -> cel.Expression:
    try:
        from cel_expr_python import cel
    except ImportError:
        raise Unsupported("Conditions ('if') need another package here: pip install 'ojster[conditions]'.") from None
    environment = cel.NewEnv(variables=dict.fromkeys(("steps", "params", *names), cel.Type.DYN))
    try:
        return environment.compile(text)
    except RuntimeError as error:
        raise InvalidCondition(f"The condition {text!r:.80} is invalid: {_first_line(error)}") from None


def _plain(value: Any) -> Any:
    """The value as the language knows values: its integers have 64 bits; larger ones become floating-point numbers."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: ")
