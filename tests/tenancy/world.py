"""Test data of one tenant at every endpoint, and the requests with which another tenant tries to reach it."""

from __future__ import annotations

from typing import Any

from ojster.files.store import MemoryStore
from tests.conftest import Bench, Http

BASE = "/ojs/v1"
MARKER = "treasure"
"""Marker in all data of the tenant ``acme``. No response to another tenant may contain it."""

ACME = {"X-OJS-Tenant": "acme"}
BETA = {"X-OJS-Tenant": "beta"}


async def call(http: Http, method: str, path: str, body: Any = None, headers: dict[str, str] = ACME) -> Any:
    response = await http(method, path, body, headers=headers)
    assert response.status_code < 300, f"{method} {path}: {response.text}"
    return response.json()


class World:
    """Objects of the tenant ``acme``, of every kind, with their ids by name."""

    def __init__(self, http: Http) -> None:
        self.http = http
        self.ids: dict[str, str] = {}

    async def make(self, bench: Bench) -> None:
        http, ids = self.http, self.ids
        meta = {"note": MARKER}

        async def push(**more: Any) -> str:
            job = await call(http, "POST", f"{BASE}/jobs", {"type": "t", "args": [MARKER], "meta": meta, **more})
            return str(job["job"]["id"])

        ids["waiting"] = await push(options={"pending": True})
        ids["available"] = await push(options={"rate_limit": {"key": "stripe", "concurrency": 9}})
        ids["active"] = await push(options={"queue": "work"})
        fetch = {"queues": ["work"], "worker_id": "w-acme"}
        await call(http, "POST", f"{BASE}/workers/fetch", fetch)
        beat = {"worker_id": "w-acme", "active_jobs": [ids["active"]], "hostname": MARKER}
        await call(http, "POST", f"{BASE}/workers/heartbeat", beat)
        await call(http, "PUT", f"{BASE}/jobs/{ids['active']}/checkpoint", {"state": MARKER})
        await call(http, "PUT", f"{BASE}/jobs/{ids['active']}/progress", {"progress": 0.5, "message": MARKER})
        retry = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
        ids["dead"] = await push(options={"queue": "grave", "retry": retry})
        await call(http, "POST", f"{BASE}/workers/fetch", {"queues": ["grave"]})
        await call(
            http, "POST", f"{BASE}/workers/nack", {"job_id": ids["dead"], "error": {"code": "x", "message": MARKER}}
        )
        workflow = {
            "type": "chain",
            "metadata": meta,
            "steps": [{"type": "gate", "id": "g"}, {"type": "a", "args": [MARKER]}],
        }
        ids["workflow"] = (await call(http, "POST", f"{BASE}/workflows", workflow))["workflow"]["id"]
        plan = {"name": "plan", "type": "chain", "steps": [{"type": "a", "args": [MARKER]}]}
        await call(http, "POST", f"{BASE}/definitions", plan)
        where = f"{BASE}/workflows/{ids['workflow']}"
        await call(http, "POST", f"{where}/properties", {"set": {"secret": MARKER}})
        await call(http, "POST", f"{where}/info", {"note": MARKER})
        await call(http, "POST", f"{BASE}/jobs/{ids['active']}/info", {"note": MARKER})
        await call(http, "POST", f"{BASE}/collections", {"name": "hoard", "description": MARKER})
        for place in (f"{BASE}/collections/hoard", where):
            await call(http, "POST", f"{place}/items", {"name": "gem", "data": MARKER})
        bench.service.store = MemoryStore()
        file = await call(http, "PUT", f"{BASE}/files?filename={MARKER}.txt", MARKER.encode())
        ids["file"] = file["file"]["id"]
        artifact = {"name": "gem", "data": MARKER, "file": ids["file"]}
        await call(http, "POST", f"{BASE}/jobs/{ids['active']}/items", artifact)
        channel = {"method": "email", "from": "a@example.com", "to": ["a@example.com"], "subject": MARKER}
        await call(http, "PUT", f"{BASE}/channels/ops", channel)
        function = {"endpoint": "https://203.0.113.1/run", "queues": ["nowhere"], "job_types": [MARKER.lower()]}
        await call(http, "PUT", f"{BASE}/push/endpoints/fn", function)
        cron = {"name": "nightly", "expression": "0 0 * * *", "type": "t", "args": [MARKER]}
        await call(http, "POST", f"{BASE}/cron", cron)
        schema = {"type": "array", "title": MARKER}
        await call(http, "POST", f"{BASE}/schemas", {"job_type": "typed", "version": 1, "schema": schema})
        await call(http, "PUT", f"{BASE}/signatures", {"signatures": [{"type": "typed", "schema": schema}]})
        subscription = {"url": "https://203.0.113.1/hook", "events": ["job.*"], "metadata": meta}
        made = await call(http, "POST", f"{BASE}/webhooks/subscriptions", subscription)
        ids["subscription"] = made["id"]
        await push()
        deliveries = (await call(http, "GET", f"{BASE}/webhooks/deliveries"))["deliveries"]
        ids["delivery"] = deliveries[0]["id"]

    async def seen(self) -> dict[str, Any]:
        """Return all objects by path, as ``acme`` reads them."""
        paths = [f"/jobs/{self.ids[name]}" for name in ("waiting", "available", "active", "dead")]
        paths += [f"/jobs/{self.ids['active']}/checkpoint", f"/workflows/{self.ids['workflow']}", "/cron/nightly"]
        paths += ["/collections/hoard/items?history=true", f"/workflows/{self.ids['workflow']}/items?history=true"]
        paths += [f"/jobs/{self.ids['active']}/items", f"/files/{self.ids['file']}"]
        paths += ["/push/endpoints/fn", "/channels", "/definitions/plan", "/definitions/plan/versions/1"]
        paths += [
            "/signatures",
            "/schemas/typed/1",
            f"/webhooks/subscriptions/{self.ids['subscription']}",
            "/workers",
            "/rate-limits",
        ]
        return {path: await call(self.http, "GET", BASE + path) for path in paths}


JOB_BODIES: dict[str, Any] = {
    "logs": {"lines": [{"at": "1970-01-01T00:00:00Z", "level": "info", "logger": "a", "message": "mine"}]},
    "progress": {"progress": 1},
    "checkpoint": {"state": 1},
    "ack": {"result": 1},
    "nack": {"error": {"code": "x", "message": "y"}},
    "release": {"then": "wait"},
    "info": {"note": 1},
    "{name}": {"values": [1]},
    "{id}": {"priority_adjustment": -1},
}
UNSCOPED_PATHS = {"/ojs/v1/health", "/ojs/v1/ping", "/health", "/ready", "/ojs/manifest"}
"""Paths with the same response for every caller."""


def tries(world: World, method: str, path: str) -> list[tuple[str, Any]]:
    """Return the requests (path and body) with which a caller who knows all names tries to reach acme's data."""
    ids = world.ids
    place = path.removeprefix(BASE)
    if path in UNSCOPED_PATHS:
        return [(path, None)]
    if place.startswith(("/jobs/{id}", "/dead-letter/{id}")):
        action = place.rpartition("/")[2]
        body = JOB_BODIES.get(action) if method in ("PUT", "POST", "PATCH") else None
        if method == "POST" and body is None:
            body = {}
        path = path.replace("{name}", "s")
        return [(path.replace("{id}", ids[name]), body) for name in ("waiting", "available", "active", "dead")]
    if place.startswith("/workflows/{id}"):
        bodies = {
            "review": {"action": "approve"},
            "info": {"note": 1},
            "messages": {"name": "m"},
            "updates": {"name": "m"},
            "properties": {"set": {"x": 1}},
            "items": {"name": "gem", "replace": True},
            "dependencies": {"depends_on": ["a"]},
        }
        body = bodies.get(place.rpartition("/")[2], {})
        path = (
            path.replace("{id}", ids["workflow"])
            .replace("{step}", "g")
            .replace("{item}", "gem")
            .replace("{number}", "1")
            .replace("{name}", "s")
        )
        return [(path, None if method == "GET" else body)]
    if place.startswith("/jobs/{job}/items"):
        body = {"name": "gem", "replace": True} if method == "POST" else None
        return [(path.replace("{job}", ids["active"]).replace("{item}", "gem"), body)]
    all_jobs = [ids[name] for name in ("waiting", "available", "active", "dead")]
    known: dict[str, list[tuple[str, Any]]] = {
        "POST /jobs": [("/jobs", {"type": "t", "args": [], "meta": {"tenant_id": "acme"}})],
        "POST /jobs/batch": [("/jobs/batch", {"jobs": [{"type": "t", "args": [], "meta": {"tenant_id": "acme"}}]})],
        "POST /jobs/bulk": [("/jobs/bulk", {"jobs": [{"type": "t", "args": [], "meta": {"tenant_id": "acme"}}]})],
        "POST /workflows": [
            ("/workflows", {"type": "chain", "metadata": {"tenant_id": "acme"}, "steps": [{"type": "a", "args": []}]}),
            ("/workflows", {"type": "chain", "steps": [{"type": "a", "args": [], "meta": {"tenant_id": "acme"}}]}),
            ("/workflows", {"definition": "plan", "target": "t"}),
        ],
        "POST /workers/fetch": [("/workers/fetch", {"queues": ["default", "work", "grave"], "count": 10})],
        "POST /workers/ack": [("/workers/ack", {"job_id": ids["active"], "worker_id": "w-acme"})],
        "POST /workers/ack/batch": [("/workers/ack/batch", {"acks": [{"job_id": id} for id in all_jobs]})],
        "POST /workers/nack": [("/workers/nack", {"job_id": ids["active"], "error": {"code": "x", "message": "y"}})],
        "POST /workers/nack/batch": [
            ("/workers/nack/batch", {"nacks": [{"job_id": ids["active"], "error": {"code": "x", "message": "y"}}]}),
            ("/workers/nack/batch", {"nacks": [{"job_id": ids["active"], "requeue": True}]}),
        ],
        "POST /workers/release": [("/workers/release", {"job_id": ids["active"], "then": "wait"})],
        "POST /workers/release/batch": [
            ("/workers/release/batch", {"releases": [{"job_id": ids["active"], "then": "skip"}]})
        ],
        "POST /workers/{id}/directive": [("/workers/w-acme/directive", {"directive": "terminate"})],
        "POST /cron": [("/cron", {"name": "n", "expression": "@daily", "type": "t", "meta": {"tenant_id": "acme"}})],
        "POST /crons": [("/crons", {"name": "n", "expression": "@daily", "type": "t", "meta": {"tenant_id": "acme"}})],
        "POST /cron/{name}/backfill": [
            ("/cron/nightly/backfill", {"since": "1970-01-01T00:00:00Z", "until": "1970-01-01T00:00:00Z"})
        ],
        "POST /definitions": [("/definitions", {"name": "own", "type": "gate"})],
        "PUT /definitions/{name}": [("/definitions/plan", {"type": "chain", "steps": [{"type": "b", "args": []}]})],
        "PUT /channels/{name}": [
            ("/channels/ops", {"method": "email", "from": "b@example.com", "to": ["b@example.com"]})
        ],
        "PUT /push/endpoints/{id}": [("/push/endpoints/fn", {"endpoint": "https://203.0.113.1/other"})],
        f"POST {BASE}/checkpoints/{{id}}": [(f"{BASE}/checkpoints/{ids['active']}", {"state": 1})],
        "POST /files": [("/files", {"job_id": ids["active"]})],
        "PUT /files": [(f"/files?job_id={ids['active']}", b"mine")],
        "PATCH /files/{id}": [(f"/files/{ids['file']}", b"mine")],
        "POST /collections": [("/collections", {"name": "own"})],
        "PATCH /collections/{name}": [("/collections/hoard", {"shared": True})],
        "POST /collections/{name}/items": [("/collections/hoard/items", {"name": "gem", "replace": True})],
        "PATCH /cron/{name}": [("/cron/nightly", {"enabled": False})],
        "PATCH /crons/{name}": [("/crons/nightly", {"enabled": False})],
        "PUT /rate-limits/{key}": [("/rate-limits/stripe", {"concurrency": 1})],
        "POST /schemas": [("/schemas", {"job_type": "typed", "version": 1, "schema": {"type": "array"}})],
        "PUT /signatures": [("/signatures", {"signatures": [{"type": "typed", "schema": {}}]})],
        "POST /webhooks/subscriptions": [
            ("/webhooks/subscriptions", {"url": "https://203.0.113.1/other", "events": ["*"]})
        ],
        "PUT /webhooks/subscriptions/{id}": [(f"/webhooks/subscriptions/{ids['subscription']}", {"active": False})],
        "PATCH /webhooks/subscriptions/{id}": [(f"/webhooks/subscriptions/{ids['subscription']}", {"active": False})],
        "POST /dead-letter/retry": [("/dead-letter/retry", {"confirm": True, "filter": {"type": "t"}})],
        "DELETE /dead-letter": [("/dead-letter", {"confirm": True})],
    }
    for beat in ("heartbeat", "beat"):
        body = {"worker_id": "w-acme", "active_jobs": [ids["active"]]}
        known[f"POST /workers/{beat}"] = [(f"/workers/{beat}", body)]
    for family in ("batch", "bulk"):
        for action in ("cancel", "retry", "delete"):
            known[f"POST /jobs/{family}/{action}"] = [
                (f"/jobs/{family}/{action}", {"job_ids": all_jobs}),
                (f"/jobs/{family}/{action}", {"filter": {"type": "t"}}),
            ]
    known["DELETE /jobs/batch"] = [("/jobs/batch", {"job_ids": all_jobs}), ("/jobs/batch", {"filter": {"type": "t"}})]
    if f"{method} {place}" in known:
        return [(BASE + where, body) for where, body in known[f"{method} {place}"]]
    names_of = {
        "/channels": "ops",
        "/cron": "nightly",
        "/crons": "nightly",
        "/definitions": "plan",
        "/collections": "hoard",
    }
    names = {
        "{name}": next((name for part, name in names_of.items() if part in place), "work"),
        "{item}": "gem",
        "{key}": "stripe",
        "{type}": "typed",
        "{version}": "1",
    }
    id = {"/workers": "w-acme", "/files": ids["file"], "/push/endpoints": "fn"}
    id |= {"/webhooks/subscriptions": ids["subscription"], "/webhooks/deliveries": ids["delivery"]}
    for begin, value in id.items():
        if place.startswith(begin):
            names["{id}"] = value
    names.setdefault("{id}", ids["active"])
    for mark, value in names.items():
        path = path.replace(mark, value)
    return [(path, None)]
