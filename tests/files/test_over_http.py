"""Files over HTTP: ranges, hashes, headers, interrupted connections, and use from Python programs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ojster.client import file_transfer as transfer
from ojster.client.client import HttpClient
from ojster.collections.items import NewItem, Where
from ojster.core.errors import BackendError, BackendUnavailable, NotFound
from ojster.files import service as streams
from ojster.files.file import FileRef, HashMismatch, NewFile
from ojster.files.open import open_store
from ojster.files.records import list_pieces
from ojster.files.store import FileStore
from ojster.handlers.collection_handle import SharedCollection
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement, Holder
from ojster.jobs.scope import Caller
from ojster.server.application import Application
from ojster.service import Service
from ojster.storage.database import Database
from tests.conftest import Http, request
from tests.files.conftest import PIECE
from tests.files.test_files import collect
from tests.serving import serving

pytestmark = pytest.mark.anyio

CONTENT = bytes(number * 7 % 251 for number in range(3 * PIECE + 17))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
BASE = "/ojs/v1"


@pytest.fixture
async def http(service: Service) -> AsyncIterator[Http]:
    transport = httpx.ASGITransport(app=Application(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Http(client)


async def uploaded(http: Http, content: bytes = CONTENT, **query: str) -> dict[str, Any]:
    response = await http("PUT", f"{BASE}/files", content, params=query, headers={"Content-Type": "text/csv"})
    assert response.status_code == 201, response.text
    file: dict[str, Any] = response.json()["file"]
    return file


async def test_a_file_goes_up_in_one_request_and_comes_down_in_parts(http: Http) -> None:
    file = await uploaded(http, filename="übung.csv")
    assert (file["sha256"], file["size"], file["content_type"]) == (SHA256, len(CONTENT), "text/csv")
    path = f"{BASE}/files/{file['id']}/content"
    whole = await http("GET", path)
    assert whole.content == CONTENT
    assert whole.headers["content-type"] == "text/csv"
    assert whole.headers["content-length"] == str(len(CONTENT))
    assert whole.headers["etag"] == f'"{SHA256}"'
    digest = base64.b64encode(bytes.fromhex(SHA256)).decode()
    assert whole.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert "filename*=UTF-8''%C3%BCbung.csv" in whole.headers["content-disposition"]
    part = await http("GET", path, headers={"Range": f"bytes={PIECE - 3}-{PIECE + 2}"})
    assert (part.status_code, part.content) == (206, CONTENT[PIECE - 3 : PIECE + 3])
    assert part.headers["content-range"] == f"bytes {PIECE - 3}-{PIECE + 2}/{len(CONTENT)}"
    assert (await http("GET", path, headers={"Range": "bytes=-4"})).content == CONTENT[-4:]
    beyond = await http("GET", path, headers={"Range": f"bytes={len(CONTENT)}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(CONTENT)}")
    other = await http("GET", path, headers={"Range": "bytes=-4", "If-Range": '"another"'})
    assert (other.status_code, other.content) == (200, CONTENT)
    same = await http("GET", path, headers={"If-None-Match": f'"{SHA256}"'})
    assert (same.status_code, same.content) == (304, b"")
    head = await http("HEAD", path)
    assert (head.headers["content-length"], head.content) == (str(len(CONTENT)), b"")


async def test_an_upload_is_taken_up_where_the_answer_says(http: Http) -> None:
    begun = await http("POST", f"{BASE}/files", {"size": len(CONTENT), "sha256": SHA256})
    assert begun.status_code == 201
    file = begun.json()["file"]
    path = f"{BASE}/files/{file['id']}"
    assert begun.headers["location"] == path
    wrong = await http("PATCH", path, CONTENT[5:], headers={"Upload-Offset": "5"})
    assert (wrong.status_code, wrong.json()["error"]["details"]["offset"]) == (409, 0)
    missing = await http("PATCH", path, CONTENT)
    assert missing.status_code == 400
    done = await http("PATCH", path, CONTENT, headers={"Upload-Offset": "0"})
    assert (done.status_code, done.json()["file"]["complete"]) == (200, True)
    again = await http("POST", f"{BASE}/files", {"size": len(CONTENT), "sha256": SHA256})
    assert (again.status_code, again.json()["file"]["id"]) == (200, file["id"])
    assert [one["id"] for one in (await http("GET", f"{BASE}/files")).json()["files"]] == [file["id"]]
    assert (await http("DELETE", path)).status_code == 200
    assert (await http("GET", path)).status_code == 404


async def test_a_wrong_hash_is_refused(http: Http) -> None:
    refused = await http("PUT", f"{BASE}/files", b"other", params={"sha256": SHA256})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "checksum_mismatch")


async def test_an_artifact_shows_its_file(http: Http) -> None:
    file = await uploaded(http)
    await http("POST", f"{BASE}/collections", {"name": "releases"})
    body = {"name": "2.0", "data": {"stable": True}, "category": "tarball", "file": file["id"]}
    added = await http("POST", f"{BASE}/collections/releases/items", body)
    assert added.status_code == 201, added.text
    item = added.json()["item"]
    assert item["kind"] == "artifact"
    assert item["file"] == {"id": file["id"], "sha256": SHA256, "size": len(CONTENT), "content_type": "text/csv"}
    nowhere = await http("POST", f"{BASE}/collections/releases/items", body | {"name": "x", "file": "nonsense"})
    assert nowhere.status_code == 404


# Connections that are cut


class Cutter:
    """A proxy that cuts the first connections after given numbers of bytes and passes all others."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.up: list[int] = []
        """Numbers of bytes to the server after which the next connections are cut, one entry per cut."""
        self.down: list[int] = []
        """Numbers of bytes from the server after which the next connections are cut, one entry per cut."""
        self.cuts = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        up = asyncio.create_task(self._pump(reader, back, self.up))
        down = asyncio.create_task(self._pump(there, writer, self.down))
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        for end in (writer, back):
            end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, cuts: list[int]) -> None:
        passed = 0
        while some := await source.read(256):
            passed += len(some)
            if cuts and passed > cuts[0]:
                cuts.pop(0)
                self.cuts += 1
                return
            sink.write(some)
            await sink.drain()


@pytest.fixture
async def cutter(service: Service) -> AsyncIterator[tuple[Cutter, HttpClient]]:
    async with serving(service) as (_, port):
        cutter = Cutter(port)
        async with cutter.listening() as url:
            client = HttpClient(url, patience=5.0)
            yield cutter, client
            await client.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause before a transfer is retried to at most 0.01 s."""
    monkeypatch.setattr(transfer, "LONGEST_PAUSE", 0.01)


async def test_an_upload_whose_connection_is_cut_goes_on(
    cutter: tuple[Cutter, HttpClient], service: Service, tmp_path: Path
) -> None:
    proxy, client = cutter
    (tmp_path / "data.csv").write_bytes(CONTENT)
    begun = await client.files.create(NewFile(len(CONTENT), SHA256))

    async def sending() -> AsyncIterator[bytes]:
        yield CONTENT[: PIECE + 100]
        while (await service.files.find(begun.id)).offset < PIECE:
            await asyncio.sleep(0.005)
        yield CONTENT[PIECE + 100 :]

    proxy.up[:] = [PIECE + 1500]
    with pytest.raises(BackendUnavailable):
        await client.files.write(begun.id, 0, sending())
    assert PIECE <= (await service.files.find(begun.id)).offset < len(CONTENT)
    proxy.up[:] = [1500, 1500]
    file = await transfer.upload(client, tmp_path / "data.csv")
    assert file.complete
    assert proxy.cuts == 3
    assert await transfer.content_of(service, file.ref) == CONTENT


async def test_a_download_whose_connection_is_cut_goes_on(
    cutter: tuple[Cutter, HttpClient], service: Service, tmp_path: Path
) -> None:
    proxy, client = cutter
    file = (await service.files.keep(CONTENT, NewFile(filename="data.csv"))).ref
    proxy.down[:] = [2000, 1500, 700]
    path = await transfer.download(client, file, tmp_path)
    assert path == tmp_path / "data.csv"
    assert path.read_bytes() == CONTENT
    assert proxy.cuts == 3
    assert [one.name for one in tmp_path.glob(".*.part")] == []
    proxy.down[:] = [2000]
    assert await transfer.content_of(client, file) == CONTENT


async def test_a_download_goes_on_with_what_another_has_left(service: Service, tmp_path: Path) -> None:
    file = (await service.files.keep(CONTENT, NewFile())).ref
    (tmp_path / f".x.{SHA256[:16]}.part").write_bytes(CONTENT[:1234])
    await transfer.download(service, file, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT


async def test_what_has_come_wrong_is_thrown_away(service: Service, tmp_path: Path) -> None:
    file = (await service.files.keep(CONTENT, NewFile())).ref
    (tmp_path / f".x.{SHA256[:16]}.part").write_bytes(b"x" * 1234)
    with pytest.raises(HashMismatch):
        await transfer.download(service, file, tmp_path / "x")
    assert not list(tmp_path.glob(".x*"))
    await transfer.download(service, file, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT
    with pytest.raises(HashMismatch):
        await transfer.download(service, FileRef(file.id, "0" * 64, file.size), tmp_path / "y")


async def test_a_damaged_file_ends_before_it_is_wrong(
    cutter: tuple[Cutter, HttpClient], service: Service, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = cutter
    monkeypatch.setattr(transfer, "PATIENCE", 1)
    file = await service.files.keep(CONTENT, NewFile())
    pieces = await service.scope.look(list_pieces, file.id)
    await store.put(f"{file.id}/{pieces[-1].name}", b"x" * 17)
    got = bytearray()
    with pytest.raises(BackendUnavailable):
        await collect(await client.files.read(file.id), got)
    assert bytes(got) == CONTENT[: 3 * PIECE]


async def test_a_file_that_gets_shorter_while_it_is_uploaded_is_noticed(service: Service, tmp_path: Path) -> None:
    source = tmp_path / "log"
    source.write_bytes(CONTENT)
    creates = service.files.create

    async def create(new: NewFile) -> Any:
        source.write_bytes(CONTENT[:100])
        return await creates(new)

    service.files.create = create  # type: ignore[method-assign]
    with pytest.raises(HashMismatch, match="shorter"):
        await transfer.upload(service, source)


async def test_a_large_file_is_sent_in_several_requests(
    cutter: tuple[Cutter, HttpClient], service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, client = cutter
    sizes: list[int] = []
    write = client.files.write

    async def counted(file_id: str, offset: int, source: Any) -> Any:
        file = await write(file_id, offset, source)
        sizes.append(file.offset - offset)
        return file

    client.files.write = counted  # type: ignore[method-assign]
    monkeypatch.setattr(transfer, "MAX_UPLOAD_REQUEST_BYTES", 700)
    monkeypatch.setattr(transfer, "READ_CHUNK_BYTES", 300)
    (tmp_path / "data").write_bytes(CONTENT)
    for source, content in ((tmp_path / "data", CONTENT), (CONTENT[:-1], CONTENT[:-1])):
        sizes.clear()
        file = await transfer.upload(client, source)
        assert await transfer.content_of(client, file.ref) == content
        assert sum(sizes) == len(content)
        assert len(sizes) > 1
        assert max(sizes) <= 700


async def test_an_unfinished_file_is_a_conflict_and_no_error_of_the_server(http: Http) -> None:
    file = (await http("POST", f"{BASE}/files", {"size": 5})).json()["file"]
    assert (await http("GET", f"{BASE}/files/{file['id']}/content")).status_code == 409
    odd = await uploaded(http)
    answer = await http("GET", f"{BASE}/files/{odd['id']}/content", headers={"Range": "bytes=5-2"})
    assert (answer.status_code, answer.content) == (200, CONTENT)
    several = {"If-None-Match": f'"x", W/"{SHA256}"'}
    assert (await http("GET", f"{BASE}/files/{odd['id']}/content", headers=several)).status_code == 304


# Python programs


def shared(client: Any, where: Where, job_id: str | None = None) -> SharedCollection:
    def no_thread(call: Any) -> Any:
        raise AssertionError("only asynchronous calls here")

    return SharedCollection(lambda: client, where, no_thread, None if job_id is None else Holder(job_id))


async def test_a_program_puts_files_into_collections_and_gets_them_back(
    cutter: tuple[Cutter, HttpClient], service: Service, tmp_path: Path
) -> None:
    proxy, client = cutter
    (tmp_path / "app.tar.gz").write_bytes(CONTENT)
    await client.collections.create("releases")
    releases = shared(client, Where("releases"))
    item = await releases.aadd_file("2.0", tmp_path / "app.tar.gz", data={"stable": True}, category="tarball")
    assert (item.kind, item.category, bytes(item.data)) == ("artifact", "tarball", b'{"stable":true}')
    assert item.file is not None
    assert (item.file.filename, item.file.content_type) == ("app.tar.gz", "application/x-tar")
    assert await releases.aread("2.0") == CONTENT
    assert await releases.aget("2.0") == {"stable": True}
    proxy.down[:] = [1500]
    (tmp_path / "to").mkdir()
    assert (await releases.adownload("2.0", tmp_path / "to")).read_bytes() == CONTENT
    await releases.aadd("plain", 1)
    with pytest.raises(NotFound, match="no file"):
        await releases.aread("plain")


async def test_a_job_of_a_workspace_brings_about_files_of_it(service: Service) -> None:
    acme = service.as_(Caller("acme"))
    (pushed,) = await acme.jobs.enqueue([request("t")])
    await service.jobs.fetch(Claim(("default",), worker_id="w"))
    artifacts = shared(service, Where(job_id=pushed.job.id), pushed.job.id)
    await artifacts.aadd_file("log", b"all went well", filename="log.txt")
    (file,) = await acme.files.select()
    assert file.filename == "log.txt"
    assert await shared(acme, Where(job_id=pushed.job.id)).aread("log") == b"all went well"
    with pytest.raises(NotFound):
        await shared(service.as_(Caller("beta")), Where(job_id=pushed.job.id)).aread("log")
    await service.jobs.acknowledge([Acknowledgement(pushed.job.id, None, "w", 1)])
    with pytest.raises(Exception, match="Only an active job"):
        await service.collections.add(Where(job_id=pushed.job.id), NewItem("late", b"null"))
    (item,) = await service.collections.items(Where(job_id=pushed.job.id))
    assert (item.collection, item.name) == ("artifacts", "log")


async def test_a_handler_uses_the_named_collections_of_its_jobs_workspace(
    cutter: tuple[Cutter, HttpClient], service: Service
) -> None:
    """Even if its worker serves all workspaces."""
    _, client = cutter
    acme = service.as_(Caller("acme"))
    await acme.collections.create("releases")
    (pushed,) = await acme.jobs.enqueue([request("t")])
    await service.jobs.fetch(Claim(("default",), worker_id="w"))
    for number, caller in enumerate((client, service)):
        releases = shared(caller, Where("releases", job_id=pushed.job.id), pushed.job.id)
        await releases.aadd_file(f"file-{number}", b"content")
        await releases.aadd("data", number, replace=True)
        assert await releases.aread(f"file-{number}") == b"content"
        assert [item.name for item in await releases.aitems(name_startswith="file")] == ["file-0", "file-1"][
            : number + 1
        ]
        await releases.aremove("data")
    assert [item.name for item in await acme.collections.items(Where("releases"))] == ["file-0", "file-1"]
    with pytest.raises(NotFound):
        await shared(service.as_(Caller("beta")), Where("releases", job_id=pushed.job.id)).aitems()


async def test_workspaces_inside_read_the_files_of_a_shared_collection(service: Service) -> None:
    acme, inside = service.as_(Caller("acme")), service.as_(Caller("acme:web"))
    await acme.collections.create("releases", shared=True)
    item = await shared(acme, Where("releases")).aadd_file("app", b"content")
    hidden = await acme.files.keep(b"hidden", NewFile())
    (pushed,) = await inside.jobs.enqueue([request("t")])
    await service.jobs.fetch(Claim(("default",), worker_id="w"))
    readers = (
        shared(inside, Where("releases")),
        shared(service, Where("releases", job_id=pushed.job.id), pushed.job.id),  # a worker of all workspaces
    )
    for releases in readers:
        assert await releases.aread("app") == b"content"
    assert item.file is not None
    with pytest.raises(NotFound):
        await inside.files.find(hidden.id)
    with pytest.raises(NotFound):
        await service.as_(Caller("beta:web")).files.find(item.file.id)
    await acme.collections.change("releases", shared=False)
    with pytest.raises(NotFound):
        await inside.files.find(item.file.id)


@pytest.fixture
async def cut_s3(
    s3_url: str, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Cutter, FileStore]]:
    """A bucket behind a proxy that can cut connections."""
    proxy = Cutter(int(s3_server.rpartition(":")[2]))
    async with proxy.listening() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield proxy, open_store(s3_url)


async def test_a_cut_connection_to_an_object_store_is_tried_again(cut_s3: tuple[Cutter, FileStore]) -> None:
    proxy, store = cut_s3
    proxy.up[:] = [700, 1500]
    await store.put("f/1", CONTENT)
    proxy.down[:] = [50, 900]
    assert await store.get("f/1") == CONTENT
    proxy.up[:] = [100]
    await store.delete_file("f")
    with pytest.raises(BackendError, match="missing"):
        await store.get("f/1")
    assert proxy.cuts == 5


async def test_an_object_store_outage_loses_no_confirmed_bytes(
    cut_s3: tuple[Cutter, FileStore], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, store = cut_s3
    monkeypatch.setattr(streams, "CHUNK_BYTES", PIECE)
    service = Service(database, store=store)
    file = await service.files.create(NewFile(len(CONTENT), SHA256))

    async def sending() -> AsyncIterator[bytes]:
        yield CONTENT[: 2 * PIECE]
        proxy.up[:] = [300] * 100
        yield CONTENT[2 * PIECE :]

    with pytest.raises(BackendUnavailable):
        await service.files.write(file.id, 0, sending())
    proxy.up.clear()
    assert (await service.files.find(file.id)).offset == 2 * PIECE
    file = await service.files.write(file.id, 2 * PIECE, transfer._pieces_of(CONTENT, 2 * PIECE, len(CONTENT)))
    assert file.complete
    assert await transfer.content_of(service, file.ref) == CONTENT
