"""Bodies of requests that are alike but for their arguments: not read as a whole, they give the same jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.errors import OjsterError, PayloadTooLarge
from ojster.core.json_objects import read_members
from ojster.core.settings import ServiceSettings
from ojster.core.timestamps import system_clock
from ojster.core.turns import LARGE_BYTES
from ojster.jobs import known_bodies
from ojster.jobs import service as job_service
from ojster.jobs.known_bodies import KnownBodies
from ojster.jobs.new_job import NewJob, read_job
from ojster.service import Service
from ojster.storage.open import open_database
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

LARGEST = 600


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service(open_database("sqlite:///:memory:", ServiceSettings(largest_job=LARGEST)))
    yield made
    asyncio.run(made.close())


ARGS = st.sampled_from(
    [
        b"[]",
        b"[1]",
        b"[1,2]",
        b'["a",{"b":[2]}]',
        b'[{"$lookup":"x"}]',
        b'["args","\\"args\\":[]"]',
        b'["' + b"x" * LARGEST + b'"]',
        b"[" * 60 + b"]" * 60,
        b"[" * 110 + b"]" * 110,
        b'["\\ud800"]',
        b'["\\ud83d\\ude00", "\xc3\xa9"]',
        b'["\xc3"]',
        b"[1}",
        b"[1],[2]",
        b'[1],"args":[2]',
        b'[1],"meta":{}',
        b" [1]",
        b"[1] ",
        b"null",
        b"{}",
        b'["others"]',
    ]
)
BEFORE = st.sampled_from(
    [
        b'{"type":"a.b","args":',
        b'{"type": "a.b", "args": ',
        b'{"args":',
        b'{"type":"a.b","meta":{"args":[1]},"args":',
        b'{"type":"a.b","meta":{"\\"args\\":[1]":"\\"args\\":"},"args":',
        b'{"type":"a.b","type":"a.c","args":',
        b'{"type":"?","args":',
        b'{"type":"a.b@2.0","args" :',
    ]
)
AFTER = st.sampled_from(
    [
        b"}",
        b',"type":"a.b"}',
        b',"options":{"queue":"mail"}}',
        b',"options":{"tags":[]}}',
        b',"options":{"unique":{"keys":["args"]}}}',
        b',"options":{"delay_until":"+PT1H"}}',
        b' , "meta":{"k":"args"} }\n',
        b"",
        b',"x_custom":[1]}',
    ]
)
BODIES = st.tuples(BEFORE, ARGS, AFTER).map(b"".join)


async def prepared(service: Service, body: bytes) -> NewJob | str:
    try:
        return await service.jobs.prepare_body(body)
    except OjsterError as error:
        return error.message


def alone(body: bytes) -> NewJob | str:
    try:
        return read_job(read_members(body), system_clock(), largest=LARGEST)
    except OjsterError as error:
        return error.message


def without_id_and_times(made: NewJob | str) -> object:
    if isinstance(made, str):
        return made
    members = msgspec.structs.asdict(made) | {"id": "", "model": None}
    envelope = json.loads(made.envelope)
    del envelope["id"]
    if made.scheduled_at is not None:
        members["scheduled_at"] = envelope["scheduled_at"] = True
    return members | {"envelope": json.dumps(envelope)}


@given(st.lists(BODIES, min_size=1, max_size=5), st.lists(st.integers(0, 4), max_size=20))
def test_bodies_are_read_as_if_no_others_had_come(service: Service, bodies: list[bytes], order: list[int]) -> None:
    async def all_of_them() -> list[NewJob | str]:
        return [await prepared(service, bodies[place % len(bodies)]) for place in order]

    made = asyncio.run(all_of_them())
    expected = [alone(bodies[place % len(bodies)]) for place in order]
    assert list(map(without_id_and_times, made)) == list(map(without_id_and_times, expected))


@given(BEFORE, AFTER, st.lists(ARGS, min_size=3, max_size=10))
def test_bodies_with_other_arguments_are_read_as_if_no_others_had_come(
    service: Service, before: bytes, after: bytes, args: list[bytes]
) -> None:
    bodies = [before + one + after for one in [b"[0]", b"[7]", b"[8]", *args]]

    async def all_of_them() -> list[NewJob | str]:
        return [await prepared(service, body) for body in bodies]

    made = asyncio.run(all_of_them())
    assert list(map(without_id_and_times, made)) == list(map(without_id_and_times, map(alone, bodies)))


async def test_a_body_is_read_until_others_like_it_are_known(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def note(body: bytes) -> object:
        read.append(body)
        return read_members(body)

    monkeypatch.setattr(job_service, "read_members", note)
    bodies = [b'{"type":"known.body","args":[%d,"x"],"options":{"queue":"q"}}' % number for number in range(9)]
    jobs = [await bench.service.jobs.prepare_body(body) for body in bodies]
    assert read == bodies[:2]
    assert [json.loads(job.envelope)["args"] for job in jobs] == [[number, "x"] for number in range(9)]
    large = bodies[0].replace(b'"x"', b'"%b"' % (b"x" * LARGE_BYTES))
    with pytest.raises(PayloadTooLarge):
        await bench.service.jobs.prepare_body(large)
    assert read == [*bodies[:2], large]  # beside the event loop
    await bench.service.job_types.put("known.body", read_members(b'{"options":{"priority":7}}'))
    assert (await bench.service.jobs.prepare_body(bodies[0])).priority == 7


class Model:
    def __init__(self, body: bytes) -> None:
        self.common = {name: value for name, value in read_members(body).items() if name != "args"}


def test_few_and_small_bodies_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_bodies, "MOST_KNOWN_BODIES", 3)
    known = KnownBodies[Model]()
    for number in range(10):
        body = b'{"type":"t%d","args":[0]}' % number
        known.remember(body, b"[0]", None, Model(body))
        assert 0 < len(known) <= 3
        assert known.find(body, None) is not None
        assert known.find(body, "acme") is None
    known = KnownBodies[Model]()
    large = b'{"type":"%b","args":[0]}' % (b"t" * 5_000)
    known.remember(large, b"[0]", None, Model(large))
    assert not len(known)
