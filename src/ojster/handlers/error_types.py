"""The names of exceptions, as failures and retry policies have them."""

from __future__ import annotations


def error_type(error: type[BaseException] | BaseException) -> str:
    """Return the error type of an exception or its class: its ``error_type``, or the name of the class."""
    kind = error if isinstance(error, type) else type(error)
    chosen = getattr(error, "error_type", None)
    return chosen if isinstance(chosen, str) and chosen else kind.__name__


def class_name(kind: type[BaseException]) -> str:
    """Return the name of a class in ``give_up_on``: its own ``error_type``, or the class with its module."""
    chosen = vars(kind).get("error_type")
    return chosen if isinstance(chosen, str) and chosen else f"{kind.__module__}.{kind.__qualname__}"
