"""Codecs: the server sees only encoded arguments, and the handler receives the original ones.

Spec: ojs-encryption
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from ojster import (
    App,
    CodecError,
    Duplicate,
    Encryption,
    Gzip,
    InvalidRequest,
    JobFailed,
    PayloadTooLarge,
    Unique,
    Worker,
    chain,
)
from ojster.handlers.codec import Codec, Codecs
from ojster.handlers.job_options import request_of
from ojster.jobs.job_json import to_json
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

OLD, NEW = b"o" * 32, b"n" * 32


def application(url: str, *codecs: Codec) -> tuple[App, list[Any]]:
    app = App(url, codecs=codecs)
    seen: list[Any] = []

    @app.job("keep", retry=1)
    async def keep(*args: Any) -> None:
        seen.append(list(args))

    return app, seen


async def work(app: App) -> None:
    await Worker(app).run(until_empty=True)


@pytest.fixture
async def apps() -> AsyncIterator[list[App]]:
    made: list[App] = []
    yield made
    for app in made:
        await app.aclose()


async def test_the_server_never_sees_the_arguments(shared_url: str, apps: list[App]) -> None:
    app, seen = application(shared_url, Gzip(), Encryption({"one": NEW}))
    apps.append(app)
    args = ["4111 1111 1111 1111", {"name": "Grüße", "big": 2**60}]
    handle = await app.handlers["keep"].aenqueue(*args)
    stored = to_json(await app.client().jobs.find(handle.id))
    assert b"4111" not in stored
    assert "Grüße".encode() not in stored
    (payload,) = (await app.client().jobs.find(handle.id)).args
    assert (payload["ojs_encoded"], payload["encoding"]) == (True, "gzip/plain+binary/encrypted")
    meta = (await app.client().jobs.find(handle.id)).meta
    assert meta == {"ojs.codec.encodings": ["gzip/plain", "binary/encrypted"], "ojs.codec.key_id": "one"}
    await work(app)
    assert seen == [args]


async def test_encrypted_data_has_the_specified_layout() -> None:
    data = Encryption({"k": NEW}).encode(b"[1,2]")
    assert data[:1] == b"\x01"
    assert AESGCM(NEW).decrypt(data[1:13], data[13:], None) == b"[1,2]"
    assert len(data) == 1 + 12 + len(b"[1,2]") + 16
    assert len({Encryption({"k": NEW}).encode(b"") for _ in range(50)}) == 50, "no nonce is used twice"


async def test_a_cron_job_changes_with_its_arguments_and_the_key_and_not_with_each_worker(
    shared_url: str, apps: list[App]
) -> None:
    stored: list[Any] = []
    for args, keys in ((1, "o"), (1, "o"), (2, "o"), (2, "on")):
        app, _ = application(shared_url, Encryption({key: key.encode() * 32 for key in keys}, keys[-1]))
        apps.append(app)
        app.cron("0 5 * * *", args)(app.handlers["keep"])
        app.cron("0 6 * * *", chain(app.handlers["keep"].s(args)), name="flow")
        await work(app)
        stored.append({cron.name: (cron.template, cron.workflow) for cron in await app.client().schedules.all()})
    first, again, changed, rotated = stored
    assert again == first
    for name in first:
        assert len({first[name], changed[name], rotated[name]}) == 3, name


async def test_keys_are_rotated_by_adding_one(shared_url: str, apps: list[App]) -> None:
    before, _ = application(shared_url, Encryption({"old": OLD}))
    after, seen = application(shared_url, Encryption({"old": OLD, "new": NEW}))
    without, unseen = application(shared_url, Encryption({"new": NEW}))
    apps += [before, after, without]
    await before.handlers["keep"].aenqueue("first")
    handle = await after.handlers["keep"].aenqueue("second")
    assert (await after.client().jobs.find(handle.id)).meta["ojs.codec.key_id"] == "new"
    await work(after)
    assert seen == [["first"], ["second"]]
    lost = await before.handlers["keep"].aenqueue("third")
    await work(without)
    with pytest.raises(JobFailed, match="no key 'old'"):
        await (await lost.arefresh()).aresult(PATIENCE)
    assert unseen == []


async def test_jobs_that_are_not_encoded_are_understood_too(shared_url: str, apps: list[App]) -> None:
    app, seen = application(shared_url, Encryption({"k": NEW}))
    apps.append(app)
    await app.client().jobs.enqueue([request_of("keep", [1, {"ojs_encoded": True}])])
    await app.client().jobs.enqueue([request_of("keep", [{"ojs_encoded": True, "data": "?"}])])
    await work(app)
    assert seen == [[1, {"ojs_encoded": True}], [{"ojs_encoded": True, "data": "?"}]]


@pytest.mark.parametrize("more", [{}, {"keys": ("args", "queue")}, {"args_keys": ("user",)}])
async def test_unique_jobs_stay_unique(shared_url: str, apps: list[App], more: dict[str, Any]) -> None:
    app, _ = application(shared_url, Encryption({"k": NEW}))
    apps.append(app)
    unique = app.handlers["keep"].using(unique=Unique(**more))
    await unique.aenqueue({"user": 1})
    await unique.aenqueue({"user": 2})
    with pytest.raises(Duplicate):
        await unique.aenqueue({"user": 1})
    if "args_keys" in more:
        with pytest.raises(Duplicate):
            await unique.aenqueue({"user": 1, "other": 5})


@pytest.mark.parametrize("chain", [[Gzip()], [Encryption({"k": NEW})]], ids=["gzip", "encrypted"])
@pytest.mark.parametrize("args_keys", [None, ["user"]])
async def test_a_default_policy_cannot_compare_encoded_arguments(
    shared_url: str, apps: list[App], chain: list[Codec], args_keys: list[str] | None
) -> None:
    app, _ = application(shared_url, *chain)
    apps.append(app)
    unique = {"keys": ["type", "args"], "args_keys": args_keys}
    await app.client().job_types.put("keep", {"options": Raw(json.dumps({"unique": unique}).encode())})
    with pytest.raises(InvalidRequest, match="a codec has encoded: the server cannot compare them"):
        await app.handlers["keep"].aenqueue({"user": 1})
    keep = app.handlers["keep"].using(unique=Unique(args_keys=args_keys))
    await keep.aenqueue({"user": 1})
    with pytest.raises(Duplicate):
        await keep.aenqueue({"user": 1})


async def test_a_default_policy_without_arguments_holds_for_encoded_jobs(shared_url: str, apps: list[App]) -> None:
    app, _ = application(shared_url, Encryption({"k": NEW}))
    apps.append(app)
    unique = {"keys": ["type", "meta"], "meta_keys": ["user"]}
    await app.client().job_types.put("keep", {"options": Raw(json.dumps({"unique": unique}).encode())})
    keep = app.handlers["keep"].using(meta={"user": 1})
    await keep.aenqueue("one")
    with pytest.raises(Duplicate):
        await keep.aenqueue("another")


async def test_tampered_payloads_are_refused() -> None:
    codecs = Codecs([Encryption({"k": NEW})])
    args, meta, _ = codecs.encode(b'["secret"]', {}, {}, "t")
    payload = json.loads(args)[0]
    assert codecs.decode([payload], meta) == ["secret"]
    raw = bytearray(base64.b64decode(payload["data"]))
    for place in range(len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 1
        with pytest.raises(CodecError):
            codecs.decode([payload | {"data": base64.b64encode(bytes(changed)).decode()}], meta)
    for wrong in ({"data": "%%%"}, {"data": ""}, {"data": 5}):
        with pytest.raises(CodecError):
            codecs.decode([payload | wrong], meta)
    with pytest.raises(CodecError, match="zstd"):
        codecs.decode([payload | {"encoding": "zstd/plain"}], meta)


def packed(data: bytes, encoding: str = "gzip/plain") -> dict[str, Any]:
    return {"ojs_encoded": True, "encoding": encoding, "data": base64.b64encode(data).decode()}


def test_a_small_job_does_not_fill_the_memory_of_a_worker() -> None:
    codecs, bomb = Codecs([Gzip(max_bytes=1_000)]), gzip.compress(b"[" + b" " * 100_000 + b"]")
    with pytest.raises(CodecError, match="more than 1000 bytes without compression"):
        codecs.decode([packed(bomb)], {})
    with pytest.raises(CodecError, match="more than 1000 bytes"):
        codecs.decode([packed(gzip.compress(bomb), "gzip/plain+gzip/plain")], {})
    with pytest.raises(CodecError, match="more than 67108864 bytes"):
        Codecs([Gzip()]).decode([packed(gzip.compress(b" " * (64 * 2**20 + 1)))], {})
    with pytest.raises(CodecError, match="not JSON"):
        Codecs([Gzip()]).decode([packed(gzip.compress(b"[" * 100_000))], {})
    for broken in (bomb[:-1], bomb + b"x", b"x"):
        with pytest.raises(CodecError, match="gzip"):
            Codecs([Gzip()]).decode([packed(broken)], {})


def test_arguments_that_no_worker_would_decompress_are_not_compressed() -> None:
    codecs = Codecs([Gzip(max_bytes=10)])
    assert codecs.decode(json.loads(codecs.encode(b"[12345678]", {}, {}, "t")[0]), {}) == [12345678]
    with pytest.raises(PayloadTooLarge, match="11 bytes before compression; at most 10"):
        codecs.encode(b"[123456789]", {}, {}, "t")
    with pytest.raises(ValueError, match="positive"):
        Gzip(max_bytes=0)


async def test_keys_must_be_keys() -> None:
    for keys, current in (({}, None), ({"k": b"short"}, None), ({"k": NEW}, "other")):
        with pytest.raises(ValueError):
            Encryption(keys, current)


Json = st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=10)


@given(args=st.lists(Json, max_size=5))
async def test_whatever_is_encoded_comes_back(args: list[Any]) -> None:
    codecs = Codecs([Gzip(), Encryption({"k": NEW})])
    encoded, meta, _ = codecs.encode(json.dumps(args).encode(), {"mine": 1}, {}, "t")
    assert codecs.decode(json.loads(encoded), meta) == args
    assert meta["mine"] == 1


@pytest.mark.parametrize(
    ("args", "meta"),
    [
        (["c2VjcmV0"], {"ojs.codec.encodings": ["binary/encrypted"], "ojs.codec.key_id": "k"}),
        (["c2VjcmV0"], {"ojs.encryption.encrypted": True}),
        ([{"ojs_encoded": True, "data": "c2VjcmV0"}], {"ojs.codec.encodings": "binary/encrypted"}),
        ([{"ojs_encoded": True, "data": "bm8ganNvbg=="}], {"ojs.codec.encodings": ["plain"]}),
    ],
)
def test_what_another_sdk_has_encoded_never_reaches_a_handler(args: list[Any], meta: dict[str, Any]) -> None:
    class Plain:
        name = "plain"
        key_id = None

        def encode(self, data: bytes) -> bytes:
            return data

        def decode(self, data: bytes, key_id: str | None) -> bytes:
            return data

    with pytest.raises(CodecError):
        Codecs([Plain()]).decode(args, meta)
