"""Receivers tell requests of a server from those of others."""

from __future__ import annotations

import time

import pytest

from ojster import InvalidSignature, verify_signature
from ojster.core.signatures import new_secret, sign

BODY = b'{"job":{}}'


def signed(*keys: str, at: float = 0.0, body: bytes = BODY) -> dict[str, str]:
    timestamp = str(int(time.time() + at))
    return {"x-ojs-timestamp": timestamp, "X-OJS-SIGNATURE": sign(keys, timestamp, body)}


def test_a_signed_request_is_accepted_while_its_secret_is_replaced_too() -> None:
    old, new = new_secret(), new_secret()
    assert verify_signature(old, signed(old), BODY) == {"job": {}}
    for secret in (old, new):
        verify_signature(secret, signed(new, old), BODY)


def refused(secret: str, headers: dict[str, str], body: bytes = BODY) -> str:
    with pytest.raises(InvalidSignature) as raised:
        verify_signature(secret, headers, body)
    return str(raised.value)


def test_a_request_of_others_is_refused() -> None:
    secret = new_secret()
    assert "another secret" in refused(secret, signed(new_secret()))
    assert "its body was changed" in refused(secret, signed(secret), BODY + b" ")
    assert "X-OJS-Signature is missing" in refused(secret, {})
    assert "X-OJS-Timestamp" in refused(secret, {"X-OJS-Signature": signed(secret)["X-OJS-SIGNATURE"]})
    assert "another secret" in refused(secret, signed(secret) | {"X-OJS-SIGNATURE": "sha256=\xe9"})


def test_an_old_request_is_refused_and_so_is_one_of_the_future() -> None:
    secret = new_secret()
    for seconds in (-400, 400):
        assert "too old" in refused(secret, signed(secret, at=seconds))
    verify_signature(secret, signed(secret, at=-200), BODY)
    with pytest.raises(InvalidSignature, match="too old"):
        verify_signature(secret, signed(secret, at=-200), BODY, tolerance=100)


def test_a_time_that_was_changed_afterwards_is_refused() -> None:
    secret = new_secret()
    assert "another secret" in refused(secret, signed(secret, at=-200) | {"x-ojs-timestamp": str(int(time.time()))})


@pytest.mark.parametrize("timestamp", ["9" * 400, "9" * 5000, "\u0661", "-1", "1\n"])
def test_a_time_that_is_none_is_refused(timestamp: str) -> None:
    secret = new_secret()
    assert "or no time" in refused(secret, signed(secret) | {"x-ojs-timestamp": timestamp})


def test_a_signature_that_is_no_text_is_refused() -> None:
    secret = new_secret()
    assert "another secret" in refused(secret, signed(secret) | {"X-OJS-SIGNATURE": "sha256=\udcff"})
