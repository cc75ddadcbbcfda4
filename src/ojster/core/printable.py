"""Texts of callers in logs, tables and the database."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ojster.core.errors import InvalidRequest

P = ParamSpec("P")
R = TypeVar("R")


def printable(text: str, kept: str = "") -> str:
    """Return a text with a replacement character (U+FFFD) in the place of each control character.

    Parameters
    ----------
    kept:
        Control characters that stay, such as line breaks.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character in kept else "\ufffd" for character in text)


def unstorable(text: str, character: str) -> InvalidRequest:
    """Return the refusal of a text with a character that databases cannot store: U+0000, or half a surrogate pair."""
    return InvalidRequest(f"Text with the character U+{ord(character):04X} cannot be stored: {text!a:.60}. Remove it.")


def refuses_surrogates(call: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a call that raises ``InvalidRequest`` wherever it cannot encode half a surrogate pair."""

    @wraps(call)
    async def refuse(*args: P.args, **arguments: P.kwargs) -> R:
        try:
            return await call(*args, **arguments)
        except UnicodeEncodeError as error:
            if "\ud800" <= (character := error.object[error.start]) <= "\udfff":
                raise unstorable(error.object, character) from None
            raise

    return refuse
