"""Conditions of steps, in the Common Expression Language (CEL), over results and parameters.

Conditions are evaluated inside transactions, for which all callers wait. One that certainly takes no time, by the
length of its text and the size of its values, is evaluated at once; ``condition_process`` evaluates the others.
The library is an extra: ``pip install 'ojster[conditions]'``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ojster.core.errors import Unsupported
from ojster.workflows.plan.condition_process import MAX_BYTES, MAX_SECONDS, ConditionProcess, ConditionVerdict

if TYPE_CHECKING:
    from cel_expr_python import cel

LONGEST_CONDITION: Final = 10_000
"""Maximum length of a condition, in characters."""

MAX_DATA_SIZE: Final = 300_000
"""Maximum size of the values that a condition refers to: characters, and 8 for each value."""

MAX_INSTANT_LENGTH: Final = 1_000
"""Maximum length of a condition that is compiled at once, in characters."""

MAX_INSTANT_MACROS: Final = 5
"""Maximum number of list macros in it; each is compiled to a loop."""

MAX_INSTANT_WORK: Final = 5_000_000
"""Maximum estimate of the work of a condition that is evaluated at once: about 3 ms."""

_STRING: Final = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_STEPS: Final = re.compile(
    _STRING + r"""|(?<![\w.])steps\b\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\])?"""
)
"""Matches strings, which are ignored, and ``steps`` with an optional step name after it."""

_LITERALS: Final = re.compile(_STRING)
_ODD: Final = re.compile(r'"""|\'\'\'|//|(?<!\w)(?:[bB][rR]|[rR][bB]?)(?=["\'])|' + _STRING)
"""Matches strings, and what makes it hard to tell where strings end: comments, triple quotes and raw strings."""

_ODD_MARKS: Final = ("//", '"""', "'''")

_MACROS: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(")
_OPERANDS: Final = re.compile(r"\w+|\"\"")
_MATCHES: Final = re.compile(r"\bmatches\s*\(")

_process: Final = ConditionProcess()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.renew_lock)


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
    if _is_odd(text):
        raise InvalidCondition(
            "A condition has neither comments nor triple quotes nor raw strings. Write plain strings."
        )
    known = frozenset(names)
    kind = _ask(text, known).type if _shape_of(text) is None else str(_compile(text, known).return_type())
    if kind not in ("BOOL", "DYN"):
        raise InvalidCondition(f"The condition {text!r:.80} is of type {kind.lower()}; it must be true or false.")
    steps = {match[1] or match[2] or match[3] for match in _STEPS.finditer(text) if match[0].startswith("steps")}
    if None in steps:
        raise InvalidCondition("A condition must name each step that it refers to: steps.NAME or steps['NAME'].")
    return frozenset(name for name in steps if name is not None)


def _is_odd(text: str) -> bool:
    return any(match[0] in _ODD_MARKS or match[0][0] in "bBrR" for match in _ODD.finditer(text))


class _Shape(NamedTuple):
    """The number of operands and of list macros of a condition, and whether it adds, which makes lists longer."""

    operands: int
    macros: int
    adds: bool


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
            try:
                return float(value)
            except OverflowError:
                raise InvalidCondition("The condition refers to an integer that is too large for a number.") from None
        return value


@lru_cache(maxsize=1024)
def _shape_of(text: str) -> _Shape | None:
    """Return the shape of a condition; ``None``: it may take long with any values."""
    bare = _LITERALS.sub('""', text)
    macros = len(_MACROS.findall(bare))
    if len(text) > MAX_INSTANT_LENGTH or macros > MAX_INSTANT_MACROS or _MATCHES.search(bare) or _is_odd(text):
        return None
    return _Shape(len(_OPERANDS.findall(bare)), macros, "+" in bare)


def _is_instant(text: str, sizes: _Sizes) -> bool:
    """Return whether a condition takes no time with values of these sizes.

    No value is larger than all operands together, no operation looks at more than that, and each list macro repeats
    what is in it for each element.
    """
    shape = _shape_of(text)
    if shape is None:
        return False
    longest = max(sizes.longest, shape.operands) * (shape.operands if shape.adds else 1)
    repeated: int = (longest + 1) ** shape.macros
    return shape.operands**2 * (sizes.size + len(text)) * repeated <= MAX_INSTANT_WORK


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
    if sizes.size > MAX_DATA_SIZE:
        raise _too_much(text, f"It refers to values of {sizes.size} bytes; at most {MAX_DATA_SIZE} are allowed.")
    answer = _evaluate_at_once(text, names, data) if _is_instant(text, sizes) else _ask(text, names, data).value
    if not isinstance(answer, bool):
        shown = "an error" if answer is None else f"of the type {type(answer).__name__}"  # a value may be a secret
        raise InvalidCondition(
            f"The condition {text!r:.80} is neither true nor false, but {shown}. Does it refer to a missing value? "
            "Compare the value with another one."
        )
    return answer


def _evaluate_at_once(text: str, names: frozenset[str], data: Mapping[str, Any]) -> object:
    try:
        return _compile(text, names).eval(data=data).value()
    except RuntimeError as error:
        raise _refusal(text, f"cannot be evaluated: {_first_line(str(error))}") from None


def _ask(text: str, names: frozenset[str], *data: Any) -> ConditionVerdict:
    """Compile a condition, or evaluate it, within limits of time and memory."""
    _require_library()
    if not hasattr(os, "fork"):
        raise _too_much(text, "On this system, conditions are limited to what certainly takes no time.")
    answer = _process.ask(text, _variables(names), *data)
    if answer.invalid is not None:
        raise _refusal(text, f"is invalid: {_first_line(answer.invalid)}")
    if answer.error is not None:
        raise _refusal(text, f"cannot be evaluated: {_first_line(answer.error)}")
    if answer.exceeded == "time":
        raise _too_much(text, f"It takes more than {MAX_SECONDS * 1000:g} ms of processor time.")
    if answer.exceeded is not None:
        raise _too_much(text, f"It takes more than {MAX_BYTES >> 20} MiB of memory.")
    return answer


@lru_cache(maxsize=1024)
def _compile(text: str, names: frozenset[str]) -> cel.Expression:
    _require_library()
    from cel_expr_python import cel

    environment = cel.NewEnv(variables=dict.fromkeys(_variables(names), cel.Type.DYN))
    try:
        return environment.compile(text)
    except RuntimeError as error:
        raise _refusal(text, f"is invalid: {_first_line(str(error))}") from None


def _require_library() -> None:
    if find_spec("cel_expr_python") is None:
        raise Unsupported("Conditions ('if') need an extra on this server: pip install 'ojster[conditions]'.")


def _variables(names: frozenset[str]) -> frozenset[str]:
    return names | {"steps", "params"}


def _refusal(text: str, what: str) -> InvalidCondition:
    return InvalidCondition(f"The condition {text!r:.80} {what}")


def _too_much(text: str, why: str) -> InvalidCondition:
    return _refusal(text, f"takes too much work. {why} Let the step before compute it.")


def _first_line(error: str) -> str:
    return error.partition("\n")[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: ")
