"""Through what is somebody told of what a job wants to tell? Channels: e-mail, or a signed webhook. (seed 003)"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.timestamps import format_timestamp, parse_timestamp

MOST_ADDRESSES: Final = 50
LONGEST_SUBJECT: Final = 500

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+._\-]{0,63}")
_ADDRESS: Final = re.compile(r"[^\s@<>,;\"()\\\x00-\x1f]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.\-]{0,250}[A-Za-z0-9])?")


class Channel(msgspec.Struct, frozen=True, omit_defaults=True):
    """A way to tell somebody something. ``created_at`` is in microseconds since the epoch.

    Parameters
    ----------
    sender, to, cc, subject:
        Of e-mail: from whom, to whom, and about what if the job does not say it.
    url, secret:
        Of a webhook: who is called, and with what the call is signed.
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

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON shows it: without its secret."""
        shown = {
            name: value
            for name, value in (
                ("from", self.sender),
                ("to", list(self.to)),
                ("cc", list(self.cc)),
                ("subject", self.subject),
                ("url", self.url),
            )
            if value
        }
        return {"name": self.name, "method": self.method, "created_at": format_timestamp(self.created_at)} | shown


def read_channel(shown: dict[str, Any]) -> Channel:
    """Return a channel that JSON shows so; the inverse of ``Channel.to_wire``."""
    return Channel(
        shown["name"],
        shown["method"],
        shown.get("from"),
        tuple(shown.get("to", ())),
        tuple(shown.get("cc", ())),
        shown.get("subject"),
        shown.get("url"),
        created_at=parse_timestamp(shown["created_at"]),
    )


def check_channel(channel: Channel) -> Channel:
    """Return a channel that can be used.

    Raises
    ------
    InvalidRequest
        It cannot be.
    """
    check_channel_name(channel.name)
    if channel.method == "email":
        if channel.url is not None or channel.sender is None or not channel.to:
            raise InvalidRequest("A channel for e-mail has 'from' and 'to', and no 'url'.", field="method")
        check_addresses((channel.sender,), "from")
        check_addresses(channel.to, "to")
        check_addresses(channel.cc, "cc")
        check_subject(channel.subject)
    elif channel.url is None or channel.sender is not None or channel.to or channel.cc or channel.subject is not None:
        raise InvalidRequest("A channel for a webhook has a 'url', and nothing of e-mail.", field="method")
    return channel


def check_channel_name(name: str) -> str:
    """Return the name of a channel.

    Raises
    ------
    InvalidRequest
        It is none.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} is no name of a channel: it begins with a letter, has letters, digits, '+', '.', '_' and "
            "'-', and at most 64.",
            field="channel",
        )
    return name


def check_addresses(addresses: Sequence[str], field: str) -> None:
    """Refuse what are no addresses of e-mail.

    Raises
    ------
    InvalidRequest
        One is none, or there are too many.
    """
    if len(addresses) > MOST_ADDRESSES:
        raise InvalidRequest(f"{field!r} has more than {MOST_ADDRESSES} addresses.", field=field)
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise InvalidRequest(f"{address[:80]!r} in {field!r} is no address such as 'ada@example.com'.", field=field)


def check_subject(subject: str | None) -> None:
    """Refuse a subject that could add headers, or is too long.

    Raises
    ------
    InvalidRequest
        It is one.
    """
    if subject is not None and (len(subject) > LONGEST_SUBJECT or not subject.isprintable()):
        raise InvalidRequest(
            f"A subject has at most {LONGEST_SUBJECT} printable characters, and no line breaks.", field="subject"
        )


class Notify(msgspec.Struct, frozen=True, tag_field="action", tag="notify", forbid_unknown_fields=True):
    """Tell somebody of what has happened to the job, through a channel.

    Parameters
    ----------
    subject:
        Instead of the channel's; what stands in braces leads to the job: ``{job.type} has failed``. What leads nowhere
        stays as it is.
    text:
        What is said beside the facts; like ``subject``.
    to, cc:
        Instead of the channel's, where it is one for e-mail.
    """

    channel: str
    subject: str | None = None
    text: str | None = None
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what can never be sent.

        Raises
        ------
        InvalidRequest
            It is malformed.
        """
        check_channel_name(self.channel)
        check_addresses(self.to, "to")
        check_addresses(self.cc, "cc")
        check_subject(self.subject)


class Message(msgspec.Struct, frozen=True):
    """What is told, ready to be sent: the argument of the job that sends it."""

    event: str
    subject: str
    text: str
    job: dict[str, Any]
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
