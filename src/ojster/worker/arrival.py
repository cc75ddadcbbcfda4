"""What a worker does before anything of it begins: it finds out which server it has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

from ojster.client.interface import Client
from ojster.service import Service
from ojster.worker.backoff import UNREACHABLE, Backoff
from ojster.worker.handback import hand_back_jobs
from ojster.worker.identity import Identity
from ojster.worker.local_queue import LocalQueue

log = logging.getLogger(__name__)


async def arrive(
    client: Client, worker_id: str, identity: Identity | None, held: LocalQueue, is_stopping: Callable[[], bool]
) -> None:
    """Adapt a worker's calls to a server of others, and hand back what an earlier worker of its identity held.

    Raises
    ------
    Unsupported
        The server is none of Open Job Spec.
    """
    if not isinstance(client, Service):
        await _adapt(client, held, is_stopping)
    if identity is not None:
        await hand_back_jobs(client, worker_id, is_stopping)


async def _adapt(client: Client, held: LocalQueue, is_stopping: Callable[[], bool]) -> None:
    from ojster.client.client import HttpClient  # imported here, because the import is slow
    from ojster.client.other_servers import adapt

    remote, backoff = cast("HttpClient", client), Backoff()
    while not is_stopping():
        try:
            name = await adapt(remote)
        except UNREACHABLE as error:
            log.warning("cannot ask which server this is, trying again in %.1f s: %s", backoff.seconds, error)
            await backoff.wait()
            continue
        if name is not None:
            held.hold_none()  # what is held may have to be handed back, which such a server does at once or not at all
            log.warning(
                "the server %s is %r, not Ojster: each outcome is reported on its own, and suspension, flows, steps "
                "that jobs append and shared properties fail",
                remote.url,
                name[:80],
            )
        return
