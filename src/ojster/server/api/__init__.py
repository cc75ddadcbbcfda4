"""Which paths are there? One row of ``ROUTES`` for every endpoint, and a module for each kind of thing."""

from __future__ import annotations

from typing import Final

from ojster.server.api import (
    admin,
    bulk,
    channels,
    collections,
    crons,
    dead_letters,
    definitions,
    files,
    history,
    jobs,
    pools,
    queues,
    rate_limits,
    schemas,
    service,
    streams,
    tasks,
    tenants,
    tokens,
    webhooks,
    worker_rules,
    workers,
    workflows,
)
from ojster.server.route import Route

ROUTES: Final[tuple[Route, ...]] = (
    *bulk.ROUTES,
    *jobs.ROUTES,
    *history.ROUTES,
    *workflows.ROUTES,
    *collections.ROUTES,
    *tasks.ROUTES,
    *files.ROUTES,
    *channels.ROUTES,
    *definitions.ROUTES,
    *workers.ROUTES,
    *queues.ROUTES,
    *dead_letters.ROUTES,
    *rate_limits.ROUTES,
    *schemas.ROUTES,
    *crons.ROUTES,
    *webhooks.ROUTES,
    *streams.ROUTES,
    *service.ROUTES,
    *admin.ROUTES,
    *pools.ROUTES,
    *tenants.ROUTES,
    *tokens.ROUTES,
    *worker_rules.ROUTES,
)
