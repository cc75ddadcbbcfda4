"""Exceptions as values, on ways that cannot carry every exception.

A future refuses ``StopIteration`` and takes ``CancelledError`` for its own cancellation, and a task in which
``SystemExit`` or ``KeyboardInterrupt`` is raised ends its event loop. What handlers raise therefore crosses threads and
tasks as a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Raised:
    """What a call has raised.

    Parameters
    ----------
    error:
        The exception.
    """

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def caught(call: Callable[[], T]) -> T | Raised:
    """Call a function; return its result, or what it has raised, whatever the class of the exception."""
    try:
        return call()
    except BaseException as error:
        return Raised(error)


def value_of(outcome: T | Raised) -> T:
    """Return the result of a call, or raise what the call has raised.

    A coroutine turns a ``StopIteration`` into a ``RuntimeError``: see ``original``.
    """
    if not isinstance(outcome, Raised):
        return outcome
    try:
        raise outcome.error
    finally:
        del outcome  # the traceback has this frame: the exception would keep itself alive


def original(error: BaseException) -> BaseException:
    """Return the ``StopIteration`` or ``StopAsyncIteration`` that Python has turned into a ``RuntimeError``.

    Python does so where one leaves a coroutine or a generator (PEP 479). Other exceptions are returned as they are.
    """
    cause = error.__cause__
    is_translated = type(error) is RuntimeError and str(error).endswith(
        (" raised StopIteration", "raised StopAsyncIteration")
    )
    if is_translated and isinstance(cause, StopIteration | StopAsyncIteration):
        return cause
    return error


def message_of(error: BaseException) -> str:
    """Return the message; ``__str__`` is code of the application, and may fail as any other."""
    try:
        return str(error)
    except BaseException as problem:
        return f"The exception has no message: its __str__ raised {type(problem).__name__}."
