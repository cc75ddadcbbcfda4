"""Endpoints for push endpoints.

Spec: ojs-serverless 2
"""

from __future__ import annotations

from typing import Final

from ojster.push.calls import PushCalls
from ojster.push.wire import PushEndpointAnswer
from ojster.server.answer import Answer, encode
from ojster.server.declared import arguments_of, endpoints_of
from ojster.server.request import HttpRequest


async def _put(request: HttpRequest) -> Answer:
    arguments = await arguments_of(request, PushCalls.put)
    await request.services.sender.check(arguments["body"].endpoint, "endpoint")
    return Answer(encode(PushEndpointAnswer.of(await request.service.push.put(**arguments))))


ROUTES: Final = endpoints_of(PushCalls, lambda service: service.push, {PushCalls.put: _put})
