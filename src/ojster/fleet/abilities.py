"""Abilities of workers: job types and versions they handle, and what they provide, as corrected by operators."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec

from ojster.fleet.job_types import ALL, Types
from ojster.fleet.requirements import NOTHING, ProvidedFacts
from ojster.fleet.worker_rule import WorkerRule
from ojster.jobs.claim_policy import Claim
from ojster.jobs.versions import HandledVersions
from ojster.storage.memory import Memory, Remembered
from ojster.storage.transaction import Transaction

_NOT_HANDLED: Final = " AND NOT (j.type = ? AND j.version IS NOT NULL%s)"
"""Condition that excludes versions of a job type that a worker does not handle."""

_OUTSIDE: Final = " AND (j.version < ? OR j.version >= ?)"
"""The part of it for each range of versions that the worker handles."""


class Abilities(msgspec.Struct, frozen=True):
    """Capabilities of a worker.

    Parameters
    ----------
    handled:
        Job types of which the worker handles only some versions, sorted; each range of versions is one entry.
    provided:
        Resources that the worker provides.
    types:
        Job types that the operator lets the worker take.
    runs:
        Job types that the worker has handlers for, sorted; ``None``: it says nothing, and gets all.
    """

    handled: tuple[HandledVersions, ...] = ()
    provided: ProvidedFacts = NOTHING
    types: Types = ALL
    runs: tuple[str, ...] | None = None

    def condition(self) -> tuple[str, tuple[str | int, ...]]:
        """Return the jobs ``j`` that the worker can run, as an SQL condition to append, and its parameters."""
        return _condition(self.handled, self.types, self.runs)

    @property
    def takes_all(self) -> bool:
        """Whether the worker can run jobs of every type and version, as far as they require nothing."""
        return not self.handled and self.types == ALL and self.runs is None

    @property
    def kind(self) -> str | None:
        """A name that workers with equal abilities share; ``None`` if it depends on more than types and versions."""
        return None if self.provided.facts else _kind(self.handled, self.types, self.runs)

    def under(self, rule: WorkerRule | None) -> Abilities:
        """Return the capabilities with an operator's rule applied."""
        if rule is None:
            return self
        return msgspec.structs.replace(self, provided=rule.correct(self.provided), types=rule.types)


class _Values(tuple[str | int, ...]):
    """Parameters of a condition. They are many, part of the key of each claim, and equal ones are the same object."""

    __slots__ = ()
    __hash__ = object.__hash__


@lru_cache(maxsize=128)
def _condition(
    handled: tuple[HandledVersions, ...], allowed: Types, runs: tuple[str, ...] | None
) -> tuple[str, tuple[str | int, ...]]:
    versions, bounds = "", list[str | int]()
    for type, ranges in groupby(handled, attrgetter("type")):
        accepted = list(ranges)
        versions += _NOT_HANDLED % (_OUTSIDE * len(accepted))
        bounds += [type, *(bound for handler in accepted for bound in (handler.low, handler.high))]
    types, patterns = allowed.condition("j.type")
    own = "" if runs is None else f" AND j.type IN ({', '.join('?' * len(runs))})" if runs else " AND 1 = 0"
    return own + versions + types, _Values((*(runs or ()), *bounds, *patterns))


@lru_cache(maxsize=128)
def _kind(handled: tuple[HandledVersions, ...], allowed: Types, runs: tuple[str, ...] | None) -> str:
    return _digest(msgspec.json.encode((handled, allowed, runs)))


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


def kind_of(memory: Memory, request: Claim) -> str | None:
    """Return a name for the jobs that the worker of a claim can take; ``None`` if it can take every job.

    Workers with the same name can take the same jobs. A worker that nothing is known of yet, or whose resources are its
    own, has a name of its own.
    """
    known = abilities_by_worker.known(memory)
    worker_id = request.worker_id or ""
    if known is not None and worker_id not in known and request.provided is None and request.types is None:
        return None
    if request.provided is not None or (known is None and request.worker_id is not None):
        return _digest(worker_id.encode())
    abilities = PLAIN if known is None else known.get(worker_id, PLAIN)
    if request.types is not None:
        abilities = msgspec.structs.replace(abilities, runs=request.types)
    if abilities.takes_all and not abilities.provided.facts:
        return None
    return abilities.kind or _digest(worker_id.encode())


def _digest(said: bytes) -> str:
    """Return a short name for what was said, which may contain anything."""
    return hashlib.sha256(said).hexdigest()[:16]
