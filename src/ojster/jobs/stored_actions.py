"""The actions of a stored job's reactions, for capabilities that carry out a kind of their own."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.job_flags import JobEvent


class _Action(msgspec.Struct):
    action: str = ""


class _Envelope(msgspec.Struct):
    event_reactions: dict[str, list[msgspec.Raw]] = {}


_in_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_kind: Final = msgspec.json.Decoder(_Action).decode


def stored_actions(envelope: bytes, event: JobEvent | None, *kinds: str) -> list[bytes]:
    """Return the actions of some kinds for an event (``None``: any), as JSON: they were checked before."""
    reactions = _in_envelope(envelope).event_reactions
    chosen = reactions.values() if event is None else [reactions.get(event, [])]
    return [bytes(action) for actions in chosen for action in actions if _kind(action).action in kinds]
