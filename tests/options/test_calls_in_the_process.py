"""A call in the process refuses what a server refuses, with the same error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from msgspec import Raw

from ojster.collections.items import NewItem, Where
from ojster.core.errors import InvalidRequest
from ojster.jobs.bulk import Action
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.service import Service
from ojster.workflows.broadcast import Broadcast
from ojster.workflows.flow import FlowMessage
from tests.conftest import Bench
from tests.options.scenes import UNKNOWN, server

pytestmark = pytest.mark.anyio

Made = Callable[[Service], Awaitable[Any]]


async def _list(service: Service, order: str) -> Any:
    return await service.jobs.select(JobFilter(), Page(sort=order))


REFUSED: Final[dict[str, tuple[Made, str]]] = {
    "a mode that does not exist": (
        lambda service: service.schemas.register("a", 1, b"{}", mode="bogus"),
        "Unknown mode 'bogus'. Use one of off, strict, warn.",
    ),
    "a reason for the end of the maintenance": (
        lambda service: service.maintenance.switch_mode(False, "Over."),
        "A reason and a duration have no effect when the maintenance ends. Send 'enabled' alone.",
    ),
    "a duration of the end of the maintenance": (
        lambda service: service.maintenance.switch_mode(False, duration=5),
        "A reason and a duration have no effect when the maintenance ends. Send 'enabled' alone.",
    ),
    "a negative duration": (
        lambda service: service.maintenance.switch_mode(True, duration=-5),
        "'duration' is -5 microseconds. Use at least 0, at most 100 years, or leave it out.",
    ),
    "a duration that no column can hold": (
        lambda service: service.maintenance.switch_mode(True, duration=2**63),
        f"'duration' is {2**63} microseconds. Use at least 0, at most 100 years, or leave it out.",
    ),
    "a period that does not exist": (
        lambda service: service.insight.history("2m"),  # type: ignore[arg-type]
        "'period' is '2m': Invalid enum value '2m'. Use one of 1m, 5m, 1h, 1d.",
    ),
    "no ids": (
        lambda service: service.jobs.results([]),
        "'ids' is []: Expected `array` of length >= 1.",
    ),
    "too many ids": (
        lambda service: service.jobs.results(["x"] * 1_001),
        ": Expected `array` of length <= 1000.",
    ),
    "a sweep that enqueues": (
        lambda service: service.bulk.sweep(Action.ENQUEUE, JobFilter(queue="a")),
        "Unknown action 'enqueue'. Use one of cancel, delete, retry.",
    ),
    "a part of a sweep that enqueues": (
        lambda service: service.bulk.sweep_part(Action.ENQUEUE, JobFilter(queue="a"), None),
        "Unknown action 'enqueue'. Use one of cancel, delete, retry.",
    ),
    "an order that does not exist": (
        lambda service: _list(service, "size"),
        "Unknown sort 'size'. Use one of attempt, changed_at, created_at, priority, scheduled_at.",
    ),
    "a member of a rule that does not exist": (
        lambda service: service.fleet.change_rule("w", {"types": ("a",)}),
        "Unknown member 'types'. Use one of allowed, allowed_types, denied, denied_types, enabled, provides, reason.",
    ),
    "a member of a rule that is malformed": (
        lambda service: service.fleet.change_rule("w", {"enabled": "no"}),
        "'members': Expected `bool`, got `str` - at `$.enabled`.",
    ),
    "a type in a rule that is none": (
        lambda service: service.fleet.change_rule("w", {"denied": ("a b",)}),
        "'a b' in 'denied_types' is not a job type or a prefix such as 'mail.*'.",
    ),
    "a definition that is not JSON": (
        lambda service: service.workflows.create({"definition": Raw(b"nope")}),
        "JSON is malformed: invalid character",
    ),
    "a message without a name": (
        lambda service: service.flows.send(FlowMessage(UNKNOWN, "", b"1")),
        "'message': Expected `str` of length >= 1 - at `$.name`.",
    ),
    "a message with an empty key": (
        lambda service: service.flows.send(FlowMessage(UNKNOWN, "a", b"1", None, "")),
        "'message': Expected `str` of length >= 1 - at `$.idempotency_key`.",
    ),
    "a broadcast without a name": (
        lambda service: service.flows.broadcast(Broadcast("", "a", b"1")),
        "'item': Expected `str` of length >= 1 - at `$.name`.",
    ),
    "an update without a name": (
        lambda service: service.flows.update(UNKNOWN, "", []),
        "'name' is '': Expected `str` of length >= 1.",
    ),
    "too long a wait": (
        lambda service: service.flows.update(UNKNOWN, "a", [], wait_ms=60_001),
        "'wait_ms' is 60001: Expected `int` <= 60000.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_call_in_the_process_is_checked_as_a_request_is(name: str) -> None:
    call, message = REFUSED[name]
    async with server() as (_, bench):
        with pytest.raises(InvalidRequest) as refusal:
            await call(bench.service)
    assert message in refusal.value.message


async def _add(bench: Bench, text: str) -> None:
    item = NewItem("a", b"1", text)
    await bench.service.collections.add(Where("stock"), item)


async def _hang(bench: Bench, text: str) -> None:
    await bench.service.queues.delete("default", strategy=text)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [_add, _hang], ids=["what is stored", "one of a few values"])
async def test_text_that_cannot_be_stored_is_refused(
    bench: Bench, call: Callable[[Bench, str], Awaitable[None]]
) -> None:
    await bench.service.collections.create("stock")
    with pytest.raises(
        InvalidRequest, match=r"Text with the character U\+D800 cannot be stored: 'a\\ud800b'. Remove it"
    ):
        await call(bench, "a\ud800b")
    if call is _add and bench.service.database.kind != "sqlite":
        with pytest.raises(InvalidRequest, match=r"U\+0000 cannot be stored: 'a\\x00b'"):
            await call(bench, "a\0b")


async def test_a_filter_with_no_queue_at_all_has_no_such_condition(bench: Bench) -> None:
    await bench.push("t", queue="a")
    page = await bench.service.jobs.select(JobFilter(queue=()))
    assert [job.queue for job in page.jobs] == ["a"]
