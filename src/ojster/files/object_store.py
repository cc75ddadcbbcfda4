"""How are the bytes of files kept in S3 and the like? By obstore, which signs, tries again, and knows them all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.files.store import missing

_RETRIES: Final[Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=20)}
_CLIENT: Final[Any] = {"allow_http": True, "timeout": "30s", "connect_timeout": "5s"}


class ObjectStore:
    """A bucket, or what is under a prefix in it, such as ``s3://bucket/prefix``.

    Parameters
    ----------
    url:
        Which; credentials, the region and another endpoint are taken from the environment.

    Raises
    ------
    InvalidRequest
        The URL or what the environment says is malformed.
    """

    def __init__(self, url: str) -> None:
        try:
            self._store: Any = from_url(url, client_options=_CLIENT, retry_config=_RETRIES)
        except (BaseError, ValueError) as error:
            raise InvalidRequest(f"The file store {url} cannot be used: {_brief(error)}") from None

    async def put(self, name: str, piece: bytes) -> None:
        """Keep a piece."""
        try:
            await obstore.put_async(self._store, name, piece, use_multipart=False)
        except (BaseError, FileNotFoundError) as error:  # there is no such bucket
            raise _unavailable(error) from None

    async def get(self, name: str) -> bytes:
        """Return a piece."""
        try:
            found = await obstore.get_async(self._store, name)
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            raise missing(name) from None
        except BaseError as error:
            raise _unavailable(error) from None

    async def delete(self, name: str) -> None:
        """Delete a piece."""
        try:
            await obstore.delete_async(self._store, name)
        except FileNotFoundError:
            return
        except BaseError as error:
            raise _unavailable(error) from None

    async def delete_file(self, file_id: str) -> None:
        """Delete all pieces of a file."""
        try:
            async for pieces in obstore.list(self._store, file_id):
                await obstore.delete_async(self._store, [piece["path"] for piece in pieces])
        except (BaseError, FileNotFoundError) as error:
            raise _unavailable(error) from None


def _unavailable(error: Exception) -> BackendUnavailable:
    return BackendUnavailable(f"The file store failed: {_brief(error)}")


def _brief(error: Exception) -> str:
    """Return what an error says, without what it says for those who debug the library, and on one line."""
    return " ".join(str(error).partition("Debug source")[0].split())[:300]
