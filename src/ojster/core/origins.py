"""Lineage of reactions: the generation of jobs and workflows, and the jobs that led to them.

It stands in the ``meta`` of such a job and in the ``metadata`` of such a workflow, whose steps carry it on. Without it,
a workflow whose last job starts the same workflow again would go on for ever.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.json_objects import Members, read_members

_encode: Final = msgspec.json.Encoder().encode

_GENERATION: Final = "ojster.generation"
_PARENT: Final = "ojster.parent_id"
_ROOT: Final = "ojster.root_id"


class Origin(msgspec.Struct, frozen=True):
    """Where a job comes from.

    Parameters
    ----------
    generation:
        Number of reactions that led to it, one after the other; 0 for a job that no reaction has created.
    parent_id, root_id:
        The job whose reaction created it or its workflow, and the first of all these jobs.
    """

    generation: int = 0
    parent_id: str | None = None
    root_id: str | None = None


class _Shown(msgspec.Struct):
    generation: Any = msgspec.field(default=0, name=_GENERATION)
    parent_id: Any = msgspec.field(default=None, name=_PARENT)
    root_id: Any = msgspec.field(default=None, name=_ROOT)


class _Envelope(msgspec.Struct):
    meta: _Shown | None = None


_envelope: Final = msgspec.json.Decoder(_Envelope).decode


def origin_of(envelope: bytes) -> Origin:
    """Return where the job with an envelope comes from."""
    shown = (_envelope(envelope).meta if _GENERATION.encode() in envelope else None) or _Shown()
    generation = shown.generation if type(shown.generation) is int else 0
    parent, root = (id if isinstance(id, str) else None for id in (shown.parent_id, shown.root_id))
    return Origin(max(0, generation), parent, root)


def next_generation(origin: Origin, job_id: str) -> Members:
    """Return the members of ``meta`` for what a reaction of a job creates."""
    members = {_GENERATION: origin.generation + 1, _PARENT: job_id, _ROOT: origin.root_id or job_id}
    return {name: msgspec.Raw(_encode(value)) for name, value in members.items()}


def origin_members(metadata: bytes) -> Members:
    """Return the members of ``metadata`` that the jobs of a workflow carry on."""
    if _GENERATION.encode() not in metadata:
        return {}
    members = read_members(metadata, "The metadata")
    return {name: members[name] for name in (_GENERATION, _PARENT, _ROOT) if name in members}
