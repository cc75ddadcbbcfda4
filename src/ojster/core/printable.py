"""Texts of callers in logs, tables and the database."""

from __future__ import annotations


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
