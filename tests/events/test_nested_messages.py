"""WebSocket messages that are nested deeply are answered like other malformed ones."""

from __future__ import annotations

from tests.fuzz.connections import feed_socket


def test_a_deeply_nested_message_is_malformed() -> None:
    feed_socket(b'{"action":"subscribe","x":' + b"[" * 5_000 + b"]" * 5_000 + b"}")
