"""Abilities of workers: job types and versions they handle, and what they provide, as corrected by operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ojster.fleet.job_types import ALL, Types
from ojster.fleet.requirements import NOTHING, Provided
from ojster.fleet.worker_rule import WorkerRule
from ojster.jobs.versions import Handled
from ojster.storage.memory import Memory, Remembered
from ojster.storage.transaction import Transaction

_NOT_HANDLED: Final = " AND NOT (j.type = ? AND j.version IS NOT NULL AND (j.version < ? OR j.version >= ?))"
"""Condition that excludes versions of a job type that a worker does not handle."""


class Abilities(msgspec.Struct, frozen=True):
    """Capabilities of a worker.

    Parameters
    ----------
    handled:
        Job types of which the worker handles only some versions.
    provided:
        Resources that the worker provides.
    types:
        Job types that the operator lets the worker take.
    """

    handled: tuple[Handled, ...] = ()
    provided: Provided = NOTHING
    types: Types = ALL

    def condition(self) -> tuple[str, list[str | int]]:
        """Return the jobs ``j`` that the worker can run, as an SQL condition to append, and its parameters."""
        bounds: list[str | int] = [value for one in self.handled for value in (one.type, one.low, one.high)]
        types, patterns = self.types.condition("j.type")
        return _NOT_HANDLED * len(self.handled) + types, [*bounds, *patterns]

    def under(self, rule: WorkerRule | None) -> Abilities:
        """Return the capabilities with an operator's rule applied."""
        if rule is None:
            return self
        return msgspec.structs.replace(self, provided=rule.correct(self.provided), types=rule.types)


PLAIN: Final = Abilities()
"""Abilities of a worker that has declared nothing."""

decode_abilities: Final = msgspec.json.Decoder(Abilities).decode
decode_worker_rule: Final = msgspec.json.Decoder(WorkerRule).decode


def _read_worker_rules(tx: Transaction) -> Mapping[str, WorkerRule]:
    rules = [decode_worker_rule(body) for (body,) in tx.execute("SELECT body FROM worker_rules")]
    return {rule.id: rule for rule in rules}


worker_rules_by_id: Final = Remembered[Mapping[str, WorkerRule]](_read_worker_rules)
"""Operators' rules for workers, by worker."""


def _read_abilities(tx: Transaction) -> Mapping[str, Abilities]:
    rows = tx.execute("SELECT id, abilities FROM workers WHERE abilities IS NOT NULL")
    said = {id: decode_abilities(abilities) for id, abilities in rows}
    return said | {id: said.get(id, PLAIN).under(rule) for id, rule in worker_rules_by_id(tx).items()}


abilities_by_worker: Final = Remembered[Mapping[str, Abilities]](_read_abilities)
"""Abilities by worker, of workers that have declared some or have a rule."""


def may_be_special(memory: Memory, worker_id: str | None) -> bool:
    """Whether a worker cannot take every job, or can take special ones, as far as this process knows."""
    known = abilities_by_worker.known(memory)
    return worker_id is not None and (known is None or worker_id in known)
