"""The beginning of a job's id stands for the job, if no other id begins so."""

from __future__ import annotations

import msgspec
import pytest

from ojster.core.errors import Conflict, NotFound
from ojster.jobs.scope import Caller
from tests.conftest import Bench, Http, request

pytestmark = pytest.mark.anyio


async def push(bench: Bench, id: str, **meta: str) -> None:
    """Push a job with an id."""
    await bench.service.jobs.enqueue([request("t", meta=meta) | {"id": msgspec.Raw(f'"{id}"'.encode())}])


FIRST = "019a0000-0000-7000-8000-00000000000a"
SECOND = "019a0000-0000-7000-8000-00000000000b"
OTHER = "019b0000-0000-7000-8000-00000000000a"


async def test_a_job_is_found_by_the_beginning_of_its_id(bench: Bench) -> None:
    await push(bench, FIRST)
    await push(bench, OTHER)
    for start in ("019a00", "019a0000", "019a0000-", "019a0000-0000-7", FIRST[:-1], FIRST):
        assert (await bench.service.jobs.find(start)).id == FIRST


async def test_a_beginning_of_several_ids_is_refused(bench: Bench) -> None:
    await push(bench, FIRST)
    await push(bench, SECOND)
    with pytest.raises(Conflict, match="Give more characters"):
        await bench.service.jobs.find("019a0000")


@pytest.mark.parametrize(
    "start", ["", "019a0", "019c00", "019A00", "019a00g", "019a-000", "019a00\0", FIRST + "0", "%"]
)
async def test_what_is_the_beginning_of_no_id_is_not_found(bench: Bench, start: str) -> None:
    await push(bench, FIRST)
    with pytest.raises(NotFound):
        await bench.service.jobs.find(start)


async def test_a_tenant_finds_its_own_jobs_alone(bench: Bench) -> None:
    await push(bench, FIRST, tenant_id="acme")
    await push(bench, SECOND, tenant_id="other")
    assert (await bench.service.as_(Caller("acme")).jobs.find("019a0000")).id == FIRST
    with pytest.raises(NotFound):
        await bench.service.as_(Caller("third")).jobs.find("019a0000")


async def test_a_server_shows_a_job_by_the_beginning_of_its_id(http: Http, bench: Bench) -> None:
    await push(bench, FIRST)
    assert (await http("GET", "/ojs/v1/jobs/019a0000")).json()["job"]["id"] == FIRST
    await push(bench, SECOND)
    assert (await http("GET", "/ojs/v1/jobs/019a0000")).status_code == 409
