"""The stream of changes: a digest of events for pages that read again what they show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.server.endpoints import streams as stream_routes
from ojster.server.event_changes import MAX_IDS, EventChanges
from ojster.server.event_streams import EventBatch
from tests.conftest import Bench
from tests.serving import serving


def event(number: int, kind: str = "job", queue: str | None = "mail", tenant: str = "") -> tuple[int, Any]:
    return number, (f"{kind}.changed", 0, f"{kind}-{number}", queue, "t" if kind == "job" else None, {}, tenant)


def taken(changes: EventChanges) -> dict[str, Any]:
    return dict(changes.take().data)


def test_events_are_counted_by_kind_and_named() -> None:
    changes = EventChanges(None, lambda queue: True)
    assert not changes
    changes.add(EventBatch([event(1), event(2), event(3, "queue")]))
    assert changes
    told = changes.take()
    assert told.id == "evt_3"
    assert told.data["kinds"] == {"job": 2, "queue": 1}
    assert (told.data["ids"], told.data["queues"]) == (["job-1", "job-2", "queue-3"], ["mail"])
    assert not changes, "the next digest begins with nothing"


def test_whoever_is_limited_to_queues_hears_nothing_of_what_is_of_none() -> None:
    changes = EventChanges(None, lambda queue: queue == "mail")
    changes.add(EventBatch([event(1), event(2, "workflow", None), event(3, "job", "other")]))
    assert taken(changes)["ids"] == ["job-1"]


def test_too_many_ids_are_not_named() -> None:
    changes = EventChanges(None, lambda queue: True)
    changes.add(EventBatch([event(number) for number in range(MAX_IDS + 1)]))
    assert taken(changes)["ids"] is None


def test_lost_events_are_told_although_there_is_none() -> None:
    changes = EventChanges(None, lambda queue: True)
    changes.add(EventBatch([], is_whole=False))
    assert taken(changes)["is_lost"] is True
    assert not changes


@given(st.lists(st.tuples(st.sampled_from(["", "acme", "beta"]), st.sampled_from(["mail", "other"])), max_size=30))
def test_callers_are_told_of_their_tenant_and_their_queues_alone(given_events: list[tuple[str, str]]) -> None:
    changes = EventChanges("acme", lambda queue: queue == "mail")
    changes.add(EventBatch([event(at, "job", queue, tenant) for at, (tenant, queue) in enumerate(given_events)]))
    assert sum(taken(changes)["kinds"].values()) == given_events.count(("acme", "mail"))


@pytest.mark.anyio
async def test_a_follower_is_told_once_a_second_and_goes_on_where_it_was(bench: Bench) -> None:
    import httpx

    async def first(client: httpx.AsyncClient, **more: Any) -> tuple[str, dict[str, Any]]:
        id = ""
        async with client.stream("GET", "/ojs/v1/events/changes", **more) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    id = line[4:]
                if line.startswith("data: ") and (told := json.loads(line[6:]))["kinds"]:
                    return id, told
        raise AssertionError("the stream ended")

    async with serving(bench.service) as (_, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        before = await bench.service.events.last()
        await bench.push()
        async with client.stream("GET", "/ojs/v1/events/changes", params={"last_event_id": f"evt_{before}"}) as answer:
            lines = answer.aiter_lines()
            begin = [await anext(lines) for _ in range(4)]
        assert begin[2:] == [f"id: evt_{before}", "event: changes"], "whoever is told nothing else knows where it is"
        last, told = await first(client, params={"last_event_id": f"evt_{before}"})
        assert told["kinds"]["job"] == 1
        await bench.push("other", queue="quick")
        _, told = await first(client, headers={"last-event-id": last})
        assert told["queues"] == ["quick"]


@pytest.mark.anyio
@pytest.mark.parametrize("is_busy", [False, True])
async def test_the_stream_has_heartbeats_also_while_only_others_are_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    import httpx

    monkeypatch.setattr(stream_routes, "PATIENCE", 0.02)
    heartbeats = 0
    async with (
        serving(bench.service) as (_, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"X-OJS-Tenant": "acme"}) as client,
        client.stream("GET", "/ojs/v1/events/changes") as answer,
    ):
        async for line in answer.aiter_lines():
            heartbeats += line == ":heartbeat"
            if heartbeats == 3:
                return
            if is_busy and line:
                await bench.push()
