"""From which targets does a workflow keep others? Those that match a regular expression. (seed 002, "Locking")

The expressions are those of ECMA-262, as in the seed, but for what cannot be matched in linear time: look-around and
back-references are refused. The engine is that of the JSON Schema validator, an extra: ``pip install ojster[schemas]``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from ojster.core.errors import InvalidRequest, Unsupported

LONGEST_LOCK: Final = 1_024
"""How many characters an expression may have."""

LARGEST_LOCK: Final = 1_048_576
"""How many bytes an expression may take once it is compiled."""


@lru_cache(maxsize=1_024)
def compile_lock(expression: str) -> Callable[[str], bool]:
    """Return what tells whether a target is locked: whether the expression matches it, or a part of it.

    Raises
    ------
    InvalidRequest
        It is no regular expression, or one that cannot be matched in linear time.
    Unsupported
        This server cannot match any.
    """
    try:
        import jsonschema_rs
    except ImportError:
        raise Unsupported("This server cannot lock targets: install ojster[schemas].") from None
    if not 0 < len(expression) <= LONGEST_LOCK:
        raise InvalidRequest(f"An expression for 'locks' has 1 to {LONGEST_LOCK} characters.", field="locks")
    options = jsonschema_rs.RegexOptions(size_limit=LARGEST_LOCK)
    try:
        validator = jsonschema_rs.validator_for({"type": "string", "pattern": expression}, pattern_options=options)
    except (ValueError, jsonschema_rs.ValidationError):
        raise InvalidRequest(
            f"'locks' is no regular expression that can be matched in linear time: {expression!r:.80}", field="locks"
        ) from None
    return validator.is_valid
