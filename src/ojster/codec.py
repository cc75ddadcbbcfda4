"""How do arguments stay secret from the server? Codecs, in the client and in the worker. (ojs-encryption.md)

The server keeps what it is given; it never has a key. What a codec has done stands in the job's ``meta``, so that jobs
that were enqueued with another key, or without any, are understood too.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from ojster.jobs.request import DEFAULT_QUEUE
from ojster.jobs.uniqueness import fingerprint, parse_unique_policy

ENCODINGS: Final = "ojs.codec.encodings"
KEY_ID: Final = "ojs.codec.key_id"
UNIQUE: Final = "ojs.codec.unique"
"""Members of ``meta``: what was done, in order; with which key; and what stands for the arguments of unique jobs."""

_VERSION: Final = b"\x01"
_NONCE: Final = 12
_TAG: Final = 16
_KEY: Final = 32


class CodecError(Exception):
    """Arguments cannot be decoded: they were changed, or a key or a codec is missing here."""


class Codec(Protocol):
    """Something that is done to arguments on their way, and undone at their end."""

    @property
    def name(self) -> str:
        """What it is called in ``meta``."""

    @property
    def key_id(self) -> str | None:
        """The key that it uses now, if it uses one."""

    def encode(self, data: bytes) -> bytes:
        """Return the data as others may see it."""

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        """Return the data as it was.

        Raises
        ------
        CodecError
            That is not possible.
        """


class Gzip:
    """Makes large arguments smaller (section 7). It stands before an encryption: what is encrypted has no pattern."""

    name: Final = "gzip/plain"
    key_id: Final = None

    def encode(self, data: bytes) -> bytes:
        """Return the data compressed."""
        return gzip.compress(data, mtime=0)

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        """Return the data as it was."""
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, ValueError) as error:
            raise CodecError(f"That is not compressed: {error}.") from None


class Encryption:
    """AES-256-GCM with a random nonce for each job (section 6). Needs the extra ``encryption``.

    Parameters
    ----------
    keys:
        Keys of 32 bytes by their names. Those that are used no more stay as long as there may be jobs that were
        enqueued with them.
    current:
        The name of the key for new jobs; the last of ``keys`` if it is left out.

    Raises
    ------
    ValueError
        A key has another length, or the current one is not among them.
    ImportError
        The extra is not installed.
    """

    name: Final = "binary/encrypted"

    def __init__(self, keys: Mapping[str, bytes], current: str | None = None) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ImportError("To encrypt arguments, install ojster[encryption].") from None
        if not keys or any(len(key) != _KEY for key in keys.values()):
            raise ValueError(f"keys must be {_KEY} bytes long, and at least one")
        self.key_id: str | None = current or list(keys)[-1]
        if self.key_id not in keys:
            raise ValueError(f"there is no key {self.key_id!r}")
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self._unique_keys = {
            name: hmac.new(key, b"ojster unique", hashlib.sha256).digest() for name, key in keys.items()
        }

    def encode(self, data: bytes) -> bytes:
        """Return the data encrypted: version, nonce, ciphertext and tag."""
        nonce = os.urandom(_NONCE)
        return _VERSION + nonce + self._ciphers[self.key_id or ""].encrypt(nonce, data, None)

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        """Return the data as it was."""
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(key_id or "")
        if cipher is None:
            raise CodecError(f"The key {key_id!r} is not known here.")
        if data[:1] != _VERSION or len(data) < 1 + _NONCE + _TAG:
            raise CodecError("That is nothing that was encrypted in a way that is known here.")
        try:
            return cipher.decrypt(data[1 : 1 + _NONCE], data[1 + _NONCE :], None)
        except InvalidTag:
            raise CodecError(f"That was not encrypted with the key {key_id!r}, or was changed since.") from None

    def stand_in(self, data: bytes) -> str:
        """Return what stands for data where only its sameness matters; without the key, it tells nothing else."""
        return hmac.new(self._unique_keys[self.key_id or ""], data, hashlib.sha256).hexdigest()


class Codecs:
    """Codecs that are applied one after another, the first first."""

    def __init__(self, chain: Sequence[Codec]) -> None:
        self._chain = list(chain)
        self._by_name = {codec.name: codec for codec in chain}

    def __bool__(self) -> bool:
        return bool(self._chain)

    def encode(
        self, args: bytes, meta: dict[str, Any], options: dict[str, Any], type: str
    ) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
        """Return arguments, metadata and options of a job as the server is to see them.

        Which jobs are the same is decided by their arguments as they were: something that stands for these takes their
        place in the policy (section 15.3).
        """
        data = args
        for codec in self._chain:
            data = codec.encode(data)
        names = [codec.name for codec in self._chain]
        told: dict[str, Any] = {ENCODINGS: names}
        if key_id := next((codec.key_id for codec in self._chain if codec.key_id), None):
            told[KEY_ID] = key_id
        if (given := options.get("unique")) is not None:
            policy = parse_unique_policy(given)
            queue = options.get("queue", DEFAULT_QUEUE)
            told[UNIQUE] = self._stand_in(
                fingerprint(policy, type=type, queue=queue, args=msgspec.json.decode(args), meta=meta)
            )
            kept = {name: given[name] for name in ("period", "states", "on_conflict") if name in given}
            options = options | {"unique": kept | {"keys": ["type", "meta"], "meta_keys": [UNIQUE]}}
        payload = {"ojs_encoded": True, "encoding": "+".join(names), "data": base64.b64encode(data).decode()}
        return msgspec.json.encode([payload]), meta | told, options

    def _stand_in(self, digest: str) -> str:
        encryption: Encryption | None = next((codec for codec in self._chain if isinstance(codec, Encryption)), None)
        return encryption.stand_in(digest.encode()) if encryption else digest

    def decode(self, args: list[Any], meta: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a job as they were.

        Raises
        ------
        CodecError
            That is not possible.
        """
        names = meta.get(ENCODINGS)
        if not names or len(args) != 1 or not isinstance(args[0], dict) or args[0].get("ojs_encoded") is not True:
            return args
        try:
            data = base64.b64decode(args[0]["data"], validate=True)
        except (KeyError, TypeError, ValueError):
            raise CodecError("The encoded arguments hold no 'data' in base64.") from None
        for name in reversed(names):
            codec = self._by_name.get(name)
            if codec is None:
                raise CodecError(f"The arguments are encoded by {name!r}, which is not known here.")
            data = codec.decode(data, meta.get(KEY_ID))
        decoded = msgspec.json.decode(data)
        if not isinstance(decoded, list):
            raise CodecError("The encoded arguments are no array.")
        return decoded
