"""Commands for notification channels."""

from __future__ import annotations

import os

import click
import msgspec

from ojster.cli.declared import option_of
from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import print_list
from ojster.core.signatures import new_secret
from ojster.core.timestamps import system_clock
from ojster.events.channel import Channel
from ojster.events.wire import show_channel

SECRET_VARIABLE = "OJSTER_CHANNEL_SECRET"  # noqa: S105  (a name)


@click.group(
    epilog=examples(
        "ojster channels email ops --from jobs@example.com --to ada@example.com",
        "ojster channels webhook chat https://chat.example.com/hooks/jobs",
        "ojster channels list",
    )
)
def channels() -> None:
    """Manage the channels for notifications from jobs: e-mail and webhooks."""


@channels.command("email", epilog=examples("ojster channels email ops --from jobs@example.com --to ada@example.com"))
@click.argument("name")
@option_of(Channel, "sender", "--from", required=True, metavar="ADDRESS")
@option_of(Channel, "to", required=True, multiple=True, metavar="ADDRESS", help="Recipient; repeatable.")
@option_of(Channel, "cc", multiple=True, metavar="ADDRESS", help="Copy recipient; repeatable.")
@option_of(Channel, "subject")
@with_url
@with_json
def put_email(
    name: str, sender: str, to: tuple[str, ...], cc: tuple[str, ...], subject: str | None, url: str, as_json: bool
) -> None:
    """Create or change a channel that sends e-mail through the server's --smtp server."""
    channel = Channel(name, "email", sender, to, cc, subject, created_at=system_clock())
    ask(url, lambda client: client.events.put_channel(channel), makes=True)
    done(f"The channel {name} sends e-mail to {', '.join(to)}.", as_json, msgspec.to_builtins(show_channel(channel)))


@channels.command("webhook", epilog=examples("ojster channels webhook chat https://chat.example.com/hooks/jobs"))
@click.argument("name")
@click.argument("address")
@with_url
@with_json
def put_webhook(name: str, address: str, url: str, as_json: bool) -> None:
    """Create or change a channel that posts to the URL ADDRESS, and print the secret that signs its requests.

    The secret comes from OJSTER_CHANNEL_SECRET if set; otherwise it is generated.
    """
    secret = os.environ.get(SECRET_VARIABLE) or new_secret()
    channel = Channel(name, "webhook", url=address, secret=secret, created_at=system_clock())
    ask(url, lambda client: client.events.put_channel(channel), makes=True)
    done(secret, as_json, msgspec.to_builtins(show_channel(channel, secret)))


@channels.command("list", epilog=examples("ojster channels list"))
@with_url
@with_json
def list_channels(url: str, as_json: bool) -> None:
    """List the channels."""
    channels = ask(url, lambda client: client.events.channels())
    rows = [
        (channel.name, channel.method, channel.url or ", ".join(channel.to), channel.sender, channel.subject)
        for channel in channels
    ]
    print_list(
        as_json,
        {"channels": [msgspec.to_builtins(show_channel(channel)) for channel in channels]},
        ("name", "method", "to", "from", "subject"),
        rows,
        "There are no channels.",
    )


@channels.command("delete", epilog=examples("ojster channels delete ops"))
@click.argument("name")
@with_url
@with_json
def delete_channel(name: str, url: str, as_json: bool) -> None:
    """Delete a channel and drop its pending notifications."""
    ask(url, lambda client: client.events.delete_channel(name))
    done(f"The channel {name} is deleted.", as_json, {"name": name, "deleted": True})
