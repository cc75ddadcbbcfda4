"""State machines: closed tables of transitions, and their enforcement."""

from __future__ import annotations

from collections.abc import Mapping, Set

from ojster.core.errors import BackendError


class IllegalTransition(BackendError):
    """A transaction tried to change a state in a way that the table lacks. It is rolled back."""


class StateMachine:
    """A closed table of transitions.

    Parameters
    ----------
    what:
        What has these states, for error messages.
    table:
        The states that each state can change to; ``None`` is the state before creation.
    """

    def __init__(self, what: str, table: Mapping[str | None, Set[str]]) -> None:
        self.what = what
        self.table = table

    def allows(self, before: str | None, after: str) -> bool:
        """Return whether the table has a transition."""
        return after in self.table.get(before, ())

    def check(self, before: str | None, after: str) -> None:
        """Raise ``IllegalTransition`` if the table lacks a transition."""
        if after not in self.table[before]:
            raise IllegalTransition(
                f"A {self.what} cannot change from {before or 'nothing'!r} to {after!r}: its table lacks it."
            )
