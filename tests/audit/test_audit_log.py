"""The audit log: who did what, in a chain that shows every change.

Spec: ojs-security 11
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from ojster.audit import entries
from ojster.audit.entries import ENTRIES_PER_CHECK, AuditEvent, AuditQuery, Position
from ojster.core.access import Grant, Role
from ojster.core.durations import DAY
from ojster.schedules import retention
from ojster.server import audit_trail
from ojster.server.application import Application
from ojster.server.audit_words import MAX_REQUEST_BYTES, OPERATIONS_IN_WORDS, in_words
from ojster.server.endpoints import routes_of
from ojster.server.endpoints.audit import MAX_ENTRIES
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

BASE = "/ojs/v1"


def event(operation: str = "cancel_job", **more: Any) -> AuditEvent:
    return AuditEvent(**{"event": "access.used", "principal": "ada", "operation": operation, **more})


async def operations(bench: Bench, **wanted: Any) -> list[str]:
    found = await bench.service.audit.select(AuditQuery(**wanted))
    return [msgspec.json.decode(one.body)["operation"] for one in found]


async def execute(bench: Bench, statement: str, **values: Any) -> None:
    def run(tx: Transaction, requests: Any) -> list[None]:
        tx.execute(statement, values)
        return [None for _ in requests]

    await bench.service.database.run(run, None)


@pytest.fixture
async def guarded(bench: Bench) -> AsyncIterator[Http]:
    app = Application(bench.service, max_body_bytes=200_000, guarded=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://guarded") as client:
        yield Http(client)


async def bearer(bench: Bench, name: str, role: Role) -> dict[str, str]:
    _, shown = await bench.service.tokens.create(name, [Grant(role)])
    return {"Authorization": f"Bearer {shown}"}


# The chain


async def test_entries_are_numbered_and_chained_and_an_untouched_log_is_intact(bench: Bench) -> None:
    places = [await bench.service.audit.record(event(name)) for name in ("a", "b", "c")]
    assert [one.number for one in places] == [1, 2, 3]
    assert len({one.hash for one in places}) == 3
    found = await bench.service.audit.verify()
    assert (found.problem, found.last, found.head) == (None, places[-1], places[-1])
    assert (await bench.service.audit.verify(str(places[1]))).problem is None


async def test_an_empty_log_is_intact(bench: Bench) -> None:
    found = await bench.service.audit.verify()
    assert (found.problem, found.last) == (None, Position())


async def test_entries_that_many_write_at_once_are_one_chain(bench: Bench) -> None:
    await asyncio.gather(*[bench.service.audit.record(event(str(number))) for number in range(50)])
    found = await bench.service.audit.verify()
    assert (found.problem, found.last.number) == (None, 50)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM audit_log WHERE seq = 2", "The entries 2 to 2 are missing"),
        ("DELETE FROM audit_log WHERE seq = 4", "The last entry is 3, and should be 4"),
        ("DELETE FROM audit_log WHERE seq = 1", "The entries 1 to 1 are missing"),
        ("UPDATE audit_log SET principal = 'eve' WHERE seq = 3", "The columns of the entry 3"),
        ("UPDATE audit_log SET outcome = 'failure' WHERE seq = 3", "The columns of the entry 3"),
        ("UPDATE audit_log SET body = (SELECT body FROM audit_log WHERE seq = 1) WHERE seq = 3", "The entry 3"),
        ("UPDATE audit_log SET hash = (SELECT hash FROM audit_log WHERE seq = 1) WHERE seq = 2", "The entry 2"),
    ],
)
async def test_whatever_is_changed_or_deleted_behind_its_back_is_found(
    bench: Bench, statement: str, problem: str
) -> None:
    for name in ("a", "b", "c", "d"):
        await bench.service.audit.record(event(name))
    await execute(bench, statement)
    assert problem in str((await bench.service.audit.verify()).problem)


async def test_a_log_that_was_written_anew_does_not_fit_a_place_kept_elsewhere(bench: Bench) -> None:
    await bench.service.audit.record(event("a"))
    kept = await bench.service.audit.record(event("b"))
    await bench.service.audit.record(event("c"))
    await execute(bench, "DELETE FROM audit_log")
    await execute(bench, "DELETE FROM system WHERE name = 'audit_head'")
    for name in ("x", "y", "z"):
        await bench.service.audit.record(event(name))
    assert (await bench.service.audit.verify()).problem is None
    assert "The entry 3" in str((await bench.service.audit.verify(str(kept))).problem)


async def test_a_long_log_is_checked_in_pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ENTRIES_PER_CHECK > 3
    monkeypatch.setattr(entries, "ENTRIES_PER_CHECK", 3)
    for number in range(10):
        await bench.service.audit.record(event(str(number)))
    assert (await bench.service.audit.verify()).last.number == 10
    await execute(bench, "DELETE FROM audit_log WHERE seq = 8")
    assert (await bench.service.audit.verify()).last.number == 7


async def test_entries_past_their_retention_go_and_the_rest_stays_a_chain(bench: Bench) -> None:
    for name in ("a", "b"):
        await bench.service.audit.record(event(name))
    bench.clock.advance(366 * DAY / 1_000_000)
    await bench.service.audit.record(event("c"))
    await bench.service.database.run(retention.forget, None)
    assert await operations(bench) == ["c"]
    found = await bench.service.audit.verify()
    assert (found.problem, found.last.number) == (None, 3)


# Search


async def test_entries_are_found_by_who_what_and_when(bench: Bench) -> None:
    await bench.service.audit.record(event("a", object="x1", principal="bob"))
    at = bench.clock()
    bench.clock.advance(60)
    await bench.service.audit.record(event("b", object="x1/step"))
    await bench.service.audit.record(event("c", object="x10", outcome="failure"))
    await bench.service.audit.record(event("d", event="access.denied", tenant="acme"))
    assert await operations(bench) == ["d", "c", "b", "a"]
    assert await operations(bench, principal="bob") == ["a"]
    assert await operations(bench, object="x1") == ["b", "a"]
    assert await operations(bench, outcome="failure") == ["c"]
    assert await operations(bench, event="access.denied", tenant="acme") == ["d"]
    assert await operations(bench, since=at + 1) == ["d", "c", "b"]
    assert await operations(bench, until=at + 1) == ["a"]
    assert await operations(bench, limit=1, before=3) == ["b"]
    assert await operations(bench, operation="nothing") == []
    await bench.service.audit.record(event("cancel_job"))
    await bench.service.audit.record(event("cancel_workflow"))
    assert await operations(bench, operation="cancel_*") == ["cancel_workflow", "cancel_job"]
    assert await operations(bench, operation="cancel_j*") == ["cancel_job"]


# What a server writes


async def test_what_callers_change_is_written_with_who_where_and_how_it_ended(bench: Bench, guarded: Http) -> None:
    ada = await bearer(bench, "ada", Role.OWNER)
    job = await bench.push()
    await guarded("DELETE", f"{BASE}/jobs/{job.id}", headers=ada)
    await guarded("DELETE", f"{BASE}/jobs/{job.id}", headers={**ada, "X-Request-Id": "mine"})
    answer = await guarded("GET", f"{BASE}/admin/audit", headers=ada)
    second, first = answer.json()["entries"]
    assert (first["principal"], first["operation"], first["object"]) == ("ada", "cancel_job", job.id)
    assert (first["outcome"], first["source_ip"], first["event_type"]) == ("success", "127.0.0.1", "access.used")
    assert (second["outcome"], second["refusal"], second["correlation_id"]) == ("failure", "conflict", "mine")
    verified = (await guarded("GET", f"{BASE}/admin/audit/verify", headers=ada)).json()["verified"]
    assert verified["intact"]
    place = f"{verified['last']['number']}:{verified['last']['hash']}"
    again = await guarded("GET", f"{BASE}/admin/audit/verify?after={place}", headers=ada)
    assert again.json()["verified"] == verified
    assert (await guarded("GET", f"{BASE}/admin/audit/verify?after=x", headers=ada)).status_code == 400


async def test_what_has_no_path_is_told_by_its_request_without_secrets(bench: Bench, guarded: Http) -> None:
    ada = await bearer(bench, "ada", Role.OWNER)
    body = {"filter": {"queue": "mail"}, "api_key": "sesame", "inner": [{"password": "sesame"}]}
    await guarded("POST", f"{BASE}/jobs/bulk/cancel", body, headers=ada)
    await guarded("DELETE", f"{BASE}/dead-letter", {"filter": {"type": "mail.send"}}, headers=ada)
    large = {"filter": {"queue": "mail"}, "note": "x" * 3_000}
    await guarded("POST", f"{BASE}/jobs/bulk/cancel", large, headers=ada)
    found = [msgspec.json.decode(one.body) for one in await bench.service.audit.select(AuditQuery())]
    details = [one["detail"] for one in found]
    assert details[2]["request"] == {"filter": {"queue": "mail"}, "api_key": "…", "inner": [{"password": "…"}]}
    assert details[1]["request"] == {"filter": {"type": "mail.send"}}
    assert details[0]["request"] == {"bytes": len(msgspec.json.encode(large))}


async def test_refused_callers_are_written_too_but_a_flood_of_them_fills_no_disk(
    bench: Bench, guarded: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_trail, "MAX_REFUSALS", 3)
    monkeypatch.setattr(audit_trail, "REFUSALS_PER_SECOND", 0.0)
    eve = await bearer(bench, "eve", Role.VIEWER)
    for _ in range(5):
        assert (await guarded("GET", f"{BASE}/admin/audit", headers=eve)).status_code == 403
    assert (await guarded("GET", f"{BASE}/jobs")).status_code == 401
    assert await operations(bench) == ["list_audit_entries"] * 3
    monkeypatch.setattr(audit_trail, "MAX_REFUSALS", 4)
    assert (await guarded("GET", f"{BASE}/jobs")).status_code == 401
    (last, *_) = await bench.service.audit.select(AuditQuery())
    shown = msgspec.json.decode(last.body)
    assert (shown["event_type"], shown["principal"], shown["detail"]) == ("auth.refused", "unknown", {"left_out": 3})


async def test_reading_and_the_work_of_workers_is_not_written(bench: Bench, guarded: Http) -> None:
    ada = await bearer(bench, "ada", Role.OWNER)
    worker = await bearer(bench, "w", Role.WORKER)
    await guarded("GET", f"{BASE}/jobs", headers=ada)
    await bench.push()
    await guarded("POST", f"{BASE}/workers/fetch", {"queues": ["default"], "worker_id": "w"}, headers=worker)
    assert await operations(bench) == []


async def test_a_server_that_asks_for_no_token_writes_what_anyone_did(bench: Bench, http: Http) -> None:
    job = await bench.push()
    await http("DELETE", f"{BASE}/jobs/{job.id}")
    (one,) = await bench.service.audit.select(AuditQuery())
    assert msgspec.json.decode(one.body)["principal"] == "anyone"


async def test_pages_follow_each_other_to_the_first_entry(bench: Bench, http: Http) -> None:
    for number in range(5):
        await bench.service.audit.record(event(str(number)))
    found: list[str] = []
    cursor = ""
    while True:
        page = (await http("GET", f"{BASE}/admin/audit?limit=2{cursor}")).json()
        found += [one["operation"] for one in page["entries"]]
        if not page["pagination"]["has_more"]:
            break
        cursor = f"&cursor={page['pagination']['next_cursor']}"
    assert found == ["4", "3", "2", "1", "0"]


async def test_every_creation_and_change_of_a_cron_job_is_written_and_what_changes_nothing_is_not(
    bench: Bench, guarded: Http
) -> None:
    """Also of producers, such as workers that register the cron jobs of their application at each start."""
    ci = await bearer(bench, "ci", Role.PRODUCER)
    ada = await bearer(bench, "ada", Role.OWNER)
    for base in ("cron", "crons"):
        name = f"nightly.{base}"
        body = {"name": name, "expression": "0 3 * * *", "type": "report", "args": []}
        for status, entries_then, more in ((201, 1, {}), (200, 1, {}), (200, 2, {"timezone": "Europe/Berlin"})):
            answer = await guarded("POST", f"{BASE}/{base}", body | more, headers=ci)
            assert (answer.status_code, len(await operations(bench, object=name))) == (status, entries_then)
        refused = await guarded("POST", f"{BASE}/{base}", body | {"on_conflict": "reject"}, headers=ci)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "duplicate")
        await guarded("POST", f"{BASE}/{base}/{name}/trigger", headers=ci)
        await guarded("PATCH", f"{BASE}/{base}/{name}", {"enabled": False}, headers=ada)
        await guarded("DELETE", f"{BASE}/{base}/{name}", headers=ada)
        written = ["unregister_cron", "switch_cron", "trigger_cron", *["register_cron"] * 3]
        assert await operations(bench, object=name) == written
        assert await operations(bench, object=name, outcome="failure") == ["register_cron"]
        assert await operations(bench, object=name, principal="ci") == written[2:]


async def test_decisions_about_steps_are_told_in_words(guarded: Http, bench: Bench) -> None:
    """Who reads the log need not know what an operation is called, nor look for what was answered."""
    ada = await bearer(bench, "ada", Role.OWNER)
    steps = [{"type": "gate", "id": "review"}, {"type": "wait", "id": "ask", "form": {"type": "object"}}]
    made = await guarded("POST", f"{BASE}/workflows", {"type": "chain", "steps": steps}, headers=ada)
    id = made.json()["workflow"]["id"]
    path = f"{BASE}/workflows/{id}"
    await guarded("POST", f"{path}/steps/review/review", {"action": "approve", "notes": "go"}, headers=ada)
    await guarded("POST", f"{path}/resume", {"result": {"ok": False}, "step": "ask"}, headers=ada)
    pending = await guarded(
        "POST", f"{BASE}/jobs", {"type": "a", "args": [], "options": {"pending": True}}, headers=ada
    )
    job = pending.json()["job"]["id"]
    await guarded("POST", f"{BASE}/jobs/{job}/activate", headers=ada)
    entries = (await guarded("GET", f"{BASE}/admin/audit", headers=ada)).json()["entries"]
    assert [entry["detail"]["summary"] for entry in entries if "summary" in entry["detail"]] == [
        f"activated the job {job}",
        f'answered the step ask of the workflow {id}: {{"ok":false}}',
        f"approved the step review of the workflow {id}: go",
    ]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"action": "reject", "notes": "no " * 1_000}, 200, "rejected the step review of the workflow {id}"),
        ({"action": ["reject"]}, 400, "made a note on the step review of the workflow {id}"),
        ([1], 400, "made a note on the step review of the workflow {id}"),
    ],
)
async def test_a_decision_is_told_however_long_or_wrong_it_is(
    guarded: Http, bench: Bench, body: Any, status: int, words: str
) -> None:
    ada = await bearer(bench, "ada", Role.OWNER)
    made = await guarded(
        "POST", f"{BASE}/workflows", {"type": "chain", "steps": [{"type": "gate", "id": "review"}]}, headers=ada
    )
    id = made.json()["workflow"]["id"]
    answer = await guarded("POST", f"{BASE}/workflows/{id}/steps/review/review", body, headers=ada)
    assert answer.status_code == status, answer.text
    entry = (await guarded("GET", f"{BASE}/admin/audit", headers=ada)).json()["entries"][0]
    assert entry["detail"]["summary"] == words.format(id=id)


async def test_the_log_says_in_words_how_many_jobs_were_changed_and_which(guarded: Http, bench: Bench) -> None:
    """Who reads it the morning after must not have to put the sentence together from a request and an answer."""
    ada = await bearer(bench, "ada", Role.OWNER)
    message = "card 4711 expired"
    for _ in range(3):
        await bench.push("payments.charge", queue="payments", max_attempts=1)
        await bench.fail(await bench.fetch_one("payments"), message=message)
    other = await bench.push("mail.send")
    before = {"discarded_before": "2090-01-01T00:00:00Z"}
    jobs = f"payments.charge that were discarded and failed with '{message}'"
    filter = {"type": "payments.charge", "states": ["discarded"], "error_pattern": message} | before
    answer = await guarded("POST", f"{BASE}/jobs/bulk/retry", {"filter": filter}, headers=ada)
    assert answer.json()["retried"] == 3
    await guarded("POST", f"{BASE}/jobs/bulk/cancel", {"job_ids": [other.id]}, headers=ada)
    config = {"concurrency": 5, "throttle": None, "backpressure": {"max_depth": 100}}
    assert (await guarded("PUT", f"{BASE}/queues/mail/config", config, headers=ada)).status_code == 200
    tried = await guarded("PUT", f"{BASE}/queues/mail/config", {"concurrency": -1}, headers=ada)
    assert tried.status_code == 400
    await guarded("POST", f"{BASE}/admin/system/maintenance", {"enabled": True, "reason": "a move"}, headers=ada)
    made = await guarded("POST", f"{BASE}/admin/tokens", {"name": "ci", "grants": [{"role": "viewer"}]}, headers=ada)
    assert made.status_code == 201, made.text
    await guarded("POST", f"{BASE}/admin/prune", {"dry_run": True}, headers=ada)
    said = [
        f"retried 3 jobs of {jobs} and gave up before 2090-01-01T00:00:00Z",
        f"cancelled 1 job: {other.id}",
        "changed the settings of the queue mail: concurrency 5, throttle none, backpressure.max_depth 100",
        "changed the settings of the queue mail: concurrency -1",
        "switched maintenance mode: enabled true, reason a move",
        'created the token ci: grants [{"role":"viewer"}]',
        "previewed, and did not do: deleted all data past its retention",
    ]
    entries = (await guarded("GET", f"{BASE}/admin/audit", headers=ada)).json()["entries"]
    assert [entry["detail"]["summary"] for entry in entries[::-1]] == said
    assert [entry["outcome"] for entry in entries[::-1]] == ["success"] * 3 + ["failure"] + ["success"] * 3


def test_each_operation_of_the_audit_log_has_words_and_no_other_has() -> None:
    audited = {route.handler.__name__ for route in routes_of() if route.is_audited}
    assert audited == OPERATIONS_IN_WORDS


WORKFLOW = {"id": "01a2"}


@pytest.mark.parametrize(
    ("operation", "request_", "words"),
    [
        (
            "fork_workflow",
            {"from_step": "pay", "args": [{"card": "4111"}], "result": {"card": "4111"}},
            "ran the workflow 01a2 again as a new one: from_step pay, args …, result …",
        ),
        (
            "put_tenant",
            {"limits": {"api_key_count": 4, "max_tokens": 5}, "apiKey": "x", "hook": {"headers": ["x"]}},
            "set up the workspace 01a2: limits.api_key_count 4, limits.max_tokens 5, apiKey …, hook.headers …",
        ),
        # Requests that are too large to be examined:
        ("adjust_job", {"dry_run": True, "note": "x" * 70_000}, "previewed, and did not do: changed the priority of"),
        ("resume_workflow", {"step": "ask", "result": "x" * 70_000}, "answered the step ask of the workflow 01a2"),
        ("create_definition", {"steps": ["x" * 70_000], "name": "mail"}, "created the definition mail"),
        ("cancel_bulk", {"job_ids": ["x" * 36] * 2_000}, "cancelled 2000 jobs"),
    ],
)
def test_the_words_have_no_values_of_users_and_cost_little_however_large_the_request_is(
    operation: str, request_: dict[str, Any], words: str
) -> None:
    said = in_words(operation, WORKFLOW, msgspec.json.encode(request_), b'{"cancelled":2000}')
    assert said is not None
    assert said.startswith(words)
    assert len(said) < MAX_REQUEST_BYTES


async def test_arguments_of_users_are_not_in_the_log(guarded: Http, bench: Bench) -> None:
    ada = await bearer(bench, "ada", Role.OWNER)
    body = {"name": "n", "expression": "0 3 * * *", "type": "pay", "args": [{"card": "4111"}]}
    assert (await guarded("POST", f"{BASE}/cron", body, headers=ada)).status_code == 201
    (entry,) = (await guarded("GET", f"{BASE}/admin/audit", headers=ada)).json()["entries"]
    assert entry["detail"]["request"] == body | {"args": "…"}


async def test_the_whole_log_can_be_exported_and_no_cell_of_it_is_a_formula(bench: Bench, guarded: Http) -> None:
    ada = await bearer(bench, "ada", Role.OWNER)
    formula = '=HYPERLINK("https://eve.test","A1")'
    detail = {"summary": "+41 called, twice"}
    await bench.service.audit.record(event("a", principal=formula, object="-1", detail=detail))
    for number in range(MAX_ENTRIES + 1):
        await bench.service.audit.record(event("b", object=f"x{number}"))
    path = f"{BASE}/admin/audit/export"
    whole = (await guarded("GET", f"{path}?format=json", headers=ada)).json()
    assert [entry["number"] for entry in whole] == list(range(MAX_ENTRIES + 2, 0, -1))
    assert whole[-1]["detail"] == detail
    answer = await guarded("GET", f"{path}?format=csv&operation=a", headers=ada)
    assert answer.headers["content-disposition"] == 'attachment; filename="audit-log.csv"'
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert (row["principal"], row["object"], row["summary"]) == (f"'{formula}", "'-1", "'+41 called, twice")
    assert (row["number"], row["outcome"], row["refusal"]) == ("1", "success", "")
    assert (await guarded("GET", f"{path}?format=json&operation=none", headers=ada)).json() == []
    for refused in (f"{path}?format=xls", f"{path}?limit=3", f"{path}?since=noon"):
        assert (await guarded("GET", refused, headers=ada)).status_code == 400
    viewer = await bearer(bench, "eve", Role.VIEWER)
    assert (await guarded("GET", path, headers=viewer)).status_code == 403
