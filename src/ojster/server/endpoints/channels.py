"""Endpoints for notification channels."""

from __future__ import annotations

from typing import Final

from ojster.core.wire import DeletedAnswer
from ojster.events.channel import Channel
from ojster.events.webhooks import new_secret
from ojster.events.wire import CHANNEL, ChannelAnswer, ChannelBody, ChannelsAnswer, show_channel
from ojster.server.answer import Answer, encode
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def put_channel(request: HttpRequest) -> Answer:
    """Create or replace a channel. Only this answer contains the secret that signs the calls of a webhook."""
    body = await request.read(CHANNEL)
    secret = None
    if body.method == "webhook" and body.url is not None:
        await request.sender.check(body.url)
        secret = body.secret or new_secret()
    name, to, cc = request.path["name"], tuple(body.to), tuple(body.cc)
    now = request.service.database.clock()
    channel = Channel(name, body.method, body.sender, to, cc, body.subject, body.url, secret, now)
    is_new = await request.service.events.put_channel(channel)
    return Answer(encode(ChannelAnswer(show_channel(channel, secret))), 201 if is_new else 200)


async def list_channels(request: HttpRequest) -> Answer:
    """List the channels, without their secrets."""
    found = await request.service.events.channels()
    return Answer(encode(ChannelsAnswer([show_channel(one) for one in found])))


async def delete_channel(request: HttpRequest) -> Answer:
    """Delete a channel and drop its pending notifications."""
    await request.service.events.delete_channel(request.path["name"])
    return Answer(encode(DeletedAnswer(request.path["name"])))


_TAG: Final = "Notifications"

ROUTES: Final = (
    Route("GET", f"{BASE}/channels", list_channels, _TAG, answer=ChannelsAnswer),
    Route("PUT", f"{BASE}/channels/{{name}}", put_channel, _TAG, ChannelBody, ChannelAnswer, more=(201,)),
    Route("DELETE", f"{BASE}/channels/{{name}}", delete_channel, _TAG, answer=DeletedAnswer),
)
