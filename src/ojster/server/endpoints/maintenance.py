"""Endpoints about maintenance.

Spec: ojs-admin-api 12
"""

from __future__ import annotations

from typing import Final

from ojster.schedules.calls import MaintenanceCalls
from ojster.schedules.wire import PruneAnswer
from ojster.server.answer import Answer, encode
from ojster.server.declared import arguments_of, endpoints_of
from ojster.server.request import HttpRequest


async def _prune(request: HttpRequest) -> Answer:
    arguments = await arguments_of(request, MaintenanceCalls.prune)
    pruned = await request.service.maintenance.prune(**arguments)
    return Answer(encode(PruneAnswer(pruned, arguments.get("dry_run", False))))


ROUTES: Final = endpoints_of(MaintenanceCalls, lambda service: service.maintenance, {MaintenanceCalls.prune: _prune})
