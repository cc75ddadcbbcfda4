"""Answers of the last second: who gets them, and who never does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest

from ojster.core.access import Grant, Role
from ojster.core.errors import InvalidRequest
from ojster.server import recent_answers
from ojster.server.answer import Answer
from ojster.server.application import Application
from ojster.server.recent_answers import MAX_AGE_SECONDS, RecentAnswers, accepts_recent
from ojster.server.request import Handler, HttpRequest, Services
from ojster.service import Service
from tests.conftest import Bench, Http
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("directives", "is_accepted"),
    [
        (None, False),
        ("", False),
        ("max-age=1", True),
        ("no-transform, Max-Age=60", True),
        ("max-age=0", False),
        ("max-age=1, no-cache", False),
        ("no-store,max-age=5", False),
        ("s-maxage=9", False),
        ("max-age=x", False),
    ],
)
async def test_a_caller_says_whether_an_answer_may_be_a_second_old(directives: str | None, is_accepted: bool) -> None:
    assert accepts_recent(directives) is is_accepted


class Computed:
    """A handler that counts how often it has computed an answer, and the answers that are shared."""

    def __init__(self, service: Service) -> None:
        self.now = 100.0
        self.service = service
        self.count = 0
        self.more = b""
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.answers = RecentAnswers(lambda: self.now)
        self.handler: Handler = self.answers.shared(self._compute)

    async def _compute(self, request: HttpRequest) -> Answer:
        self.count += 1
        number = self.count
        await self.may_end.wait()
        if b"bad" in request.query_string:
            raise InvalidRequest(f"It is bad for caller {number}.")
        return Answer(b"%d" % number + self.more)

    async def __call__(self, query: bytes = b"", control: bytes = b"max-age=1") -> Answer:
        headers = [(b"cache-control", control)] if control else []
        return await self.handler(
            HttpRequest(self.service, 1_000, headers, query, {}, _nothing, cast("Services", None))
        )


async def _nothing() -> dict[str, Any]:
    return {}


@pytest.fixture
async def computed(service: Service) -> Computed:
    return Computed(service)


async def test_equal_requests_within_a_second_share_an_answer_and_none_is_older(computed: Computed) -> None:
    first, second = await computed(), await computed()
    assert (first.body, first.headers, second.body, second.headers) == (b"1", (), b"1", ((b"age", b"0"),))
    second.warn(["changed"])
    second.content_type = b"text/plain"
    assert (await computed()).content_type != b"text/plain", "who changes an answer changes its own"
    assert (await computed(b"state=active")).body == b"2"
    assert (await computed(control=b"")).body == b"3", "a caller that does not accept it"
    assert (await computed()).body == b"1"
    computed.now += MAX_AGE_SECONDS
    assert (await computed()).body == b"4"


async def test_requests_at_the_same_time_share_one_computation_which_outlives_the_first(computed: Computed) -> None:
    computed.may_end.clear()
    first, *others = [asyncio.create_task(computed()) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    computed.may_end.set()
    assert [answer.body for answer in await asyncio.gather(*others)] == [b"1"] * 4
    assert first.cancelled()


async def test_a_slow_computation_counts_from_its_start(computed: Computed) -> None:
    computed.may_end.clear()
    slow = asyncio.create_task(computed())
    await asyncio.sleep(0)
    computed.now += MAX_AGE_SECONDS
    later = asyncio.create_task(computed())
    await asyncio.sleep(0)
    computed.may_end.set()
    assert ((await slow).body, (await later).body) == (b"1", b"2"), "what changed since it began is in the second"
    assert len(computed.answers) == 1


async def test_a_refusal_is_not_remembered(computed: Computed) -> None:
    for count in (1, 2):
        with pytest.raises(InvalidRequest):
            await computed(b"bad")
        await asyncio.sleep(0)
        assert (computed.count, len(computed.answers)) == (count, 0)


async def test_a_refusal_is_for_its_own_caller_alone(computed: Computed) -> None:
    computed.may_end.clear()
    callers = [asyncio.create_task(computed(b"bad")) for _ in range(3)]
    await asyncio.sleep(0)
    computed.may_end.set()
    refusals = await asyncio.gather(*callers, return_exceptions=True)
    assert sorted(map(str, refusals)) == [f"It is bad for caller {number}." for number in (1, 2, 3)]


async def test_a_large_answer_is_shared_while_it_is_made_and_not_kept(computed: Computed) -> None:
    computed.more = b"x" * recent_answers.MAX_REMEMBERED_BYTES
    computed.may_end.clear()
    callers = [asyncio.create_task(computed()) for _ in range(2)]
    await asyncio.sleep(0)
    computed.may_end.set()
    first, second = await asyncio.gather(*callers)
    assert first.body == second.body
    assert (computed.count, len(computed.answers)) == (1, 0)


async def test_answers_are_forgotten_by_themselves_and_their_number_is_bounded(
    computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_answers, "MAX_RECENT_ANSWERS", 3)
    monkeypatch.setattr(recent_answers, "MAX_AGE_SECONDS", 0.02)
    for number in range(5):
        await computed(b"limit=%d" % number)
    assert len(computed.answers) == 3
    async with asyncio.timeout(PATIENCE):
        while len(computed.answers):
            await asyncio.sleep(0.005)


@pytest.fixture
async def guarded(service: Service) -> AsyncIterator[Http]:
    transport = httpx.ASGITransport(app=Application(service, guarded=True))
    async with httpx.AsyncClient(transport=transport, base_url="http://guarded") as client:
        yield Http(client)


async def test_callers_with_other_rights_never_share_and_each_sees_its_own_write_at_once(
    guarded: Http, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_answers, "MAX_AGE_SECONDS", 60.0)  # however slow the machine is
    patient = {"Cache-Control": "max-age=60"}

    async def caller(*grants: Grant, queues: tuple[str, ...] = ()) -> dict[str, str]:
        _, shown = await bench.service.tokens.create("somebody", grants, queues=queues)
        return {"Authorization": f"Bearer {shown}"}

    async def queues_seen(headers: dict[str, str]) -> tuple[list[str], str | None]:
        answer = await guarded("GET", "/ojs/v1/job-facets", headers=headers)
        assert answer.status_code == 200, answer.text
        return sorted(one["value"] for one in answer.json()["facets"]["queue"]), answer.headers.get("age")

    for tenant, queue in (("acme", "mail"), ("acme", "paper"), ("other", "metal")):
        await bench.push(queue=queue, meta={"tenant_id": tenant})
    owner, viewer = await caller(Grant(Role.OWNER)), await caller(Grant(Role.VIEWER))
    of_acme, of_mail = await caller(Grant(Role.VIEWER, "acme")), await caller(Grant(Role.VIEWER), queues=("mail",))
    other = {"X-OJS-Tenant": "other"}
    expected = [
        (owner, ["mail", "metal", "paper"]),
        (viewer, ["mail", "metal", "paper"]),
        (of_acme, ["mail", "paper"]),
        (of_mail, ["mail"]),
        (owner | other, ["metal"]),
    ]
    for headers, seen in expected:
        assert await queues_seen(headers | patient) == (seen, None), "each has an answer of its own"
    twin = await caller(Grant(Role.VIEWER))
    assert await queues_seen(twin | patient) == (["mail", "metal", "paper"], "0"), "of the same rights"
    assert (await guarded("GET", "/ojs/v1/job-facets", headers=patient)).status_code == 401
    pushed = await guarded(
        "POST", "/ojs/v1/jobs", {"type": "t", "args": [], "options": {"queue": "new"}}, headers=owner
    )
    assert pushed.status_code == 201
    assert "new" in (await queues_seen(owner))[0]
    assert "new" in (await queues_seen(owner | {"Cache-Control": "no-cache"}))[0]
    assert "new" not in (await queues_seen(owner | patient))[0], "who accepts an old answer gets one"
