"""Pages, ids, backtraces, the manifest, steps of cron and signs of life, as the specification has them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ojster.core.errors import InvalidRequest
from ojster.fleet.workers import Heartbeat
from ojster.jobs.failure import MAX_BACKTRACE_LENGTH, Failure
from ojster.schedules.cron_expression import CronSchedule
from ojster.server.run import _listening
from tests.conftest import Bench, Http
from tests.faithful.spec_answers import SPEC

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"


async def made(http: Http, kind: str) -> str:
    """Make three entries of a list; return the name of its member in answers."""
    for number in range(3):
        match kind:
            case "queues":
                await http.push(type="a", options={"queue": f"q{number}"})
            case "cron":
                body: dict[str, Any] = {"name": f"c{number}", "expression": "@daily", "type": "a"}
                await http("POST", f"{BASE}/cron", body)
            case "schemas":
                await http("POST", f"{BASE}/schemas", {"job_type": f"t{number}", "version": 1, "schema": {}})
            case "job-types":
                await http("PUT", f"{BASE}/job-types/t{number}", {"options": {"priority": 1}})
            case "definitions":
                steps = [{"type": "a", "args": []}]
                await http("POST", f"{BASE}/definitions", {"name": f"d{number}", "type": "chain", "steps": steps})
            case "workers":
                await http("POST", f"{BASE}/workers/heartbeat", {"worker_id": f"w{number}", "active_jobs": []})
    return {"cron": "crons", "job-types": "job_types"}.get(kind, kind)


@pytest.mark.parametrize("kind", ["queues", "cron", "schemas", "job-types", "definitions", "workers"])
async def test_a_page_that_is_not_the_last_has_a_cursor_for_the_next(http: Http, kind: str) -> None:
    member = await made(http, kind)
    seen: list[Any] = []
    query: dict[str, Any] = {"limit": 2}
    for _ in range(3):
        answer = (await http("GET", f"{BASE}/{kind}", params=query)).json()
        seen += answer[member]
        page = answer["pagination"]
        assert page["total"] == 3
        assert page["has_more"] is ("next_cursor" in page)
        if not page["has_more"]:
            break
        query["cursor"] = page["next_cursor"]
    assert len(seen) == 3
    assert len({str(entry) for entry in seen}) == 3


async def test_the_manifest_says_its_tier_and_the_strength_of_uniqueness(http: Http) -> None:
    shown = (await http("GET", "/ojs/manifest")).json()
    assert (shown["conformance_tier"], shown["unique_job_strength"]) == ("runtime", "strong")


async def test_the_manifest_says_how_events_are_delivered(http: Http) -> None:
    assert (await http("GET", "/ojs/manifest")).json()["event_delivery"] == "at-least-once"


@pytest.mark.skipif(not SPEC.is_dir(), reason=f"the specification is not at {SPEC}")
async def test_the_manifest_lists_extensions_as_their_documents_call_them(http: Http) -> None:
    shown = (await http("GET", "/ojs/manifest")).json()["extension_details"]
    for tier, prefix in (("official", "urn:ojs:ext:"), ("experimental", "urn:ojs:ext:experimental:")):
        for extension in shown[tier]:
            document = (SPEC / f"ojs-{extension['name']}.md").read_text()
            (version, *_) = re.findall(r"(?m)^\| \**Version\** +\| +(\S+)", document)
            uris = re.findall(r"(?m)^\| \*\*URI\*\* +\| +`(\S+)`", document)
            assert extension["version"] == version
            assert [extension["uri"]] == (uris or [prefix + extension["name"]])
            assert extension["uri"].removeprefix(prefix) == extension["name"]


def test_a_long_frame_is_shortened_and_not_dropped() -> None:
    frames = ("first", "x" * (2 * MAX_BACKTRACE_LENGTH))
    (shown,) = Failure("E", "m", backtrace=frames).to_history(1, 0)["backtrace"]
    assert (len(shown), shown[-1]) == (MAX_BACKTRACE_LENGTH, "…")
    shorter = ("a" * 10, "b" * (MAX_BACKTRACE_LENGTH - 5))
    assert Failure("E", "m", backtrace=shorter).to_history(1, 0)["backtrace"] == ["aaaa…", shorter[1]]


@pytest.mark.parametrize(
    "expression", ["*/90 * * * *", "0 */25 * * *", "*/61 * * * * *", "0 0 */40 * *", "0 0 1 */13 *", "5-50/70 * * * *"]
)
def test_a_step_longer_than_its_range_is_refused(expression: str) -> None:
    with pytest.raises(InvalidRequest, match="is longer than their range"):
        CronSchedule(expression)


@pytest.mark.parametrize("expression", ["*/59 * * * *", "*/60 * * * *", "0 */24 * * *", "0 0 */31 * *", "0 0 * * */7"])
def test_a_step_as_long_as_its_range_is_taken(expression: str) -> None:
    assert CronSchedule(expression).next_after(0) is not None


async def test_a_lookup_in_a_collection_that_does_not_exist_fails_the_attempt(http: Http, bench: Bench) -> None:
    await http("POST", f"{BASE}/collections", {"name": "there"})
    many = [{"$lookup": {"collection": name, "name_startswith": "x"}} for name in ("there", "nowhere")]
    empty, wrong = [await http.push(type="a", args=[lookup], retry={"max_attempts": 1}) for lookup in many]
    (job,) = await http.fetch(count=5)
    assert (job["id"], job["args"]) == (empty["id"], [[]])
    failed = await bench.find(wrong["id"])
    assert failed.state == "discarded"
    assert b"nowhere" in (failed.errors or b"")


@pytest.mark.parametrize("sign", ["fetch", "ack"])
async def test_a_fetch_and_an_acknowledgement_are_signs_of_life(bench: Bench, sign: str) -> None:
    await bench.push()
    if sign == "ack":
        await bench.push()
    await bench.service.fleet.beat(Heartbeat("w", ()))
    silence = bench.service.database.settings.heartbeat_timeout / 1e6
    early = await bench.fetch_one(worker_id="w", lease=3_600_000_000) if sign == "ack" else None
    bench.clock.advance(silence - 5)
    if early is None:
        held = await bench.fetch_one(worker_id="w", lease=3_600_000_000)
    else:
        await bench.ack(early)
        held = early
    await bench.run_due(6)
    assert [worker.id for worker in await bench.service.fleet.all()] == ["w"]
    await bench.run_due(silence)
    assert await bench.service.fleet.all() == []
    assert (await bench.find(held)).losses == (sign == "fetch")


def test_the_server_logs_in_the_format_of_the_process_that_has_set_one() -> None:
    with_handlers = _listening(None, "127.0.0.1", 0, "info", 10, None)  # type: ignore[arg-type]
    assert with_handlers.log_config is None, "pytest has a handler at the root"
