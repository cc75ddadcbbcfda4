"""Signatures of the requests that a server sends to endpoints: webhooks, notifications and pushed jobs.

Spec: ojs-webhooks 8
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from ojster.core.durations import DAY

SIGNATURE_HEADER: Final = "X-OJS-Signature"
TIMESTAMP_HEADER: Final = "X-OJS-Timestamp"

MAX_SKEW_SECONDS: Final = 300.0
"""Age at which a signature is refused by default, in seconds. Spec: ojs-webhooks 8.1"""

SECRET_OVERLAP_US: Final = DAY
"""Time after a change of a secret during which requests are also signed with the previous one, in microseconds.

Spec: ojs-webhooks 8.3
"""

_SECONDS: Final = re.compile(r"[0-9]{1,12}")
"""Matches the seconds since the epoch; ``int`` refuses much longer numbers."""


class InvalidSignature(Exception):
    """A request was not signed with the secret of its receiver, or is too old: answer it with status 401.

    Parameters
    ----------
    args:
        The message: what is wrong with the signature.

    Examples
    --------
    >>> from ojster import InvalidSignature, verify_signature
    >>> try:
    ...     verify_signature("whsec_...", {}, b"{}")
    ... except InvalidSignature as error:
    ...     print(error)
    The header X-OJS-Signature is missing.
    """


def new_secret() -> str:
    """Return a secret to sign requests with."""
    return f"whsec_{secrets.token_urlsafe(32)}"


def replacement(former: str, secret: str, now: int) -> dict[str, Any]:
    """Return the members of what has a secret after it was replaced: the former one stays valid for some time."""
    return {"secret": secret, "former_secret": former, "former_until": now + SECRET_OVERLAP_US}


def keys_at(now: int, secret: str, former: str | None, former_until: int) -> list[str]:
    """Return the secrets to sign with: also the former one, while it is valid."""
    return [secret] if former is None or now >= former_until else [secret, former]


def sign(keys: Iterable[str], timestamp: str, body: bytes) -> str:
    """Return the signatures of a body, one for each secret: two while a secret is replaced.

    Spec: ojs-webhooks 8.1, 8.3
    """
    message = timestamp.encode() + b"." + body
    return ",".join(f"sha256={hmac.new(key.encode(), message, hashlib.sha256).hexdigest()}" for key in keys)


def verify_signature(
    secret: str, headers: Mapping[str, str], body: bytes, *, tolerance: float = MAX_SKEW_SECONDS
) -> dict[str, Any]:
    """Check that an Ojster server has sent a request: a webhook, a notification or a pushed job.

    Parameters
    ----------
    secret:
        The secret of the webhook, channel or push endpoint.
    headers:
        Headers of the request. Upper and lower case mean the same.
    body:
        Body of the request as it arrived, before anything decodes it.
    tolerance:
        Maximum difference between the clocks of sender and receiver, in seconds.

    Returns
    -------
    dict
        The JSON object in the body.

    Raises
    ------
    InvalidSignature
        The signature is missing, or was made with another secret or for another body, or is too old.

    Examples
    --------
    >>> from ojster import verify_signature
    >>> def answer(headers, body):
    ...     pushed = verify_signature("whsec_...", headers, body)
    ...     return {"status": "completed", "result": len(pushed["job"]["args"])}

    Spec: ojs-webhooks 8.2
    """
    known = {name.lower(): value for name, value in headers.items()}
    signatures, timestamp = known.get(SIGNATURE_HEADER.lower()), known.get(TIMESTAMP_HEADER.lower(), "")
    if not signatures:
        raise InvalidSignature(f"The header {SIGNATURE_HEADER} is missing.")
    if _SECONDS.fullmatch(timestamp) is None or abs(time.time() - int(timestamp)) > tolerance:
        raise InvalidSignature(f"The header {TIMESTAMP_HEADER} is {timestamp[:40]!r}: too old, or no time.")
    expected = sign((secret,), timestamp, body).encode()
    # Compared as bytes: `compare_digest` refuses text that is not ASCII. Some frameworks decode headers to surrogates.
    matches = [hmac.compare_digest(expected, sent.strip().encode(errors="replace")) for sent in signatures.split(",")]
    if not any(matches):
        raise InvalidSignature("The request was signed with another secret, or its body was changed.")
    return msgspec.json.decode(body, type=dict[str, Any])
