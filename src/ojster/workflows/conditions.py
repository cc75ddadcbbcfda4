"""Conditions of steps, in the Common Expression Language (CEL), over results and parameters.

CEL has no side effects, and its library limits depth and iterations. What one iteration may cost is limited here,
because conditions are evaluated inside transactions, for which all callers wait: ``_check_macros`` and ``_Sizes``.
The library is an extra: ``pip install 'ojster[conditions]'``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ojster.core.errors import Unsupported

if TYPE_CHECKING:
    from cel_expr_python import cel

LONGEST_CONDITION: Final = 10_000

MAX_DATA_SIZE: Final = 300_000
"""Maximum size of the values that a condition refers to: characters, and 8 for each value."""

MAX_ITERATED_SIZE: Final = 50_000_000
"""Maximum product of the longest list and the size of the values, if each iteration may look at all of them."""

MAX_MATCHED_ELEMENTS: Final = 2_000
"""Maximum length of a list whose elements are matched with a regular expression."""

MAX_SUMS_IN_MACROS: Final = 4
"""Maximum number of ``+`` in list macros: each can double the size of a value."""

MAX_MATCHES: Final = 20
"""Maximum number of regular expressions in a condition."""

_STRING: Final = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_STEPS: Final = re.compile(
    _STRING + r"""|(?<![\w.])steps\b\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\])?"""
)
"""Matches strings, which are ignored, and ``steps`` with an optional step name after it."""

_BRACKETS: Final = re.compile(_STRING + r"|(\.\s*(?:all|exists|exists_one|map|filter)\s*\()|([(\[{])|([)\]}])")
"""Matches strings, which are ignored; the start of a list macro; other opening brackets; closing brackets."""


_LITERALS: Final = re.compile(_STRING)
_MATCHES: Final = re.compile(r"\bmatches\s*\(")
_MATCHES_LITERAL: Final = re.compile(r"\bmatches\s*\((?:[^()\"']*,)?\s*(?:" + _STRING + r")\s*\)")
_NAMES: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


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
    _check_macros(text)
    return frozenset(name for name in found if name is not None)


def _check_macros(text: str) -> None:
    """Reject what could take long: nested list macros, and in macros many sums and computed regular expressions."""
    bodies = _macro_bodies(text)
    if sum(_LITERALS.sub('""', body).count("+") for body in bodies) > MAX_SUMS_IN_MACROS:
        raise InvalidCondition(f"Macros such as 'map' and 'exists' can have at most {MAX_SUMS_IN_MACROS} '+' in all.")
    if any(len(_MATCHES.findall(body)) > len(_MATCHES_LITERAL.findall(body)) for body in bodies):
        raise InvalidCondition("Inside a macro, the regular expression of 'matches' must be a string literal.")
    if len(_MATCHES.findall(text)) > MAX_MATCHES:
        raise InvalidCondition(f"A condition can have at most {MAX_MATCHES} regular expressions.")


def _macro_bodies(text: str) -> list[str]:
    """Return the arguments of each list macro in a condition.

    Raises
    ------
    InvalidCondition
        Macros are nested.
    """
    open_brackets: list[int | None] = []
    bodies: list[str] = []
    for match in _BRACKETS.finditer(text):
        if match[1]:
            if any(start is not None for start in open_brackets):
                raise InvalidCondition("Macros such as 'map' and 'exists' cannot be nested.")
            open_brackets.append(match.end())
        elif match[2]:
            open_brackets.append(None)
        elif match[3] and open_brackets and (start := open_brackets.pop()) is not None:
            bodies.append(text[start : match.start()])
    return bodies


class _Shape(NamedTuple):
    """What the list macros of a condition do: refer to values outside of the list, and match regular expressions."""

    looks_outside: bool
    matches: bool


@lru_cache(maxsize=1024)
def _shape_of(text: str, names: frozenset[str]) -> _Shape:
    outside = {"steps", "params", *names}
    bodies = [_LITERALS.sub('""', body) for body in _macro_bodies(text)]
    looks = any(not outside.isdisjoint(_NAMES.findall(body)) for body in bodies)
    return _Shape(looks, any(_MATCHES.search(body) for body in bodies))


class _Sizes:
    """Copies values for CEL, and measures them.

    Attributes
    ----------
    size:
        The number of characters, and 8 for each value.
    longest:
        The number of elements of the longest list or object.
    """

    def __init__(self) -> None:
        self.size = 0
        self.longest = 0

    def copy(self, value: Any) -> Any:
        """Return a value that CEL can hold: integers beyond 64 bits become floating-point numbers."""
        self.size += 8 + (len(value) if isinstance(value, str) else 0)
        if isinstance(value, dict):
            self.longest = max(self.longest, len(value))
            self.size += sum(map(len, value))
            return {name: self.copy(inner) for name, inner in value.items()}
        if isinstance(value, list):
            self.longest = max(self.longest, len(value))
            return [self.copy(inner) for inner in value]
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return float(value)
        return value

    def check(self, shape: _Shape) -> None:
        """Raise ``InvalidCondition`` if a condition of this shape would take too long with these values."""
        what = None
        if self.size > MAX_DATA_SIZE:
            what = f"It refers to values of {self.size} bytes; at most {MAX_DATA_SIZE} are allowed."
        elif shape.matches and self.longest > MAX_MATCHED_ELEMENTS:
            what = f"It may match {self.longest} elements; at most {MAX_MATCHED_ELEMENTS} are allowed."
        elif shape.looks_outside and self.longest * self.size > MAX_ITERATED_SIZE:
            what = f"It may look at values of {self.size} bytes for each of {self.longest} elements."
        if what is not None:
            raise InvalidCondition(f"The condition takes too much work. {what} Let the step before compute it.")


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
    sizes = _Sizes()
    data = {name: sizes.copy(value) for name, value in values.items()}
    sizes.check(_shape_of(text, names))
    try:
        answer = _compile(text, names).eval(data=data).value()
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


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: ")
