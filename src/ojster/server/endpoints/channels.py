"""Endpoints for notification channels."""

from __future__ import annotations

from typing import Final

from ojster.core.signatures import new_secret
from ojster.events.calls import EventCalls
from ojster.events.channel import Channel
from ojster.events.wire import CHANNEL, ChannelAnswer, ChannelBody, show_channel
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def put_channel(request: HttpRequest) -> Answer:
    """Create or replace a channel. Only this answer contains the secret that signs the calls of a webhook."""
    body = await request.read(CHANNEL)
    secret = body.secret
    if body.method == "webhook" and body.url is not None:
        await request.services.sender.check(body.url)
        secret = body.secret or new_secret()
    name, to, cc = request.path["name"], tuple(body.to), tuple(body.cc)
    now = request.service.database.clock()
    channel = Channel(name, body.method, body.sender, to, cc, body.subject, body.url, secret, now)
    is_new = await request.service.events.put_channel(channel)
    return Answer(encode(ChannelAnswer(show_channel(channel, secret))), 201 if is_new else 200)


ROUTES: Final = (
    *endpoints_of(EventCalls, lambda service: service.events),
    Route("PUT", f"{BASE}/channels/{{name}}", put_channel, "Notifications", ChannelBody, ChannelAnswer, more=(201,)),
)
