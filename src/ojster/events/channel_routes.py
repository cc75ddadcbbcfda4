"""Endpoints for notification channels."""

from __future__ import annotations

from typing import Final

from ojster.events.channel import Channel
from ojster.events.webhooks import new_secret
from ojster.events.wire import CHANNEL, ChannelBody
from ojster.server.request import Answer, HttpRequest, encode
from ojster.server.route import BASE, Route


async def put_channel(exchange: HttpRequest) -> Answer:
    """Create or replace a channel. Only this answer contains the secret that signs the calls of a webhook."""
    body = await exchange.read(CHANNEL)
    secret = None
    if body.method == "webhook" and body.url is not None:
        await exchange.sender.check(body.url)
        secret = body.secret or new_secret()
    name, to, cc = exchange.path["name"], tuple(body.to), tuple(body.cc)
    now = exchange.engine.database.clock()
    channel = Channel(name, body.method, body.sender, to, cc, body.subject, body.url, secret, now)
    is_new = await exchange.engine.events.put_channel(channel)
    shown = channel.to_wire() | ({} if secret is None else {"secret": secret})
    return Answer(encode({"channel": shown}), 201 if is_new else 200)


async def list_channels(exchange: HttpRequest) -> Answer:
    """List the channels, without their secrets."""
    return Answer(encode({"channels": [one.to_wire() for one in await exchange.engine.events.channels()]}))


async def delete_channel(exchange: HttpRequest) -> Answer:
    """Delete a channel and drop its pending notifications."""
    await exchange.engine.events.delete_channel(exchange.path["name"])
    return Answer(encode({"deleted": True, "name": exchange.path["name"]}))


_TAG: Final = "Notifications"

ROUTES: Final = (
    Route("GET", f"{BASE}/channels", list_channels, _TAG),
    Route("PUT", f"{BASE}/channels/{{name}}", put_channel, _TAG, ChannelBody),
    Route("DELETE", f"{BASE}/channels/{{name}}", delete_channel, _TAG),
)
