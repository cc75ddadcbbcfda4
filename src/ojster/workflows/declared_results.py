"""How the results of declared steps become what their handlers return: dates, dataclasses, models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

Convert = Callable[[Any], Any]
"""Makes of a JSON value what the return annotation of a handler says."""

if TYPE_CHECKING:  # with a default, so that a bare ``Step`` is one with any result; Python has it from 3.13
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


def converted(result: Any, convert: Convert | None) -> Any:
    """Return a result as a handler returns it; one that is not of its type as it is.

    It may be that of a step which has failed, or which a job has appended at run time.
    """
    if convert is None:
        return result
    try:
        return convert(result)
    except (TypeError, msgspec.ValidationError):
        return result


def each_by(convert: Convert | None) -> Convert | None:
    """Return what converts the results of a map."""
    if convert is None:
        return None
    return lambda result: [converted(value, convert) for value in result] if isinstance(result, list) else result


def all_by(converts: Sequence[Convert | None]) -> Convert | None:
    """Return what converts the results of a group; ``None``: they stay as they are."""
    if not any(converts):
        return None

    def convert(result: Any) -> Any:
        if not isinstance(result, list) or len(result) != len(converts):
            return result
        return [converted(value, by) for by, value in zip(converts, result, strict=True)]

    return convert
