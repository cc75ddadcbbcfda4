"""Notification channels (e-mail or signed webhook), and the ``notify`` reaction that uses them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import InvalidRequest

MOST_ADDRESSES: Final = 50
MAX_SUBJECT_LENGTH: Final = 500

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+._\-]{0,63}")
_ADDRESS: Final = re.compile(r"[^\s@<>,;\"()\\\x00-\x1f]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.\-]{0,250}[A-Za-z0-9])?")


class Channel(msgspec.Struct, frozen=True, omit_defaults=True):
    """A notification channel. ``created_at`` is in microseconds since the epoch.

    Parameters
    ----------
    sender:
        Sender address of the messages, for ``email``.
    to:
        Recipient, or several; a notification may name others.
    cc:
        Copy recipient, or several.
    subject:
        Default subject, such as ``{job.type} {event}``.
    url:
        Address to call, for ``webhook``.
    secret:
        Signs the requests of a webhook; the server makes one if there is none.
    """

    name: str
    method: Literal["email", "webhook"]
    sender: str | None = None
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    subject: str | None = None
    url: str | None = None
    secret: str | None = None
    created_at: int = 0


def check_channel(channel: Channel) -> Channel:
    """Validate a channel and return it.

    Raises
    ------
    InvalidRequest
        It is invalid.
    """
    check_channel_name(channel.name)
    if channel.method == "email":
        if channel.url is not None or channel.secret is not None or channel.sender is None or not channel.to:
            raise InvalidRequest(
                "An e-mail channel needs 'from' and 'to', and must not have 'url' or 'secret'.", field="method"
            )
        check_addresses((channel.sender,), "from")
        check_addresses(channel.to, "to")
        check_addresses(channel.cc, "cc")
        check_subject(channel.subject)
    elif channel.url is None or channel.sender is not None or channel.to or channel.cc or channel.subject is not None:
        raise InvalidRequest("A webhook channel needs 'url', and must not have e-mail members.", field="method")
    return channel


def check_channel_name(name: str) -> str:
    """Validate the name of a channel and return it.

    Raises
    ------
    InvalidRequest
        The name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"The channel name {name[:80]!r} is invalid: it must begin with a letter, contain only letters, digits, "
            "'+', '.', '_' and '-', and be at most 64 characters long.",
            field="channel",
        )
    return name


def check_addresses(addresses: Sequence[str], field: str) -> None:
    """Validate e-mail addresses.

    Raises
    ------
    InvalidRequest
        An address is malformed, or there are too many.
    """
    if len(addresses) > MOST_ADDRESSES:
        raise InvalidRequest(f"{field!r} has {len(addresses)} addresses; the maximum is {MOST_ADDRESSES}.", field=field)
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise InvalidRequest(
                f"{address[:80]!r} in {field!r} is not an e-mail address such as 'ada@example.com'.", field=field
            )


def check_subject(subject: str | None) -> None:
    """Validate a subject: it must not be too long, nor contain line breaks, which could add headers.

    Raises
    ------
    InvalidRequest
        The subject is invalid.
    """
    if subject is not None and (len(subject) > MAX_SUBJECT_LENGTH or not subject.isprintable()):
        raise InvalidRequest(
            f"The subject must have at most {MAX_SUBJECT_LENGTH} printable characters and no line breaks.",
            field="subject",
        )


class Notify(msgspec.Struct, frozen=True, tag_field="action", tag="notify", forbid_unknown_fields=True):
    """Send a notification about the job through a channel.

    Parameters
    ----------
    channel:
        Name of the channel.
    subject:
        Subject that overrides the channel's. References in braces are replaced by values of the job, as in
        ``{job.type} has failed``; references without a value stay as they are.
    text:
        Additional text, with references as in ``subject``.
    to, cc:
        Recipients that override those of an e-mail channel.
    """

    channel: str
    subject: str | None = None
    text: str | None = None
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()

    def check(self) -> None:
        """Validate the channel name, the addresses and the subject.

        Raises
        ------
        InvalidRequest
            One of them is malformed.
        """
        check_channel_name(self.channel)
        check_addresses(self.to, "to")
        check_addresses(self.cc, "cc")
        check_subject(self.subject)


class Message(msgspec.Struct, frozen=True):
    """A notification ready to be sent: the argument of the job that sends it."""

    event: str
    subject: str
    text: str
    job: dict[str, Any]
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
