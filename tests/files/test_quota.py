"""How much the files of a workspace may take: the limit holds for uploads, and deleted files leave room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ojster.core.durations import DAY
from ojster.core.errors import PayloadTooLarge
from ojster.core.settings import ServiceSettings
from ojster.files.file import NewFile
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import Caller
from ojster.service import Service
from ojster.tenancy.tenants import TenantChange, put_tenants
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

ACME = {"X-OJS-Tenant": "acme"}


@pytest.fixture
def engine_settings() -> ServiceSettings:
    return ServiceSettings(largest_storage=100_000)


@pytest.fixture
def files(service: Service) -> Any:
    from ojster.files.store import MemoryStore

    service.store = MemoryStore()
    return service.as_(Caller("acme")).files


async def endless(size: int) -> AsyncIterator[bytes]:
    for _ in range(size):
        yield b"x"


async def test_a_workspace_has_room_for_so_many_bytes(service: Service, files: Any) -> None:
    await files.keep(b"a" * 60_000, NewFile())
    with pytest.raises(PayloadTooLarge, match="take 60000 bytes; with 50000 more they exceed"):
        await files.create(NewFile(size=50_000))
    await files.keep(b"b" * 40_000, NewFile())
    with pytest.raises(PayloadTooLarge):
        await files.keep(b"c", NewFile())
    await service.as_(Caller("beta")).files.keep(b"a" * 60_000, NewFile())


async def test_an_upload_of_unknown_size_ends_where_there_is_no_room(service: Service, files: Any) -> None:
    file = await files.create(NewFile())
    with pytest.raises(PayloadTooLarge):
        await files.write(file.id, 0, endless(100_001))
    assert (await files.find(file.id)).offset == 100_000
    await files.delete(file.id)
    again = await files.create(NewFile())
    assert (await files.write(again.id, 0, endless(100_000))).complete


async def test_the_same_content_takes_its_room_once(files: Any, bench: Bench) -> None:
    for _ in range(3):
        await files.keep(b"a" * 60_000, NewFile())
    assert await usage(bench) == {"acme": 60_000}


async def test_deleted_and_refused_files_leave_their_room(files: Any, bench: Bench) -> None:
    file = await files.keep(b"a" * 60_000, NewFile())
    await files.delete(file.id)
    assert await usage(bench) == {"acme": 0}
    wrong = await files.create(NewFile(size=60_000, sha256="0" * 64))
    with pytest.raises(Exception, match="SHA-256"):
        await files.write(wrong.id, 0, endless(60_000))
    assert await usage(bench) == {"acme": 0}
    await files.keep(b"b" * 60_000, NewFile())
    bench.clock.advance(DAY / 1e6 + 1)
    await bench.service.files.prune()
    assert await usage(bench) == {"acme": 0}


async def test_the_limit_of_a_tenant_goes_before_that_of_the_server(service: Service, files: Any, http: Http) -> None:
    await service.scope.do(put_tenants, TenantChange("acme", {"max_file_bytes": 150_000}, False, None))
    await files.keep(b"a" * 120_000, NewFile())
    with pytest.raises(PayloadTooLarge, match="150000"):
        await files.keep(b"b" * 40_000, NewFile())
    stats = (await http("GET", "/ojs/v1/admin/tenants/acme/stats")).json()
    assert stats["limits"]["max_file_bytes"] == {"limit": 150_000, "current": 120_000}
    answer = await http("PUT", "/ojs/v1/files", b"c" * 40_000, headers=ACME)
    assert (answer.status_code, answer.json()["error"]["details"]["limit"]) == (413, 150_000)


async def test_a_result_for_which_there_is_no_room_stays_in_the_database(
    service: Service, files: Any, bench: Bench
) -> None:
    await files.keep(b"a" * 90_000, NewFile())
    job = await bench.push(meta={"tenant_id": "acme"})
    await bench.fetch_one()
    result = b'"%b"' % (b"x" * 70_000)
    (done,) = await service.jobs.acknowledge([Acknowledgement(job.id, result)])
    assert not isinstance(done, Exception)
    assert (await service.jobs.find(job.id)).result == result


async def usage(bench: Bench) -> dict[str, int]:
    def read(tx: Any, requests: Any) -> list[dict[str, int]]:
        return [dict(tx.execute("SELECT tenant, bytes FROM file_usage"))]

    return await bench.run(read, None)
