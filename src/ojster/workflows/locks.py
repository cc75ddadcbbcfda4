"""Target locks: regular expressions for the targets that a workflow blocks for other workflows.

The expressions are those of ECMA-262, except for features that cannot be matched in linear time: look-around and
back-references are rejected. The service is that of the JSON Schema validator, an extra: ``pip install
ojster[schemas]``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from ojster.core.errors import InvalidRequest, Unsupported

MAX_LOCK_LENGTH: Final = 1_024
"""Maximum length of an expression, in characters."""

MAX_COMPILED_LOCK_BYTES: Final = 1_048_576
"""Maximum size of a compiled expression, in bytes."""


@lru_cache(maxsize=1_024)
def compile_lock(expression: str) -> Callable[[str], bool]:
    """Return a function that tells whether a target is locked: whether the expression matches any part of it.

    Raises
    ------
    InvalidRequest
        The expression is not a regular expression, or cannot be matched in linear time.
    Unsupported
        The extra ``ojster[schemas]`` is not installed.
    """
    try:
        import jsonschema_rs
    except ImportError:
        raise Unsupported("This server cannot lock targets: install ojster[schemas].") from None
    if not 0 < len(expression) <= MAX_LOCK_LENGTH:
        raise InvalidRequest(
            f"'locks' must have 1 to {MAX_LOCK_LENGTH} characters, not {len(expression)}.", field="locks"
        )
    options = jsonschema_rs.RegexOptions(size_limit=MAX_COMPILED_LOCK_BYTES)
    try:
        validator = jsonschema_rs.validator_for({"type": "string", "pattern": expression}, pattern_options=options)
    except (ValueError, jsonschema_rs.ValidationError):
        raise InvalidRequest(
            f"'locks' is not a regular expression that can be matched in linear time: {expression!r:.80}. "
            "Look-around and back-references are not supported; write the alternatives out.",
            field="locks",
        ) from None
    return validator.is_valid
