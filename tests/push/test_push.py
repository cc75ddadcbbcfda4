"""Servers send jobs to functions, whose answers acknowledge them.

Spec: ojs-serverless
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ojster.core.durations import SECOND
from ojster.core.errors import BackendUnavailable
from ojster.core.job import Job
from ojster.core.timestamps import format_timestamp
from ojster.jobs.claim import claim
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement, Progress, hand_back
from ojster.push.endpoints import Trouble
from ojster.server.delivery import push as pushing
from ojster.server.delivery.push import PushWorker
from ojster.server.delivery.sender import Sender
from ojster.service import Service
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, shown
from tests.push.functions import Function, completed, failed, put, running, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def function() -> AsyncIterator[Function]:
    async with running(Function()) as made:
        yield made


@pytest.fixture
async def pusher(service: Service) -> AsyncIterator[PushWorker]:
    made = PushWorker(service, Sender(trusting=True))
    made.start()
    yield made
    await made.stop()


async def reaches(bench: Bench, job: Job, state: str) -> Job:
    """Wait until a job is in a state, and return it."""

    async def is_there() -> bool:
        return (await bench.find(job)).state == state

    await until(is_there)
    return await bench.find(job)


async def has_a_long_lease(bench: Bench, job: Job) -> bool:
    """Whether the function has accepted a job: servers extend the leases of their calls for a shorter time."""
    known = await bench.find(job)
    return known.due_at is not None and known.due_at > bench.clock.now + 60 * SECOND


async def state_of(bench: Bench, id: str = "fn") -> str:
    return (await bench.service.push.find(id)).state


async def becomes(bench: Bench, state: str) -> str:
    """Wait until the endpoint is in a state, and return the reason."""

    async def is_there() -> bool:
        return await state_of(bench) == state

    await until(is_there)
    return str((await bench.service.push.find("fn")).reason)


async def test_a_job_is_sent_and_the_answer_completes_it(bench: Bench, pusher: PushWorker, function: Function) -> None:
    function.answers = [completed({"message_id": "m1"})]
    await put(bench.service, function.url)
    job = await bench.push("email.send", {"to": "ada"}, meta={"k": 1})
    done = await reaches(bench, job, "completed")
    assert (shown(done)["result"], done.attempt, done.worker_id) == ({"message_id": "m1"}, 1, "push_fn")
    ((pushed,), (headers,)) = function.seen, function.headers
    sent = pushed["job"]
    assert (sent["id"], sent["type"], sent["args"], sent["meta"]["k"]) == (job.id, "email.send", [{"to": "ada"}], 1)
    assert (sent["state"], sent["attempt"], pushed["worker_id"]) == ("active", 1, "push_fn")
    assert headers["x-ojs-delivery-id"] == pushed["delivery_id"]
    assert headers["x-ojs-delivery-id"].startswith("del_")
    assert (headers["x-ojs-job-id"], headers["x-ojs-attempt"]) == (job.id, "1")
    assert int(headers["x-ojs-idempotency-window"]) >= 3 * 30
    assert headers["content-type"] == "application/json"


async def test_only_jobs_of_its_queues_and_types_are_sent(bench: Bench, pusher: PushWorker, function: Function) -> None:
    await put(bench.service, function.url, queues=["a"], job_types=["x", "y"])
    wanted = [await bench.push("x", queue="a"), await bench.push("y", queue="a")]
    others = [await bench.push("z", queue="a"), await bench.push("x", queue="b")]
    for job in wanted:
        await reaches(bench, job, "completed")
    assert [(await bench.find(job)).state for job in others] == ["available"] * 2


async def test_a_function_that_fails_decides_whether_it_is_tried_again(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    function.answers = [failed("SMTP refused"), failed("gone", code="no_such_user", retryable=False)]
    await put(bench.service, function.url)
    job = await bench.push(retry={"initial_interval": "PT1S", "jitter": False})
    waiting = await reaches(bench, job, "retryable")
    assert shown(waiting)["error"]["message"] == "SMTP refused"
    await bench.run_due(after=2)
    ended = await reaches(bench, job, "discarded")
    first, second = function.seen
    assert (shown(ended)["error"]["code"], ended.attempt) == ("no_such_user", 2)
    assert first["delivery_id"] != second["delivery_id"]
    assert await state_of(bench) == "active"


@pytest.mark.parametrize(
    ("answer", "state", "kind"),
    [
        (Response("oops", 500), "retryable", "status"),
        (Response("", 503), "retryable", "status"),
        (Response("", 408), "retryable", "status"),
        (Response("bad", 422), "discarded", "status"),
        (Response("", 304), "retryable", "status"),
        (Response("fine"), "retryable", "invalid_response"),
        (Response(""), "retryable", "invalid_response"),
        (JSONResponse({"ok": True}), "retryable", "invalid_response"),
        (JSONResponse({"status": "maybe"}), "retryable", "invalid_response"),
        (Response(b'{"status":"completed","result":%b}' % (b"[" * 500 + b"]" * 500)), "retryable", "invalid_response"),
        (Response(b'{"status":"failed","error":%b}' % (b"[" * 5_000 + b"]" * 5_000)), "retryable", "invalid_response"),
        (Response(b'{"error":%b}' % (b"[" * 5_000 + b"]" * 5_000), 422), "discarded", "status"),
        (Response(b'{"status":"completed","result":"\xff"}'), "retryable", "invalid_response"),
        (Response(rb'{"status":"completed","result":"\ud800"}'), "retryable", "invalid_response"),
        (Response(b'{"status":"completed","result":"' + b"x" * 2_000_000 + b'"}'), "discarded", "response_too_large"),
    ],
)
async def test_another_answer_is_a_failed_delivery(
    bench: Bench, pusher: PushWorker, function: Function, answer: Response, state: str, kind: str
) -> None:
    function.answers = [answer]
    await put(bench.service, function.url)
    job = await reaches(bench, await bench.push(), state)
    details = shown(job)["error"]["details"]
    assert (details["error_class"], details["error_type"], job.attempt) == ("delivery_error", kind, 1)
    assert details["delivery_id"] == function.seen[0]["delivery_id"]


async def test_an_error_in_the_body_of_a_5xx_is_that_of_the_job(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    function.answers = [JSONResponse({"error": {"code": "E_DB", "message": "down", "retryable": False}}, 500)]
    await put(bench.service, function.url)
    error = shown(await reaches(bench, await bench.push(), "retryable"))["error"]
    assert (error["code"], error["message"]) == ("E_DB", "down")


async def test_a_result_that_is_too_large_ends_the_job(bench: Bench, pusher: PushWorker, function: Function) -> None:
    function.answers = [completed("x" * 1_048_600)]
    await put(bench.service, function.url)
    job = await reaches(bench, await bench.push(), "discarded")
    assert shown(job)["error"]["type"] == "ResultTooLarge"


async def test_no_content_means_done_without_a_result(bench: Bench, pusher: PushWorker, function: Function) -> None:
    function.answers = [Response(status_code=204)]
    await put(bench.service, function.url)
    job = await reaches(bench, await bench.push(), "completed")
    assert job.result is None


@pytest.mark.parametrize(
    "answer", [Response("", 429), Response("", 429, {"Retry-After": "40"}), Response("", 503, {"Retry-After": "40"})]
)
async def test_a_job_waits_while_its_function_has_no_room(
    bench: Bench, pusher: PushWorker, function: Function, answer: Response
) -> None:
    function.answers = [answer, completed()]
    await put(bench.service, function.url)
    job = await bench.push()
    reason = await becomes(bench, "suspended")
    assert str(answer.status_code) in reason
    waiting = await reaches(bench, job, "available")
    assert (waiting.attempt, waiting.errors) == (0, None)
    pause = 40 if "retry-after" in answer.headers else 1
    await bench.run_due(after=pause - 0.5)
    assert len(function.seen) == 1
    await bench.run_due(after=0.6)
    done = await reaches(bench, job, "completed")
    assert done.attempt == 1
    await becomes(bench, "active")
    told = await bench.events()
    assert ("push.endpoint.suspended" in told, "push.endpoint.recovered" in told) == (True, True)


async def test_after_a_pause_one_job_shows_whether_the_function_works(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    function.answers = [Response("", 429)]
    await put(bench.service, function.url, max_concurrency=5)
    jobs = [await bench.push() for _ in range(5)]
    await becomes(bench, "suspended")

    async def all_wait() -> bool:
        return all([(await bench.find(job)).state == "available" for job in jobs])

    await until(all_wait)
    before = len(function.seen)
    function.gate.clear()
    function.answers = [completed()]
    await bench.run_due(after=61)

    async def one_came() -> bool:
        return len(function.seen) == before + 1

    await until(one_came)
    await bench.until_parked()  # the next claim finds no room
    assert len(function.seen) == before + 1
    function.gate.set()
    for job in jobs:
        await reaches(bench, job, "completed")


async def test_jobs_that_a_function_has_accepted_do_not_keep_it_from_showing_that_it_works(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    function.answers = [Response(status_code=202), Response("", 429), completed()]
    await put(bench.service, function.url, max_concurrency=3)
    long = await bench.push()
    await until(lambda: has_a_long_lease(bench, long))
    short = await bench.push()
    await becomes(bench, "suspended")
    await reaches(bench, short, "available")
    await bench.run_due(after=2)
    await reaches(bench, short, "completed")
    await becomes(bench, "active")
    assert (await bench.find(long)).state == "active"


async def test_each_pause_is_longer_than_the_one_before(bench: Bench, pusher: PushWorker, function: Function) -> None:
    function.answers = [Response("", 429)]
    await put(bench.service, function.url)
    await bench.push()
    until_times = []
    for number in range(1, 8):

        async def tripped(number: int = number) -> bool:
            (endpoint,) = await bench.service.push.stored()
            return endpoint.trips == number

        await until(tripped)
        (endpoint,) = await bench.service.push.stored()
        until_times.append((endpoint.suspended_until - bench.clock.now) // SECOND)
        await bench.run_due(after=until_times[-1] + 0.1)
    assert until_times == [1, 2, 4, 8, 16, 32, 60]


@pytest.mark.parametrize("is_final", [False, True])
async def test_an_endpoint_says_since_when_its_function_takes_no_jobs(bench: Bench, is_final: bool) -> None:
    assert not (await put(bench.service, "http://127.0.0.1:1/")).troubled_since
    (stored,) = await bench.service.push.stored()
    began = format_timestamp(bench.clock.now)
    await bench.service.push.note_trouble(Trouble(stored.id, "answered 429"))
    assert (await bench.service.push.find("fn")).troubled_since == began
    bench.clock.advance(600)
    await bench.service.push.note_trouble(Trouble(stored.id, "answered 404", is_final=is_final))
    assert (await bench.service.push.find("fn")).troubled_since == began, "it did not work in between"
    (finding,) = [one for one in await bench.service.insight.attention() if one.kind == "deliveries"]
    assert finding.message == "The push endpoint fn accepts no deliveries: answered 404."
    assert not (await bench.service.push.resume("fn")).troubled_since


async def test_a_function_that_cannot_be_reached_costs_no_attempt(bench: Bench, pusher: PushWorker) -> None:
    await put(bench.service, "http://127.0.0.1:1/")
    job = await bench.push()
    assert "cannot be reached" in await becomes(bench, "suspended")
    assert (await reaches(bench, job, "available")).attempt == 0


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_function_that_does_not_exist_gets_no_more_jobs_until_an_operator_says_so(
    bench: Bench, pusher: PushWorker, function: Function, status: int
) -> None:
    function.answers = [Response("", status), completed()]
    await put(bench.service, function.url)
    job = await bench.push()
    assert f"it answered {status}" in await becomes(bench, "disabled")
    assert (await reaches(bench, job, "available")).attempt == 0
    assert "push.endpoint.disabled" in await bench.events()
    findings = await bench.service.insight.attention()
    assert "push_fn" in [finding.subject for finding in findings if finding.kind == "deliveries"]
    assert (await bench.fetch_one(worker_id="w")).id == job.id  # any other worker may run it
    await bench.service.jobs.release([hand_back(await bench.find(job), "w")])
    await bench.service.push.resume("fn")
    await reaches(bench, job, "completed")


async def test_five_failed_deliveries_in_a_row_suspend_an_endpoint(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    function.answers = [Response("", 500)]
    await put(bench.service, function.url, max_concurrency=1)
    jobs = [await bench.push() for _ in range(8)]
    await becomes(bench, "suspended")

    async def five_have_failed() -> bool:
        states = [(await bench.find(job)).state for job in jobs]
        return (states.count("retryable"), states.count("available")) == (5, 3)

    await until(five_have_failed)


async def test_what_a_function_has_done_counts_although_its_troubles_cannot_be_noted(
    bench: Bench, pusher: PushWorker, function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_away(trouble: Trouble) -> None:
        raise BackendUnavailable("The database is away.")

    monkeypatch.setattr(pushing, "TRIP_AFTER", 1)
    monkeypatch.setattr(bench.service.push, "note_trouble", is_away)
    function.answers = [Response("", 500)]
    await put(bench.service, function.url)
    assert (await reaches(bench, await bench.push(), "retryable")).attempt == 1


async def test_failures_that_functions_report_suspend_nothing(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    function.answers = [failed()]
    await put(bench.service, function.url, max_concurrency=1)
    for job in [await bench.push() for _ in range(8)]:
        await reaches(bench, job, "retryable")
    assert await state_of(bench) == "active"


async def test_a_slow_function_fails_the_attempt(
    bench: Bench, pusher: PushWorker, function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "COLD_START_SECONDS", 0.0)
    function.gate.clear()
    await put(bench.service, function.url, timeout_ms=100)
    job = await reaches(bench, await bench.push(), "retryable")
    assert (shown(job)["error"]["details"]["error_type"], job.attempt) == ("timeout", 1)


async def test_a_first_call_has_more_time_for_a_cold_start(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.3)
        return completed()

    function.answers = [slow]
    await put(bench.service, function.url, timeout_ms=100)
    await reaches(bench, await bench.push(), "completed")
    await reaches(bench, await bench.push(), "retryable")


async def test_at_most_as_many_jobs_run_as_the_endpoint_allows(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    """Two servers share one endpoint."""
    other = PushWorker(bench.service, Sender(trusting=True))
    other.start()
    function.gate.clear()
    await put(bench.service, function.url, max_concurrency=3)
    jobs = [await bench.push() for _ in range(12)]

    async def is_full() -> bool:
        return function.busy == 3

    await until(is_full)
    await bench.until_parked()
    assert sum([(await bench.find(job)).state == "active" for job in jobs]) == 3
    function.gate.set()
    for job in jobs:
        await reaches(bench, job, "completed")
    assert function.busiest == 3
    await other.stop()


async def test_claims_that_find_nothing_do_not_wake_those_of_other_servers(bench: Bench) -> None:
    """Else two idle servers would claim again and again."""
    await put(bench.service, "http://127.0.0.1:1/")

    def woken(tx: Transaction, claims: Sequence[Claim]) -> list[list[str]]:
        assert claim(tx, claims) == [[]]
        return [sorted(tx.effects.opened)]

    assert await bench.run(woken, Claim(("default",), 1, "push_fn")) == []


async def test_no_more_jobs_are_sent_in_a_period_than_the_rate(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    from ojster.jobs.rate_limit_wire import RateBody

    await put(bench.service, function.url, rate=RateBody(2, "PT1M"))
    jobs = [await bench.push() for _ in range(3)]
    await reaches(bench, jobs[0], "completed")
    await reaches(bench, jobs[1], "completed")
    await bench.until_parked()
    assert (await bench.find(jobs[2])).state == "available"
    await bench.run_due(after=61)
    await reaches(bench, jobs[2], "completed")


async def test_a_function_may_go_on_after_its_answer_and_report_later(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    function.answers = [Response(status_code=202)]
    await put(bench.service, function.url, max_concurrency=1)
    job, second = await bench.push(), await bench.push()

    await until(lambda: has_a_long_lease(bench, job))
    pushed = function.seen[0]
    running_job = await bench.find(job)
    assert (running_job.state, (await bench.find(second)).state) == ("active", "available")
    await bench.service.jobs.report(Progress(job.id, 0.5, worker_id=pushed["worker_id"]))
    ack = Acknowledgement(job.id, b"7", pushed["worker_id"], pushed["job"]["attempt"])
    await bench.service.jobs.acknowledge([ack])
    assert (await bench.find(job)).result == b"7"

    async def second_came() -> bool:
        return function.jobs == [job.id, second.id]

    await until(second_came)


async def test_a_job_that_is_cancelled_ends_the_call(bench: Bench, pusher: PushWorker, function: Function) -> None:
    function.gate.clear()
    await put(bench.service, function.url)
    job = await bench.push()

    async def is_busy() -> bool:
        return function.busy == 1

    await until(is_busy)
    await bench.service.jobs.cancel(job.id)
    await reaches(bench, job, "cancelled")
    (worker, _) = pusher._running["fn"]

    async def has_ended() -> bool:
        return not worker._calls

    await until(has_ended)


async def test_a_server_that_stops_hands_back_the_jobs_of_slow_functions(
    bench: Bench, pusher: PushWorker, function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "GRACE", 0.01)
    function.gate.clear()
    await put(bench.service, function.url)
    job = await bench.push()

    async def is_busy() -> bool:
        return function.busy == 1

    await until(is_busy)
    await pusher.stop()
    left = await bench.find(job)
    assert (left.state, left.attempt) == ("available", 0)


async def test_a_paused_endpoint_gets_no_jobs_and_a_deleted_one_gives_them_back(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    await put(bench.service, function.url)
    await reaches(bench, await bench.push(), "completed")
    assert (await bench.service.push.pause("fn")).state == "paused"
    (worker, _) = pusher._running["fn"]

    async def knows() -> bool:
        return not worker.endpoint.active

    await until(knows)
    job = await bench.push()
    await put(bench.service, function.url, max_concurrency=2)
    assert (await state_of(bench), (await bench.find(job)).state) == ("paused", "available")
    function.gate.clear()
    await bench.service.push.resume("fn")
    await reaches(bench, job, "active")
    await bench.service.push.delete("fn")

    async def is_given_back() -> bool:
        left = await bench.find(job)
        workers = await bench.service.fleet.all()
        return (left.state, left.attempt, workers, pusher._running) == ("available", 0, [], {})

    await until(is_given_back)


async def test_a_rotated_secret_and_the_one_before_both_sign(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    await put(bench.service, function.url)
    rotated = await bench.service.push.rotate("fn")
    assert str(rotated.config.signing_secret).startswith("whsec_")
    await reaches(bench, await bench.push(), "completed")  # the function checks the former one
    assert function.headers[0]["x-ojs-signature"].count("sha256=") == 2


async def test_a_private_address_is_never_called(bench: Bench, function: Function) -> None:
    strict = PushWorker(bench.service, Sender())
    strict.start()
    await put(bench.service, function.url.replace("http://", "https://"))
    job = await bench.push()
    assert "it must not be called" in await becomes(bench, "disabled")
    assert ((await reaches(bench, job, "available")).attempt, function.seen) == (0, [])
    await strict.stop()


async def test_a_redirect_is_followed_with_the_same_signed_body(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    function.answers = [Response("", 307, {"Location": "/there"}), completed(1)]
    await put(bench.service, function.url)
    job = await reaches(bench, await bench.push(), "completed")
    assert (job.attempt, len(function.seen), function.seen[0]) == (1, 2, function.seen[1])


@pytest.mark.parametrize("location", ["http://[", "http://xn--a/", "//a:99999999/"])
async def test_an_endpoint_that_redirects_to_no_address_is_turned_off(
    bench: Bench, pusher: PushWorker, function: Function, location: str
) -> None:
    function.answers = [Response("", 307, {"Location": location})]
    await put(bench.service, function.url)
    job = await bench.push()
    assert "valid URL" in await becomes(bench, "disabled")
    assert (await reaches(bench, job, "available")).attempt == 0


async def test_an_endpoint_that_redirects_for_ever_is_turned_off(
    bench: Bench, pusher: PushWorker, function: Function
) -> None:
    function.answers = [Response("", 307, {"Location": "/again"})]
    await put(bench.service, function.url)
    await bench.push()
    assert "redirects" in await becomes(bench, "disabled")
