"""Bombs: how long a tenant's enqueues take while another one sends the most expensive requests that are allowed."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import uvloop

from benchmarks.figure import Figure, percentile
from benchmarks.servers import ojster
from benchmarks.stores import Store

MOST_MS = 100
"""The 99th percentile of a tenant's enqueues meanwhile, in milliseconds, that is the goal."""

SECONDS = 3.0
"""Time for which each bomb is sent again and again, in seconds."""

ATTACKERS = 4
"""Number of connections of the tenant that sends bombs."""

CLIENTS = 4
"""Number of connections of the tenant whose enqueues are measured."""

PAUSE_SECONDS = 0.01
"""Pause of each connection between two enqueues, in seconds."""

Bomb = tuple[str, str, Any]
"""Method, path and body of a request."""

BASE = "/ojs/v1"


def _group(steps: list[dict[str, Any]], **members: Any) -> dict[str, Any]:
    return {"type": "group", "jobs": steps, **members}


def _conditions() -> Bomb:
    """Send a workflow whose 200 conditions each look at a large parameter."""
    heavy = " && ".join(["params.long.exists(x, x == 'none')"] + ["params.long.size() > 1"] * 10)
    steps = [{"type": "a", "args": [], "if": heavy} for _ in range(200)]
    return "POST", "/workflows", {"type": "chain", "steps": steps, "params": {"long": ["x" * 20] * 5_000}}


def _map() -> Bomb:
    """Send a workflow with a map over 50,000 elements."""
    step = {"type": "map", "over": list(range(50_000)), "do": {"type": "a", "args": [{"$ref": "item"}]}}
    return "POST", "/workflows", {"type": "chain", "steps": [step]}


def _references() -> Bomb:
    """Send a workflow whose 5,000 steps each refer to a parameter of 60 kB."""
    steps = [{"type": "a", "args": [{"$ref": "params.long"}]} for _ in range(5_000)]
    return "POST", "/workflows", _group(steps, params={"long": "x" * 60_000})


def _many_steps() -> Bomb:
    """Send a workflow of 10,000 steps."""
    return "POST", "/workflows", _group([{"type": "a", "args": [1, "two"]} for _ in range(10_000)])


def _batch() -> Bomb:
    """Send 1,000 jobs of 1 kB in one request."""
    return "POST", "/jobs/batch", {"jobs": [{"type": "a", "args": ["x" * 1_000]}] * 1_000}


def _schema() -> Bomb:
    """Register a schema in which references to references multiply."""
    parts: dict[str, Any] = {f"p{n}": {"anyOf": [{"$ref": f"#/$defs/p{n + 1}"}] * 4} for n in range(12)}
    parts["p12"] = {"type": "string"}
    schema = {"$ref": "#/$defs/p0", "$defs": parts}
    return "POST", "/schemas", {"uri": "https://example.com/bomb", "type": "a", "schema": schema}


def _list() -> Bomb:
    """List as many jobs as a page may have, with a filter that matches few."""
    return "GET", "/jobs?limit=200&type=a*&state=completed", None


def _cancel() -> Bomb:
    """Cancel all jobs of the tenant with one request."""
    return "POST", "/jobs/batch/cancel", {"filter": {"type": "a*"}}


def _deep() -> Bomb:
    """Send a workflow of 15 nested groups, two in each."""
    step: dict[str, Any] = {"type": "a", "args": []}
    for _ in range(12):
        step = _group([step, step])
    return "POST", "/workflows", step


BOMBS: dict[str, Callable[[], Bomb]] = {
    "conditions": _conditions,
    "a map of 50,000": _map,
    "5,000 references to 60 kB": _references,
    "10,000 steps": _many_steps,
    "nested groups": _deep,
    "batches of 1,000": _batch,
    "a recursive schema": _schema,
    "lists with a filter": _list,
    "cancelling all": _cancel,
}


def run(store: Store, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure enqueues of one tenant alone, and while another one sends each bomb."""
    if chosen.only and chosen.only not in "bombs tenants":
        return
    for (
        name,
        bomb,
    ) in BOMBS.items():  # each on a new server: what it leaves to do must not count for the next
        with ojster(store.fresh()) as server:
            alone, meanwhile, answers = uvloop.run(_measure(f"http://127.0.0.1:{server.port}", bomb))
        label = f"{store.name}: p99 of a tenant's enqueues while another sends {name} ({answers})"
        yield Figure(label, meanwhile * 1000, "ms", floor=alone * 1000, floor_name="alone", most=MOST_MS)


async def _measure(url: str, bomb: Callable[[], Bomb]) -> tuple[float, float, str]:
    """Return the 99th percentile of enqueues alone and meanwhile, in seconds, and the answers to the bombs."""
    limits = httpx.Limits(max_connections=ATTACKERS)
    async with (
        httpx.AsyncClient(base_url=url + BASE, timeout=60, headers={"X-OJS-Tenant": "quiet"}) as quiet,
        httpx.AsyncClient(base_url=url + BASE, timeout=60, headers={"X-OJS-Tenant": "loud"}, limits=limits) as loud,
    ):
        await _enqueue(quiet, 1.0)  # open connections and warm caches
        alone = await _enqueue(quiet, SECONDS)
        method, path, body = bomb()
        content = None if body is None else json.dumps(body).encode()
        ends = time.monotonic() + SECONDS
        attacking = asyncio.gather(*[_send(loud, method, path, content, ends) for _ in range(ATTACKERS)])
        meanwhile = await _enqueue(quiet, SECONDS)
        counts = await attacking
        answers = {status: sum(one.get(status, 0) for one in counts) for one in counts for status in one}
        shown = ", ".join(f"{number} x {status}" for status, number in sorted(answers.items()))
        return percentile(alone, 0.99), percentile(meanwhile, 0.99), shown


async def _send(
    client: httpx.AsyncClient, method: str, path: str, content: bytes | None, ends: float
) -> dict[int, int]:
    """Send a request again and again; return the number of answers with each status."""
    answers: dict[int, int] = {}
    while time.monotonic() < ends:
        headers = {"Content-Type": "application/json"}
        answer = await client.request(method, path, content=content, headers=headers)
        answers[answer.status_code] = answers.get(answer.status_code, 0) + 1
    return answers


async def _enqueue(client: httpx.AsyncClient, seconds: float) -> list[float]:
    """Enqueue single jobs on several connections; return the duration of each call, in seconds."""
    times: list[float] = []
    ends = time.monotonic() + seconds

    async def enqueue() -> None:
        while time.monotonic() < ends:
            started = time.perf_counter()
            (await client.post("/jobs", json={"type": "b", "args": []})).raise_for_status()
            times.append(time.perf_counter() - started)
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*[enqueue() for _ in range(CLIENTS)])
    return times
