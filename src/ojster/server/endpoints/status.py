"""Endpoints for the server itself: health, readiness, manifest and recent events.

Spec: ojs-http-binding 18, 21
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from typing import Final

import msgspec

from ojster.core.access import Operation
from ojster.core.errors import BackendUnavailable, InvalidRequest, OjsterError
from ojster.core.events import MAX_EVENTS_PER_PAGE, EventFilter, EventPage
from ojster.core.version import __version__
from ojster.core.wire import Json
from ojster.events.log import NUMBERS_PER_BATCH
from ojster.insight.readiness import uptime, why_not_ready
from ojster.insight.wire import (
    EXPERIMENTAL,
    EXTENSIONS,
    BackendBody,
    EndpointsBody,
    ExtensionsBody,
    HealthAnswer,
    ImplementationBody,
    ManifestAnswer,
    PingAnswer,
    ReadyAnswer,
)
from ojster.jobs.checkpoints import MAX_CHECKPOINT_BYTES
from ojster.server.answer import Answer, encode
from ojster.server.pages import flag, numbered_page, numbered_pagination, page_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route
from ojster.workflows.node import MAX_NODES
from ojster.workflows.plan.reader import MAX_LEVELS

RECENT_TRANSACTIONS: Final = 50
"""Number of transactions whose events are recent."""


RETRY: Final = ((b"retry-after", b"1"),)
"""Header of each 503: the seconds to wait. Spec: ojs-http-binding 16"""


async def list_events(request: HttpRequest) -> Answer:
    """List recent events, oldest first, optionally by ``types`` (or ``type``), ``queues`` and ``job_types``.

    ``recent=true`` begins with those of the last ``RECENT_TRANSACTIONS`` transactions that are kept. With ``page``, the
    answer is a page of at most 1,000 of the newest events, newest first. After an event that the log no longer has, or
    never had, the answer says ``"gap": true``.
    """
    query = request.query
    limit, _, _ = page_of(query, default=100, largest=MAX_EVENTS_PER_PAGE)
    after = query.get("after", "evt_0").removeprefix("evt_")
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidRequest("The parameter 'after' must be the id of an event.", field="after")
    filters = {name: tuple(filter(None, query.get(name, "").split(","))) for name in ("types", "queues", "job_types")}
    filters["types"] += tuple(filter(None, (query.get("type"),)))
    chosen = EventFilter(int(after), filters["types"], filters["queues"], filters["job_types"], limit)
    if "page" in query:
        return await _numbered_events(request, chosen)
    if flag(query, "recent"):
        recent = await request.service.events.last() - RECENT_TRANSACTIONS * NUMBERS_PER_BATCH
        if recent > chosen.after:  # nobody has named an event after which some could be missing
            page = await request.service.events.select(msgspec.structs.replace(chosen, after=recent))
            return Answer(encode(msgspec.structs.replace(page, gap=msgspec.UNSET)))
    return Answer(encode(await request.service.events.select(chosen)))


async def _numbered_events(request: HttpRequest, chosen: EventFilter) -> Answer:
    """Answer as the specification's admin page asks: it reads ``timestamp`` where ojs-events has ``time``."""
    page = numbered_page(request.query)
    newest = await request.service.events.newest(msgspec.structs.replace(chosen, limit=MAX_EVENTS_PER_PAGE))
    shown = [event | {"timestamp": event["time"]} for event in newest[page.offset : page.offset + page.size]]
    pagination = numbered_pagination(page, len(newest))
    return Answer(encode(EventPage(shown, None, page.offset + page.size < len(newest), pagination)))


async def health(request: HttpRequest) -> Answer:
    """Show the health of the server and its database. Answers 503 if the database does not respond."""
    database = request.service.database
    started = time.perf_counter()
    backend = BackendBody(database.kind, "ok")
    try:
        await asyncio.wait_for(request.service.jobs.count("default"), timeout=5)
        backend.latency_ms = round((time.perf_counter() - started) * 1000)
    except (OjsterError, TimeoutError) as error:
        backend.status = "unhealthy"
        backend.error = request.shown_outage(str(error) or "The database did not respond within 5 seconds.")
    healthy = backend.status == "ok"
    shown = HealthAnswer("ok" if healthy else "degraded", "1.0", uptime(), backend)
    return Answer(encode(shown)) if healthy else Answer(encode(shown), 503, RETRY)


async def ready(request: HttpRequest) -> Answer:
    """Show whether the server accepts jobs. Answers 503 during shutdown, or if the database cannot be written."""
    database = request.service.database
    if database.draining:
        return Answer(encode(ReadyAnswer("stopping")), 503, RETRY)
    if (reason := await why_not_ready(database)) is not None:
        return Answer(encode(ReadyAnswer("not_ready", request.shown_outage(reason))), 503, RETRY)
    return Answer(encode(ReadyAnswer("ready")))


async def ping(request: HttpRequest) -> Answer:
    """Measure the latency of the database. Answers 503 if it does not respond within 5 seconds."""
    try:
        seconds = await asyncio.wait_for(request.service.ping(), timeout=5)
    except TimeoutError:
        raise BackendUnavailable("The database did not respond within 5 s. Try again later.") from None
    return Answer(encode(PingAnswer("pong", "up", round(seconds * 1000, 3), os.getpid())))


async def manifest(request: HttpRequest) -> Answer:
    """Show the server's implementation, capabilities and extensions."""
    settings = request.service.database.settings
    details: dict[str, Json] = {
        "max_batch_size": settings.largest_batch,
        "max_job_bytes": settings.largest_job,
        "rate_limiting": {"strategies": ["concurrency", "rate", "throttle"], "window": "fixed"},
        "bulk_operations": {"atomicity": ["atomic", "partial"], "filters": True, "idempotency_keys": True},
        "checkpoints": {"max_bytes": MAX_CHECKPOINT_BYTES},
        "acknowledgement": {"fetch": True},
        "release": {"then": ["queue", "wait", "retry", "skip"]},
        "multi_tenancy": {"isolation": "shared queues with turns", "tenants": settings.tenants},
        "unique_jobs": {"strength": "strong", "mechanism": "check and insert in one transaction"},
        "workflows": {
            "types": ["chain", "group", "batch", "saga", "graph", "map"],
            "max_nesting": MAX_LEVELS,
            "max_nodes": MAX_NODES,
            "approvals": True,
            "conditions": _has("cel_expr_python"),
            "hold": True,
            "retry": True,
            "growth": "append in an acknowledgement",
            "definitions": True,
            "properties": True,
            "locks": _has("jsonschema_rs"),
        },
        "ai_agents": {"level": "standard", "output_schemas": _has("jsonschema_rs")},
        "ml_resources": {"matching": True, "queue_limits": True, "preemption": False},
        "files": {"store": request.service.files.has_store},
        "realtime": {"sse": True, "websocket": _has("websockets"), "resumable": True},
    }
    shown = ManifestAnswer(
        specversion="1.0",
        ojs_version="1.0",
        implementation=ImplementationBody("ojster", __version__, "python"),
        conformance_level=4,
        conformance_tier="runtime",
        unique_job_strength="strong",
        protocols=["http", "sse", *(["websocket"] if _has("websockets") else [])],
        backend=request.service.database.kind,
        capabilities=dict.fromkeys(_CAPABILITIES, True) | {"schema_validation": _has("jsonschema_rs")},
        capability_details=details,
        event_delivery="at-least-once",
        extensions=[extension.name for extension in (*EXTENSIONS, *EXPERIMENTAL)],
        extension_details=ExtensionsBody(EXTENSIONS, EXPERIMENTAL),
        features=_FEATURES,
        endpoints=EndpointsBody("/ojs/manifest", f"{BASE}/health", "/openapi.json", "/metrics"),
    )
    return Answer(encode(shown))


_CAPABILITIES: Final = (
    "batch_enqueue",
    "bulk_operations",
    "checkpoints",
    "cron_jobs",
    "dead_letter",
    "delayed_jobs",
    "job_ttl",
    "multi_tenancy",
    "pause_resume",
    "priority_queues",
    "rate_limiting",
    "release",
    "unique_jobs",
    "webhooks",
    "workflows",
)
"""Capabilities of every server. Clients in typed languages read them as booleans; details are beside them."""

_FEATURES: Final = [
    "long-poll",
    "batch-acknowledge",
    "release",
    "worker-directives",
    "events",
    "event-streams",
    "metrics",
]


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


ROUTES: Final = (
    Route(
        "GET",
        f"{BASE}/events",
        list_events,
        "Server",
        answer=EventPage,
        query=("types", "type", "queues", "job_types", "after", "recent", "limit", "page", "per_page"),
    ),
    Route("GET", f"{BASE}/health", health, "Server", answer=HealthAnswer, more=(503,), is_public=True),
    Route("GET", f"{BASE}/ping", ping, "Server", answer=PingAnswer, needs=tuple(Operation)),
    Route("GET", "/health", health, "Server", answer=HealthAnswer, more=(503,), is_public=True),
    Route("GET", "/ready", ready, "Server", answer=ReadyAnswer, more=(503,), is_public=True),
    Route("GET", "/ojs/manifest", manifest, "Server", answer=ManifestAnswer, is_public=True),
)
