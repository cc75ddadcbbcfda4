"""File store in S3 and other object stores, through obstore, which signs and retries requests."""

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
    """A file store in a bucket, or under a prefix in it.

    Parameters
    ----------
    url:
        URL of the bucket, such as ``s3://bucket/prefix``. Credentials, region and endpoint come from the environment.

    Raises
    ------
    InvalidRequest
        The URL, or the configuration in the environment, is invalid.
    """

    def __init__(self, url: str) -> None:
        try:
            self._store: Any = from_url(url, client_options=_CLIENT, retry_config=_RETRIES)
        except (BaseError, ValueError) as error:
            raise InvalidRequest(f"The file store {url} cannot be opened: {_brief(error)}") from None

    async def put(self, name: str, piece: bytes) -> None:
        """Store a piece."""
        try:
            await obstore.put_async(self._store, name, piece, use_multipart=False)
        except (BaseError, FileNotFoundError) as error:  # FileNotFoundError: the bucket does not exist
            raise _unavailable(error) from None

    async def get(self, name: str) -> bytes:
        """Return a piece."""
        try:
            answer = await obstore.get_async(self._store, name)
            return bytes(await answer.bytes_async())
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
    """Return an error's message on one line, without obstore's debug output, at most 300 characters."""
    return " ".join(str(error).partition("Debug source")[0].split())[:300]
