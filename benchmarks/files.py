"""File uploads and downloads, compared with reading, hashing once and writing the same bytes."""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import uvloop

from benchmarks.figure import Figure
from benchmarks.servers import ojster
from ojster import App
from ojster.client.file_transfer import download, upload
from ojster.client.interface import Client
from ojster.files.file import CHUNK_BYTES, File

FILE_MEBIBYTES = 256
"""Size of the file, in MiB."""


def run(folder: Path, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure uploads to and downloads from a directory store."""
    if chosen.only and chosen.only not in "files upload download":
        return
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        source = place / "source"
        with source.open("wb") as file:
            for _ in range(FILE_MEBIBYTES * 2**20 // CHUNK_BYTES):
                file.write(os.urandom(CHUNK_BYTES))
        up = _rate(lambda: _copy(source, place / "raw", durably=True))
        down = _rate(lambda: _copy(source, place / "raw", durably=False))
        yield Figure("floor: read, hash and durably write a file in pieces of 8 MiB", up, "MiB/s")
        yield Figure("floor: read, hash and write a file", down, "MiB/s")
        url = f"sqlite:///{place}/jobs.db"
        yield from _both("in process", url, source, place, up, down)
        with ojster(f"sqlite:///{place}/other.db") as server:
            yield from _both("over HTTP", f"http://127.0.0.1:{server.port}", source, place, up, down)
            yield Figure("files: memory of the server afterwards", server.megabytes, "MiB")


def _both(how: str, url: str, source: Path, place: Path, up: float, down: float) -> Iterator[Figure]:
    file: list[File] = []

    async def send(client: Client) -> None:
        file.append(await upload(client, source))

    async def fetch(client: Client) -> None:
        await download(client, file[0].ref, place / "target")

    rate = _rate(lambda: uvloop.run(_with(url, send)))
    yield Figure(f"files: upload of {FILE_MEBIBYTES} MiB {how}", rate, "MiB/s", floor=up, floor_name="raw")
    rate = _rate(lambda: uvloop.run(_with(url, fetch)))
    yield Figure(f"files: download of {FILE_MEBIBYTES} MiB {how}", rate, "MiB/s", floor=down, floor_name="raw")


async def _with(url: str, act: Callable[[Client], Awaitable[None]]) -> None:
    app = App(url)
    try:
        await act(app.client())
    finally:
        await app.aclose()


def _copy(source: Path, target: Path, *, durably: bool) -> None:
    whole = hashlib.sha256()
    with source.open("rb") as file:
        number = 0
        while piece := file.read(CHUNK_BYTES):
            whole.update(piece)
            with target.with_suffix(f".{number}").open("wb") as sink:
                sink.write(piece)
                if durably:
                    sink.flush()
                    os.fsync(sink.fileno())
            number += 1


def _rate(act: Callable[[], object]) -> float:
    """Return the MiB per second of one call that transfers the file."""
    started = time.perf_counter()
    act()
    return FILE_MEBIBYTES / (time.perf_counter() - started)
