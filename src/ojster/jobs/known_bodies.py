"""Bodies of requests that are alike but for the arguments of their job: what is around these is not read again."""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from ojster.core.json_objects import Members, opening_brackets, stored_members


class HasCommon(Protocol):
    """The model of a job, as far as bodies are concerned."""

    @property
    def common(self) -> Members:
        """The members of its requests without their arguments."""


M = TypeVar("M", bound=HasCommon)

MOST_KNOWN_BODIES: Final = 100
"""Maximum number of bodies that a process remembers."""

LARGEST_KNOWN_BODY: Final = 4_000
"""Maximum size of a body that is remembered, in bytes."""

MOST_BRACKETS: Final = 50
"""With more brackets in its arguments, a body is read: it may be nested too deeply."""

ARGS: Final = b'"args"'
"""The name of the arguments in a body."""
_OTHERS: Final = b'["others"]'

_read_value: Final = msgspec.json.Decoder(msgspec.Raw).decode


class _KnownBody(NamedTuple, Generic[M]):
    """What is around the arguments in a body, and the model of its job."""

    before: bytes
    after: bytes
    model: M


class KnownBodies(Generic[M]):
    """The bodies that a process has read, each by its tenant and what is before the name of the arguments."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, bytes], _KnownBody[M]] = {}

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._known)

    def find(self, body: bytes, tenant: str | None) -> tuple[M, bytes] | None:
        """Return the model of the job in a tenant's body, and its arguments; ``None``: the body must be read."""
        known = self._known.get((tenant, body[: body.find(ARGS)]))
        if known is None:
            return None
        before, after, model = known
        args = body[len(before) : len(body) - len(after)]
        if not (args[:1] == b"[" and args[-1:] == b"]" and body.startswith(before) and body.endswith(after)):
            return None
        if b"\\u" in args or (len(args) > MOST_BRACKETS and opening_brackets(args) > MOST_BRACKETS):
            return None  # half a surrogate pair would have to be found
        try:
            args.decode()
            _read_value(args)
        except (UnicodeDecodeError, msgspec.DecodeError):
            return None
        return model, args

    def remember(self, body: bytes, args: bytes, tenant: str | None, model: M) -> None:
        """Remember a body that was read, with the model of its job, if its arguments can be told from the rest."""
        key = tenant, body[: body.find(ARGS)]
        if len(body) > LARGEST_KNOWN_BODY or body.count(args) != 1:
            return
        before, after = body.split(args)
        if self._known.get(key) == (before, after, model):
            return
        if stored_members(before + _OTHERS + after) != {**model.common, "args": msgspec.Raw(_OTHERS)}:
            return  # it was not there that the arguments are
        if len(self._known) >= MOST_KNOWN_BODIES:
            self._known.clear()
        self._known[key] = _KnownBody(before, after, model)
