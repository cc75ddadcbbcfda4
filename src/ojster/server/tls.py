"""TLS of the server: its certificate, the certificates of its clients, and their renewal without a restart."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import msgspec

from ojster.core.errors import InvalidRequest

log = logging.getLogger(__name__)


class TlsFiles(msgspec.Struct, frozen=True):
    """Files in PEM format.

    Parameters
    ----------
    certificate:
        The server's certificate, followed by those between it and its authority.
    key:
        The private key; ``None``: it is in the file of the certificate.
    client_authority:
        Certificates of the authorities that sign those of clients. Clients without one are refused. ``None``: clients
        need no certificate.
    """

    certificate: Path
    key: Path | None = None
    client_authority: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return what a server needs to speak TLS 1.2 and later.

        Raises
        ------
        InvalidRequest
            A file cannot be read, or the key does not belong to the certificate.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(made)
        if self.client_authority is not None:
            made.verify_mode = ssl.CERT_REQUIRED
        return made

    def load_into(self, context: ssl.SSLContext) -> None:
        """Read the files; connections that begin from now on use them. Raises as ``context`` does."""
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_authority is not None:
                context.load_verify_locations(self.client_authority)
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(str(path) for path in self._paths())
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise InvalidRequest(f"The TLS files {names} cannot be used: {reason}.") from None

    def stamp(self) -> tuple[Any, ...]:
        """Return what changes when a file changes."""
        stamps = []
        for path in self._paths():
            try:
                status = path.stat()
            except OSError:
                stamps.append((0, 0, 0))  # it is being replaced
            else:
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(stamps)

    def _paths(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.client_authority) if path is not None]


class TlsRenewal:
    """Reads the files again when they have changed.

    Parameters
    ----------
    files:
        The files.
    context:
        What the server uses.
    """

    def __init__(self, files: TlsFiles, context: ssl.SSLContext) -> None:
        self._files = files
        self._context = context
        self._stamp = files.stamp()

    def check(self) -> bool:
        """Read the files if they have changed, and return whether new ones are in use.

        Files that do not fit together, because only one of them was replaced so far, are tried again at the next check.
        """
        stamp = self._files.stamp()
        if stamp == self._stamp:
            return False
        try:
            self._files.context()  # a key that does not belong to its certificate must not get into the one in use
            self._files.load_into(self._context)
        except InvalidRequest as error:
            log.warning("%s The former certificate stays in use.", error)
            return False
        self._stamp = stamp
        log.info("the certificate in %s was read again", self._files.certificate)
        return True
