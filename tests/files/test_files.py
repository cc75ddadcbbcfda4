"""Files are stored and read in pieces; damage is detected, and unreferenced files are deleted."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.collections.items import NewItem, Where
from ojster.core.errors import BackendError, BackendUnavailable, Conflict, InvalidRequest, NotFound, Unsupported
from ojster.files.file import HashMismatch, NewFile
from ojster.files.open import open_store, store_for
from ojster.files.records import Finish, finish_files, reset_uploads
from ojster.files.service import UploadInterruptedError, range_of
from ojster.files.store import DirectoryStore, FileStore, MemoryStore
from ojster.jobs.scope import Caller
from ojster.service import Service
from tests.conftest import Bench
from tests.files.conftest import PIECE

pytestmark = pytest.mark.anyio

A_DAY = 86_400.0


def content_of(size: int) -> bytes:
    return bytes(number * 7 % 251 for number in range(size))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def source(*parts: bytes, cut: bool = False) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if cut:
        raise UploadInterruptedError


async def all_of(content: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in content])


async def collect(content: AsyncIterator[bytes], got: bytearray) -> None:
    async for part in content:
        got += part


async def put(service: Service, content: bytes, **more: Any) -> str:
    return (await service.files.keep(content, NewFile(**more))).id


@pytest.mark.parametrize("size", [0, 1, PIECE, 3 * PIECE + 1])
async def test_what_comes_out_is_what_went_in(service: Service, size: int) -> None:
    content = content_of(size)
    file = await service.files.create(NewFile(size, sha256(content), "text/plain", "a.txt"))
    assert (file.complete, file.offset, file.size) == (False, 0, size)
    file = await service.files.write(file.id, 0, source(content[:10], content[10:]))
    assert (file.complete, file.offset, file.sha256) == (True, size, sha256(content))
    assert (file.content_type, file.filename) == ("text/plain", "a.txt")
    assert await all_of(await service.files.read(file.id)) == content
    assert await all_of(await service.files.read(file.id, PIECE - 1, PIECE + 2)) == content[PIECE - 1 : PIECE + 2]


async def test_a_file_of_unknown_size_ends_where_its_bytes_do(service: Service) -> None:
    file = await service.files.create(NewFile())
    file = await service.files.write(file.id, 0, source(b"ab", b"c"))
    assert (file.complete, file.size, file.sha256) == (True, 3, sha256(b"abc"))


async def test_an_upload_that_was_cut_off_goes_on_where_it_was(service: Service) -> None:
    content = content_of(2 * PIECE + 500)
    file = await service.files.create(NewFile(len(content), sha256(content)))
    file = await service.files.write(file.id, 0, source(content[:1300], cut=True))
    assert (file.complete, file.offset) == (False, 1300)
    with pytest.raises(Conflict) as refusal:
        await service.files.write(file.id, 1200, source(content[1200:]))
    assert refusal.value.details["offset"] == 1300
    with pytest.raises(Conflict, match="not complete"):
        await service.files.read(file.id)
    assert (await service.files.find(file.id)).offset == 1300
    file = await service.files.write(file.id, 1300, source(content[1300:]))
    assert file.complete
    assert await all_of(await service.files.read(file.id)) == content
    with pytest.raises(Conflict, match="complete"):
        await service.files.write(file.id, len(content), source(b"x"))


async def test_an_upload_whose_end_was_not_recorded_ends_on_resume(service: Service) -> None:
    content = content_of(PIECE + 1)
    file = await service.files.create(NewFile(len(content) + 1))
    await service.files.write(file.id, 0, source(content, cut=True))
    await service.files.write(file.id, len(content), source(b"x", cut=True))
    file = await service.files.find(file.id)
    assert file.complete, "all of it has come, whoever has gone then"


async def test_concurrent_writes_to_one_upload_conflict(service: Service) -> None:
    file = await service.files.create(NewFile(6))

    async def slow() -> AsyncIterator[bytes]:
        yield b"abc"
        await service.files.write(file.id, 0, source(b"123", cut=True))

    with pytest.raises(Conflict, match="Another call"):
        await service.files.write(file.id, 0, slow())
    file = await service.files.write(file.id, 3, source(b"456"))
    assert await all_of(await service.files.read(file.id)) == b"123456"


async def test_a_wrong_hash_is_refused_and_the_upload_begins_again(service: Service) -> None:
    content = content_of(PIECE * 2)
    file = await service.files.create(NewFile(len(content), sha256(content)))
    with pytest.raises(HashMismatch) as refusal:
        await service.files.write(file.id, 0, source(b"x" * len(content)))
    assert refusal.value.details["expected"] == sha256(content)
    assert (await service.files.find(file.id)).offset == 0
    file = await service.files.write(file.id, 0, source(content))
    assert await all_of(await service.files.read(file.id)) == content


async def test_more_bytes_than_were_said_are_refused(service: Service) -> None:
    file = await service.files.create(NewFile(3))
    with pytest.raises(InvalidRequest, match="longer than 3 bytes"):
        await service.files.write(file.id, 0, source(b"abcd"))
    assert (await service.files.find(file.id)).offset == 0


async def test_what_a_workspace_has_already_is_kept_once(service: Service) -> None:
    first = await put(service, b"same")
    assert await put(service, b"same") == first
    known = await service.files.create(NewFile(4, sha256(b"same")))
    assert (known.id, known.complete) == (first, True)
    unknown = await service.files.create(NewFile())
    assert (await service.files.write(unknown.id, 0, source(b"same"))).id == first
    assert [file.id for file in await service.files.select()] == [first]


async def test_a_hash_alone_does_not_open_the_file_of_another_workspace(service: Service) -> None:
    acme, beta = service.as_(Caller("acme")), service.as_(Caller("beta"))
    theirs = await put(acme, b"secret")
    file = await beta.files.create(NewFile(6, sha256(b"secret")))
    assert not file.complete
    for attempt in (
        beta.files.find(theirs),
        beta.files.read(theirs),
        beta.files.write(theirs, 0, source(b"")),
        beta.files.delete(theirs),
    ):
        with pytest.raises(NotFound):
            await attempt
    await beta.collections.create("c")
    with pytest.raises(NotFound, match="no file"):
        await beta.collections.add(Where("c"), NewItem("x", b"null", file_id=theirs))
    assert [one.id for one in await beta.files.select()] == [file.id]
    assert await all_of(await acme.files.read(theirs)) == b"secret"


async def test_a_file_that_is_damaged_in_the_store_is_not_handed_out(service: Service, store: FileStore) -> None:
    from ojster.files.records import list_pieces

    content = content_of(PIECE * 2)
    file_id = await put(service, content)
    _, second = await service.scope.look(list_pieces, file_id)
    await store.put(f"{file_id}/{second.name}", b"x" * PIECE)
    got = bytearray()
    with pytest.raises(BackendError, match="damaged"):
        await collect(await service.files.read(file_id), got)
    assert bytes(got) == content[:PIECE], "what is right comes before"
    with pytest.raises(BackendError, match="damaged"):
        await service.files.read(file_id, PIECE + 5)
    await store.delete(f"{file_id}/{second.name}")
    with pytest.raises(BackendError, match="missing"):
        await service.files.read(file_id, PIECE)


async def test_unreferenced_files_are_pruned_after_a_day(bench: Bench) -> None:
    service = bench.service
    await service.collections.create("releases")
    kept, removed, unused = await put(service, b"1"), await put(service, b"2"), await put(service, b"3")
    unfinished = (await service.files.create(NewFile(9))).id
    await service.collections.add(Where("releases"), NewItem("kept", b"null", file_id=kept))
    await service.collections.add(Where("releases"), NewItem("removed", b"null", file_id=removed))
    bench.clock.advance(A_DAY + 1)
    assert (await service.maintenance.prune(dry_run=True))["files"] == 2
    assert (await service.maintenance.prune())["files"] == 2
    for gone in (unused, unfinished):
        with pytest.raises(NotFound):
            await service.files.find(gone)
    await service.collections.remove(Where("releases"), "removed")
    assert (await service.maintenance.prune())["files"] == 0, "who has just seen it may still want it"
    bench.clock.advance(A_DAY + 1)
    assert (await service.maintenance.prune())["files"] == 1
    assert [file.id for file in await service.files.select()] == [kept]
    (item,) = await service.collections.items(Where("releases"))
    assert item.file is not None
    assert await all_of(await service.files.read(item.file.id)) == b"1"


async def test_a_file_is_deleted_only_if_nobody_refers_to_it(service: Service, store: FileStore) -> None:
    from ojster.files.records import list_pieces

    await service.collections.create("releases")
    file_id = await put(service, b"1")
    (piece,) = await service.scope.look(list_pieces, file_id)
    await service.collections.add(Where("releases"), NewItem("it", b"null", file_id=file_id))
    with pytest.raises(Conflict, match="'it' refers"):
        await service.files.delete(file_id)
    await service.collections.add(Where("releases"), NewItem("it", b"null", replace=True))
    await service.files.delete(file_id)
    with pytest.raises(NotFound):
        await service.files.find(file_id)
    with pytest.raises(BackendError):
        await store.get(f"{file_id}/{piece.name}")
    (now, before) = sorted(await service.collections.items(Where("releases"), history=True), key=lambda item: -item.id)
    assert (now.kind, before.kind) == ("data", "artifact")
    assert before.file is not None, "the history tells which file it was"


async def test_an_item_needs_a_file_that_is_complete(service: Service) -> None:
    await service.collections.create("releases")
    file = await service.files.create(NewFile(5))
    with pytest.raises(Conflict, match="not complete"):
        await service.collections.add(Where("releases"), NewItem("it", b"null", file_id=file.id))
    with pytest.raises(NotFound):
        await service.collections.add(Where("releases"), NewItem("it", b"null", file_id="nonsense"))


@pytest.mark.parametrize(
    "new",
    [
        NewFile(-1),
        NewFile(1 << 41),
        NewFile(sha256="abc"),
        NewFile(sha256="A" * 64),
        NewFile(content_type="text"),
        NewFile(content_type="text/plain\r\nX: y"),
        NewFile(filename=""),
        NewFile(filename=".."),
        NewFile(filename="a/b"),
        NewFile(filename="a\nb"),
        NewFile(filename="x" * 256),
    ],
)
async def test_what_is_no_file_is_refused(new: NewFile) -> None:
    with pytest.raises(InvalidRequest):
        new.check()


async def test_a_store_that_is_away_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(MemoryStore):
        async def put(self, name: str, piece: bytes) -> None:
            raise BackendUnavailable("The file store is away.")

    bench.service.store = Away()
    file = await bench.service.files.create(NewFile(3))
    with pytest.raises(BackendUnavailable):
        await bench.service.files.write(file.id, 0, source(b"abc"))
    assert (await bench.service.files.find(file.id)).offset == 0


async def test_a_bucket_that_is_not_there_keeps_nothing(s3_url: str) -> None:
    store = open_store(s3_url.replace("files-", "nothing-"))
    with pytest.raises(BackendUnavailable):
        await store.put("a/b", b"x")
    await store.delete("a/b")


async def test_a_late_end_of_an_upload_destroys_nothing(service: Service) -> None:
    """Two calls finish one upload: the first finds a wrong hash, and the bytes are sent again before the second one."""
    right, wrong = b"right", b"wrong"
    file = await service.files.create(NewFile(5, sha256(right)))
    with pytest.raises(HashMismatch):
        await service.files.write(file.id, 0, source(wrong))
    file = await service.files.write(file.id, 0, source(right))
    with pytest.raises(Conflict):
        await service.scope.do(reset_uploads, Finish(file.id, 5, sha256(wrong)))
    assert await all_of(await service.files.read(file.id)) == right


async def test_a_file_is_complete_only_with_the_hash_of_all_of_it(service: Service) -> None:
    file = await service.files.create(NewFile())
    file = await service.files.write(file.id, 0, source(b"abc", cut=True))
    await service.files.write(file.id, 3, source(b"MORE", cut=True))
    with pytest.raises(Conflict, match="Another call"):
        await service.scope.do(finish_files, Finish(file.id, 3, sha256(b"abc")))
    file = await service.files.write(file.id, 7, source())
    assert file.sha256 == sha256(b"abcMORE")


async def test_a_damaged_file_is_not_reused_for_an_upload(service: Service, store: FileStore) -> None:
    first = await put(service, b"same")
    await store.delete_file(first)
    with pytest.raises(BackendError):
        await service.files.read(first)
    second = await put(service, b"same")
    assert second != first
    assert await all_of(await service.files.read(second)) == b"same"


async def test_one_file_that_cannot_be_deleted_does_not_keep_the_others(bench: Bench) -> None:
    class Stubborn(MemoryStore):
        bad = ""

        async def delete_file(self, file_id: str) -> None:
            if file_id == self.bad:
                raise BackendUnavailable("The file store is away.")
            await super().delete_file(file_id)

    bench.service.store = store = Stubborn()
    ids = [await put(bench.service, b"%d" % number) for number in range(5)]
    store.bad = ids[2]
    bench.clock.advance(A_DAY + 1)
    with pytest.raises(BackendUnavailable):
        await bench.service.maintenance.prune()
    store.bad = ""
    assert (await bench.service.maintenance.prune())["files"] == 1


async def test_two_may_delete_the_same_at_once(tmp_path: Any) -> None:
    store = DirectoryStore(tmp_path / "files")
    for _ in range(20):
        for piece in range(10):
            await store.put(f"f/{piece}", b"x")
        await asyncio.gather(*(store.delete_file("f") for _ in range(4)))
        with pytest.raises(BackendError):
            await store.get("f/1")


async def test_without_a_store_there_are_no_files(bench: Bench) -> None:
    with pytest.raises(Unsupported, match="--files"):
        await Service(bench.service.database).files.create(NewFile())


def test_where_files_are_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OJSTER_FILES", raising=False)
    assert isinstance(store_for("sqlite:///:memory:"), MemoryStore)
    beside = store_for(f"sqlite:///{tmp_path}/jobs.db")
    assert isinstance(beside, DirectoryStore)
    assert beside.root == tmp_path / "jobs.db-files"
    assert store_for("postgresql://x") is None
    monkeypatch.setenv("OJSTER_FILES", str(tmp_path))
    assert isinstance(store_for("postgresql://x"), DirectoryStore)
    with pytest.raises(InvalidRequest, match="ftp"):
        open_store("ftp://x")
    regular = tmp_path / "list.txt"
    regular.touch()
    for where in (str(regular), f"file://{regular}"):
        with pytest.raises(InvalidRequest, match=r"list\.txt is no directory"):
            open_store(where)


async def test_an_object_store_that_cannot_be_reached_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from ojster.files import object_store

    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-mine")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    store = open_store("s3://nowhere")
    for call in (store.put("a/b", b"x"), store.get("a/b"), store.delete("a/b"), store.delete_file("a")):
        with pytest.raises(BackendUnavailable) as refusal:
            await call
        assert "secret-of-mine" not in refusal.value.message


PARTS = st.lists(st.binary(max_size=2500), max_size=5)


@given(PARTS, st.integers(0, 5))
async def test_whatever_the_parts_and_wherever_it_is_cut_the_whole_is_the_same(parts: list[bytes], cut: int) -> None:
    from ojster.storage.open import open_database

    whole = b"".join(parts)
    database = open_database("sqlite:///:memory:")
    try:
        service = Service(database, store=MemoryStore())
        file = await service.files.create(NewFile(len(whole), sha256(whole)))
        file = await service.files.write(file.id, 0, source(*parts[:cut], cut=True))
        if not file.complete:
            file = await service.files.write(file.id, file.offset, source(whole[file.offset :]))
        assert file.complete
        assert await all_of(await service.files.read(file.id)) == whole
    finally:
        database.close()


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_ranges_mean_what_http_says(size: int, first: int, last: int) -> None:
    content = bytes(range(size))

    def of(text: str) -> bytes | None:
        try:
            found = range_of(text, size)
        except InvalidRequest:
            return None
        assert found is not None
        return content[slice(*found)]

    assert of(f"bytes={first}-") == (content[first:] or None)
    if first <= last:
        assert of(f"bytes={first}-{last}") == (content[first : last + 1] or None)
    assert of(f"bytes=-{last}") == ((content[-last:] if last else b"") or None)


@pytest.mark.parametrize("text", [None, "", "bytes=", "bytes=-", "items=0-1", "bytes=0-1,3-4", "bytes=a-b", "0-1"])
def test_what_is_no_range_means_everything(text: str | None) -> None:
    assert range_of(text, 10) is None
