"""Codecs that compress and encrypt job arguments and what flows record in the client, and decode them in the worker.

The server stores encoded arguments unchanged and never has a key. A job's ``meta`` records how its arguments were
encoded, so that workers also decode jobs enqueued with another key or without one. What a flow records, receives and
publishes has no ``meta``: there, the encoded value itself says how.

Spec: ojs-encryption
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from ojster.core.errors import PayloadTooLarge
from ojster.core.values import to_json
from ojster.jobs.encoding import ENCODINGS, KEY_ID, LEGACY_ENCRYPTED, is_encoded
from ojster.jobs.names import DEFAULT_QUEUE
from ojster.jobs.policy_wire import parse_unique_policy
from ojster.jobs.uniqueness import fingerprint

UNIQUE: Final = "ojs.codec.unique"
"""Member of ``meta``: digest that replaces the arguments of a unique job in its policy."""

_VERSION: Final = b"\x01"
_NONCE: Final = 12
_TAG: Final = 16
_KEY: Final = 32
_GZIP_FORMAT: Final = 16 + zlib.MAX_WBITS


class CodecError(Exception):
    """Arguments cannot be decoded: they were altered, or this process lacks the key or the codec.

    Parameters
    ----------
    args:
        The message: what cannot be decoded, and what to do.

    Examples
    --------
    >>> from ojster import CodecError, Gzip
    >>> try:
    ...     Gzip().decode(b"not compressed", None)
    ... except CodecError:
    ...     print("cannot decode the arguments")
    cannot decode the arguments
    """


class Codec(Protocol):
    """A reversible encoding of job arguments."""

    @property
    def name(self) -> str:
        """Name of the codec in ``meta``."""

    @property
    def key_id(self) -> str | None:
        """Id of the key for new jobs; ``None`` if the codec uses no key."""

    def encode(self, data: bytes) -> bytes:
        """Return the encoded data."""

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        """Return the original data.

        Raises
        ------
        CodecError
            The data cannot be decoded.
        """


class Gzip:
    """Gzip compression. Place it before ``Encryption``, because encrypted data does not compress.

    Parameters
    ----------
    max_bytes:
        Maximum size of the arguments of a job before compression, in bytes. A small job could otherwise fill the memory
        of a worker.

    Raises
    ------
    ValueError
        ``max_bytes`` is not positive.

    Examples
    --------
    >>> from ojster import App, Gzip
    >>> app = App("sqlite:///:memory:", codecs=[Gzip()])
    >>> @app.job("text.index")
    ... def index(text: str) -> None: ...
    >>> index.enqueue("a long text").job.meta["ojs.codec.encodings"]
    ['gzip/plain']
    >>> app.close()

    Spec: ojs-encryption 7
    """

    name: Final = "gzip/plain"
    key_id: Final = None

    def __init__(self, *, max_bytes: int = 64 * 2**20) -> None:
        if max_bytes < 1:
            raise ValueError(f"'max_bytes' must be positive, not {max_bytes}.")
        self._max_bytes = max_bytes

    def encode(self, data: bytes) -> bytes:
        """Return the compressed data.

        Parameters
        ----------
        data:
            Data to compress.

        Returns
        -------
        bytes
            The data in gzip format.

        Raises
        ------
        PayloadTooLarge
            The data has more than ``max_bytes`` bytes.
        """
        if len(data) > self._max_bytes:
            raise PayloadTooLarge(
                f"The arguments take {len(data)} bytes before compression; at most {self._max_bytes} are allowed. "
                "Pass a file, or raise 'max_bytes' of Gzip.",
                limit=self._max_bytes,
            )
        return gzip.compress(data, mtime=0)

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        """Return the original data.

        Parameters
        ----------
        data:
            Data in gzip format.
        key_id:
            Ignored: the codec uses no key.

        Returns
        -------
        bytes
            The original data.

        Raises
        ------
        CodecError
            The data is not in gzip format, or has more than ``max_bytes`` bytes without compression.
        """
        stream = zlib.decompressobj(_GZIP_FORMAT)
        try:
            plain = stream.decompress(data, self._max_bytes + 1)
        except zlib.error as error:
            raise CodecError(f"The arguments are not valid gzip data: {error}. Were they altered?") from None
        if len(plain) > self._max_bytes:
            raise CodecError(
                f"The arguments take more than {self._max_bytes} bytes without compression. Raise 'max_bytes' of Gzip, "
                "if you trust whoever has enqueued the job."
            )
        if not stream.eof or stream.unused_data:
            raise CodecError("The arguments are not one whole gzip stream. Were they altered?")
        return plain


class Encryption:
    """AES-256-GCM encryption with a random nonce for each job. Requires the extra ``encryption``.

    Parameters
    ----------
    keys:
        Keys of 32 bytes, by name. Keep an old key while jobs enqueued with it may exist.
    current:
        Name of the key for new jobs. Default: the last of ``keys``.

    Raises
    ------
    ValueError
        There is no key, a key is not 32 bytes long, or ``current`` is not in ``keys``.
    ImportError
        The extra ``encryption`` is not installed.

    Examples
    --------
    >>> from ojster import Encryption
    >>> encryption = Encryption({"2026": b"0123456789abcdef0123456789abcdef"})
    >>> secret = encryption.encode(b"card 4242")
    >>> encryption.decode(secret, "2026")
    b'card 4242'

    Spec: ojs-encryption 6
    """

    name: Final = "binary/encrypted"

    def __init__(self, keys: Mapping[str, bytes], current: str | None = None) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ImportError("Encryption needs the package 'cryptography'. Install ojster[encryption].") from None
        if not keys or any(len(key) != _KEY for key in keys.values()):
            raise ValueError(f"Encryption needs at least one key, and each key must be {_KEY} bytes long.")
        self.key_id: str | None = current or list(keys)[-1]
        if self.key_id not in keys:
            raise ValueError(f"The current key {self.key_id!r} is not in 'keys'. Add it, or name one of {list(keys)}.")
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self._unique_keys = {
            name: hmac.new(key, b"ojster unique", hashlib.sha256).digest() for name, key in keys.items()
        }

    def encode(self, data: bytes) -> bytes:
        """Return the encrypted data.

        Parameters
        ----------
        data:
            Data to encrypt with the current key.

        Returns
        -------
        bytes
            Version, nonce, ciphertext and tag.
        """
        nonce = os.urandom(_NONCE)
        return _VERSION + nonce + self._ciphers[self.key_id or ""].encrypt(nonce, data, None)

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        """Return the original data.

        Parameters
        ----------
        data:
            Encrypted data.
        key_id:
            Name of the key that encrypted it.

        Returns
        -------
        bytes
            The original data.

        Raises
        ------
        CodecError
            The key is unknown, the format is unknown, or the key cannot decrypt the data.
        """
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(key_id or "")
        if cipher is None:
            raise CodecError(f"This process has no key {key_id!r}. Add it to the keys of Encryption.")
        if data[:1] != _VERSION or len(data) < 1 + _NONCE + _TAG:
            raise CodecError("The encrypted arguments have an unknown format. Upgrade Ojster.")
        try:
            return cipher.decrypt(data[1 : 1 + _NONCE], data[1 + _NONCE :], None)
        except InvalidTag:
            raise CodecError(
                f"The key {key_id!r} cannot decrypt the arguments: they were encrypted with another key, or altered."
            ) from None

    def digest(self, data: bytes) -> str:
        """Return a keyed digest of data, for equality checks by parties that do not have the key.

        Parameters
        ----------
        data:
            Data to compare.

        Returns
        -------
        str
            HMAC-SHA-256 of the data with a key derived from the current key, in hexadecimal.
        """
        return hmac.new(self._unique_keys[self.key_id or ""], data, hashlib.sha256).hexdigest()


class Codecs:
    """A chain of codecs, applied in order and undone in reverse order."""

    def __init__(self, chain: Sequence[Codec]) -> None:
        self._chain = list(chain)
        self._by_name = {codec.name: codec for codec in chain}

    def __bool__(self) -> bool:
        return bool(self._chain)

    def encode(
        self, args: bytes, meta: dict[str, Any], options: dict[str, Any], type: str
    ) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
        """Return the encoded arguments, the metadata and the options of a job, as sent to the server.

        Uniqueness depends on the original arguments. In the unique policy, a digest in ``meta`` takes their place.

        Spec: ojs-encryption 15.3
        """
        told: dict[str, Any] = {ENCODINGS: self._names}
        if self._key_id:
            told[KEY_ID] = self._key_id
        if (unique := options.get("unique")) is not None:
            policy = parse_unique_policy(unique)
            queue = options.get("queue", DEFAULT_QUEUE)
            told[UNIQUE] = self._digest(
                fingerprint(policy, type=type, queue=queue, args=msgspec.json.decode(args), meta=meta)
            )
            kept = {name: unique[name] for name in ("period", "states", "on_conflict") if name in unique}
            options = options | {"unique": kept | {"keys": ["type", "meta"], "meta_keys": [UNIQUE]}}
        return msgspec.json.encode([self._payload(args)]), meta | told, options

    def encode_value(self, value: bytes) -> bytes:
        """Return the JSON of a value as a flow sends it to the server: encoded if there are codecs."""
        if not self._chain:
            return value
        how = {"key_id": self._key_id} if self._key_id else {}
        return msgspec.json.encode(self._payload(value) | how)

    def digest(self, digest: str) -> str:
        """Return a digest of a plain value that says nothing about it to a party without the key.

        The key is named before a colon: digests by different keys cannot be compared.
        """
        return f"{self._key_id}:{self._digest(digest)}" if self._key_id else digest

    def _digest(self, text: str) -> str:
        encryption: Encryption | None = next((codec for codec in self._chain if isinstance(codec, Encryption)), None)
        return encryption.digest(text.encode()) if encryption else text

    @property
    def _names(self) -> list[str]:
        return [codec.name for codec in self._chain]

    @property
    def _key_id(self) -> str | None:
        return next((codec.key_id for codec in self._chain if codec.key_id), None)

    def _payload(self, data: bytes) -> dict[str, Any]:
        for codec in self._chain:
            data = codec.encode(data)
        return {"ojs_encoded": True, "encoding": "+".join(self._names), "data": base64.b64encode(data).decode()}

    def decode(self, args: list[Any], meta: Mapping[str, Any]) -> list[Any]:
        """Return the original arguments of a job. Arguments that are not encoded are returned unchanged.

        Raises
        ------
        CodecError
            The arguments cannot be decoded, or were encoded by another SDK.
        """
        names = meta.get(ENCODINGS)
        payload = args[0] if len(args) == 1 and is_encoded(args[0]) else None
        if payload is not None and isinstance(payload.get("encoding"), str):
            names = payload["encoding"].split("+")  # not that of the metadata: the arguments of a fork may be newer
        elif not names and not meta.get(LEGACY_ENCRYPTED):
            return args
        if payload is None or not isinstance(names, list):
            how = ", ".join(map(str, names)) if isinstance(names, list) else "encrypted"
            raise CodecError(f"The arguments were encoded ({how}) in a format that this SDK cannot decode.")
        decoded = self._decoded(payload, names, payload.get("key_id") or meta.get(KEY_ID))
        if not isinstance(decoded, list):
            raise CodecError(f"The decoded arguments must be an array, not {type(decoded).__name__}.")
        return decoded

    def decode_value(self, value: Any) -> Any:
        """Return the original value of what a flow has recorded. One that is not encoded is returned unchanged.

        Raises
        ------
        CodecError
            The value cannot be decoded.
        """
        if not self._chain or not is_encoded(value):
            return value
        return self._decoded(value, str(value.get("encoding")).split("+"), value.get("key_id"))

    def encode_list(self, values: list[Any]) -> list[Any]:
        """Return arguments as a flow receives them: one encoded value if there are codecs."""
        return [msgspec.json.decode(self.encode_value(to_json(values)))] if self._chain else values

    def decode_list(self, values: list[Any]) -> list[Any]:
        """Return the original arguments.

        Raises
        ------
        CodecError
            They cannot be decoded.
        """
        if not self._chain or len(values) != 1 or not is_encoded(values[0]):
            return values
        decoded: list[Any] = self.decode_value(values[0])
        return decoded

    def _decoded(self, payload: Mapping[str, Any], names: Sequence[str], key_id: str | None) -> Any:
        try:
            data = base64.b64decode(payload["data"], validate=True)
        except (KeyError, TypeError, ValueError):
            raise CodecError("The encoded arguments need a member 'data' in base64.") from None
        for name in reversed(names):
            codec = self._by_name.get(name)
            if codec is None:
                raise CodecError(
                    f"This process has no codec {name!r}, which encoded the arguments. Add it to the codecs of App."
                )
            data = codec.decode(data, key_id)
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CodecError(f"The decoded arguments are not JSON: {error}. Were they altered?") from None
