"""A cache for what is parsed again and again, without the large arguments that callers may send."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MAX_CACHED_BYTES: Final = 1_024
"""Size of arguments up to which their result is cached, in bytes."""


def cache_short(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache the results of a function for the last ``most`` arguments that are short.

    Arguments are texts, bytes, and tuples of them; others count as short.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        cached = lru_cache(maxsize=most)(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if size_of(args) > MAX_CACHED_BYTES:
                return function(*args, **kwargs)
            return cached(*args, **kwargs)  # type: ignore[arg-type]  # they are hashable

        return call

    return decorate


def size_of(value: Hashable) -> int:
    """Return about how many bytes the texts in a value take."""
    if isinstance(value, str | bytes):
        return len(value)
    return sum(map(size_of, value)) if isinstance(value, tuple) else 0
