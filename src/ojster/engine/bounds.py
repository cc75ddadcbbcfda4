"""How many jobs may wait in which queue? What operators have set, as this process knows it (ojs-backpressure.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from ojster.database.transaction import Transaction


class Bound(msgspec.Struct, frozen=True):
    """How many jobs may wait in a queue, and what becomes of one too many.

    Parameters
    ----------
    max_depth:
        How many.
    strategy:
        ``reject`` it; ``block``: the same, but a caller may ask to wait for a place; ``drop_oldest``: discard the
        oldest that is available.
    warning_threshold:
        From which share of ``max_depth`` on those who push are warned.
    """

    max_depth: int
    strategy: Literal["reject", "block", "drop_oldest"] = "reject"
    warning_threshold: float = 0.8


class Bounds:
    """The bounds of all queues. A process reads them once, and again when it hears that they have changed.

    Parameters
    ----------
    known:
        The bounds, if they are known already.
    """

    def __init__(self, known: Mapping[str, Bound] | None = None) -> None:
        self._known = known

    def forget(self) -> None:
        """They may have changed."""
        self._known = None

    def may_bound(self, queue: str) -> bool:
        """Whether a queue has a bound, as far as this process knows."""
        return self._known is None or queue in self._known

    def read(self, tx: Transaction) -> Mapping[str, Bound]:
        """Return the bounds of the queues that have some."""
        known = self._known
        if known is None:
            rows = tx.execute("SELECT name, config FROM queues WHERE config IS NOT NULL")
            found = {name: _bounded(config).backpressure for name, config in rows}
            known = self._known = {name: bound for name, bound in found.items() if bound is not None}
        return known


class _Bounded(msgspec.Struct):
    backpressure: Bound | None = None


_bounded: Final = msgspec.json.Decoder(_Bounded).decode
