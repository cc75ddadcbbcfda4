"""HTTP endpoints: one module for each resource, and one ``Route`` for each endpoint."""

from __future__ import annotations

from typing import Final

from ojster.collections import routes
from ojster.events import channel_routes, stream_routes, webhook_routes
from ojster.files import routes as files
from ojster.fleet import routes as worker_rules
from ojster.insight import routes as admin
from ojster.insight import status_routes, task_routes
from ojster.jobs import bulk_routes, dead_letter_routes, history_routes, schema_routes, worker_routes
from ojster.jobs import routes as jobs
from ojster.queues import pool_routes, rate_limit_routes
from ojster.queues import routes as queues
from ojster.schedules import routes as crons
from ojster.server.route import Route
from ojster.tenancy import routes as tenants
from ojster.tenancy import token_routes
from ojster.workflows import definition_routes
from ojster.workflows import routes as workflows

ROUTES: Final[tuple[Route, ...]] = (
    *bulk_routes.ROUTES,
    *jobs.ROUTES,
    *history_routes.ROUTES,
    *workflows.ROUTES,
    *routes.ROUTES,
    *task_routes.ROUTES,
    *files.ROUTES,
    *channel_routes.ROUTES,
    *definition_routes.ROUTES,
    *worker_routes.ROUTES,
    *queues.ROUTES,
    *dead_letter_routes.ROUTES,
    *rate_limit_routes.ROUTES,
    *schema_routes.ROUTES,
    *crons.ROUTES,
    *webhook_routes.ROUTES,
    *stream_routes.ROUTES,
    *status_routes.ROUTES,
    *admin.ROUTES,
    *pool_routes.ROUTES,
    *tenants.ROUTES,
    *token_routes.ROUTES,
    *worker_rules.ROUTES,
)
