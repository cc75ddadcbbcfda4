"""E-mail over SMTP, sent with the standard library in a thread."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from ojster.core.errors import InvalidRequest

TIMEOUT: Final = 30.0
"""Timeout of each SMTP step, in seconds."""


class Smtp(msgspec.Struct, frozen=True):
    """A mail server.

    Parameters
    ----------
    security:
        ``tls`` (from the start), ``starttls`` (required), or ``none`` (for a server on this machine).
    """

    host: str
    port: int
    security: str
    user: str | None = None
    password: str | None = None


def read_smtp(url: str) -> Smtp:
    """Parse the URL of a mail server: ``smtps://user:password@host:465``, ``smtp://host:587``.

    ``smtp://`` requires STARTTLS, except for a server on this machine. ``?security=none`` disables encryption. The
    default port is 465 for TLS, 587 for STARTTLS, and 25 without encryption.

    Raises
    ------
    InvalidRequest
        The URL does not name a mail server.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("smtp", "smtps") or parts.query not in ("", "security=none"):
        raise InvalidRequest("Invalid mail server. Use a URL like 'smtps://user:password@mail.example.com:465'.")
    security = "tls" if parts.scheme == "smtps" else "starttls"
    if parts.query or (security == "starttls" and host in ("localhost", "127.0.0.1", "::1")):
        security = "none"
    usual = {"tls": 465, "starttls": 587, "none": 25}[security]
    user = None if parts.username is None else unquote(parts.username)
    return Smtp(host, port or usual, security, user, None if parts.password is None else unquote(parts.password))


def compose(sender: str, to: tuple[str, ...], cc: tuple[str, ...], subject: str, text: str) -> EmailMessage:
    """Return an e-mail."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = sender, ", ".join(to), subject
    if cc:
        message["Cc"] = ", ".join(cc)
    message["Date"] = formatdate(localtime=False)
    message["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2])
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    return message


async def send(server: Smtp, message: EmailMessage) -> None:
    """Send an e-mail through a mail server.

    Raises
    ------
    smtplib.SMTPException, OSError
        The server rejected the message or is unreachable.
    """
    await asyncio.to_thread(_send, server, message)


def _send(server: Smtp, message: EmailMessage) -> None:
    secure = ssl.create_default_context()
    connection: smtplib.SMTP
    if server.security == "tls":
        connection = smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT, context=secure)
    else:
        connection = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT)
    with connection:
        if server.security == "starttls":
            connection.starttls(context=secure)
        if server.user is not None:
            connection.login(server.user, server.password or "")
        refused = connection.send_message(message)
        if refused:
            raise smtplib.SMTPRecipientsRefused(refused)


def is_final(error: Exception) -> bool:
    """Whether a retry is pointless: the server rejected the message, or all its recipients, with status 5xx."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(500 <= code < 600 for code, _ in error.recipients.values())
    return isinstance(error, smtplib.SMTPResponseException) and 500 <= error.smtp_code < 600
