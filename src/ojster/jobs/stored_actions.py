"""The actions of a stored job's reactions, for capabilities that carry out a kind of their own."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.job_flags import JobEvent
from ojster.core.short_cache import cache_short


class _Envelope(msgspec.Struct):
    event_reactions: msgspec.Raw = msgspec.Raw(b"{}")


class _Action(msgspec.Struct):
    action: str = ""


_in_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_by_event: Final = msgspec.json.Decoder(dict[str, list[msgspec.Raw]]).decode
_kind: Final = msgspec.json.Decoder(_Action).decode


def stored_reactions(envelope: bytes) -> bytes:
    """Return the reactions of a stored job, as JSON."""
    return bytes(_in_envelope(envelope).event_reactions)


def stored_actions(envelope: bytes, event: JobEvent | None, *kinds: str) -> tuple[bytes, ...]:
    """Return the actions of some kinds for an event (``None``: any), as JSON: they were checked before."""
    return _actions(stored_reactions(envelope), event, kinds)


@cache_short(1024)
def _actions(reactions: bytes, event: JobEvent | None, kinds: tuple[str, ...]) -> tuple[bytes, ...]:
    """Choose actions, with a cache: jobs of a type mostly have the same."""
    by_event = _by_event(reactions)
    chosen = by_event.values() if event is None else [by_event.get(event, [])]
    return tuple(bytes(action) for actions in chosen for action in actions if _kind(action).action in kinds)
