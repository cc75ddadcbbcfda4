"""Access tokens: create, list, revoke and rotate.

Spec: ojs-security 6.4, 12.3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ojster.core.access import Token
from ojster.core.durations import HOUR
from ojster.core.errors import NotFound, OjsterError
from ojster.storage.call import for_each
from ojster.storage.memory import Remembered
from ojster.storage.transaction import Transaction

decode_token: Final = msgspec.json.Decoder(Token).decode


def _read_tokens(tx: Transaction) -> Mapping[str, Token]:
    return {token.id: token for (body,) in tx.execute("SELECT body FROM tokens") if (token := decode_token(body))}


tokens_by_id: Final = Remembered[Mapping[str, Token]](_read_tokens)
"""All tokens, by id."""

MIN_TOKEN_USE_INTERVAL_US: Final = HOUR
"""Minimum interval between two updates of a token's ``last_used_at``, in microseconds."""

MAX_SESSIONS: Final = 20
"""Maximum number of sessions that one caller has at a provider; the oldest end."""

_COLUMNS: Final = "body, last_used_at"


def create_tokens(tx: Transaction, tokens: Sequence[Token]) -> list[Token]:
    """Store new tokens and return them, with their creation time."""
    created = [msgspec.structs.replace(token, created_at=tx.now) for token in tokens]
    for token in created:
        tx.execute(
            "INSERT INTO tokens (id, body) VALUES (:id, :body)", {"id": token.id, "body": msgspec.json.encode(token)}
        )
        tx.emit_about("token.created", token.id, token=token.id, name=token.name)
    tx.effects.configured = tx.effects.configured or bool(created)
    return created


def begin_sessions(tx: Transaction, tokens: Sequence[Token]) -> list[Token]:
    """Store the tokens of sessions, and delete those of sessions that are over; return them as ``create_tokens``."""
    known = [token for token in tokens_by_id(tx).values() if token.session_of is not None]
    for new_token in tokens:
        own = sorted(
            (token for token in known if token.session_of == new_token.session_of), key=lambda token: token.created_at
        )
        over = {token.id for token in own[: max(0, len(own) - MAX_SESSIONS + 1)]}
        over.update(token.id for token in known if token.expires_at is not None and token.expires_at <= tx.now)
        known = [token for token in known if token.id not in over]
        for id in sorted(over):
            tx.execute("DELETE FROM tokens WHERE id = :id", {"id": id})
    return create_tokens(tx, tokens)


def list_tokens(tx: Transaction, requests: Sequence[None]) -> list[list[Token]]:
    """Return all tokens, the oldest first, for each request."""
    rows = tx.execute(f"SELECT {_COLUMNS} FROM tokens")
    tokens = sorted((_token(*row) for row in rows), key=lambda token: (token.created_at, token.id))
    return [tokens for _ in requests]


@for_each
def revoke_tokens(tx: Transaction, id: str) -> Token | OjsterError:
    """Revoke tokens at once; for each, return the revoked token or a `NotFound`."""
    rows = tx.execute(f"DELETE FROM tokens WHERE id = :id RETURNING {_COLUMNS}", {"id": id})
    if rows:
        tx.effects.configured = True
        tx.emit_about("token.revoked", id, token=id, name=_token(*rows[0]).name)
    return _token(*rows[0]) if rows else _no_token(id)


class Rotation(msgspec.Struct, frozen=True):
    """A new secret for a token. The current secret remains valid for ``grace`` microseconds."""

    id: str
    hash: bytes
    grace: int


@for_each
def rotate_tokens(tx: Transaction, rotation: Rotation) -> Token | OjsterError:
    """Replace the secrets of tokens; for each, return the changed token or a `NotFound`."""
    # The second of two rotations must find the hash of the first, which becomes the former one.
    rows = tx.execute(f"SELECT {_COLUMNS} FROM tokens WHERE id = :id{tx.for_update}", {"id": rotation.id})
    if not rows:
        return _no_token(rotation.id)
    before = _token(*rows[0])
    token = msgspec.structs.replace(
        before, hash=rotation.hash, former_hash=before.hash, former_until=tx.now + rotation.grace, last_used_at=None
    )
    tx.execute("UPDATE tokens SET body = :body WHERE id = :id", {"id": rotation.id, "body": msgspec.json.encode(token)})
    tx.effects.configured = True
    tx.emit_about("token.rotated", token.id, token=token.id, name=token.name)
    return msgspec.structs.replace(token, last_used_at=before.last_used_at)


def record_token_uses(tx: Transaction, ids: Sequence[str]) -> list[None]:
    """Update ``last_used_at`` of tokens, at most once in ``MIN_TOKEN_USE_INTERVAL_US`` microseconds."""
    for id in sorted(set(ids)):
        tx.execute(
            """
            UPDATE tokens
            SET last_used_at = :now
            WHERE id = :id AND (last_used_at IS NULL OR last_used_at <= :before)
            """,
            {"id": id, "now": tx.now, "before": tx.now - MIN_TOKEN_USE_INTERVAL_US},
        )
    return [None for _ in ids]


def _token(body: bytes, last_used_at: int | None) -> Token:
    return msgspec.structs.replace(decode_token(body), last_used_at=last_used_at)


def _no_token(id: str) -> NotFound:
    return NotFound(f"There is no token {id[:40]!r}.", resource_type="token", resource_id=id[:40])
