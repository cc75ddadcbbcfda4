"""``ojster bench``: what it measures, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import click
import psycopg
import pytest

from ojster.cli import trial_store as trial_store_module
from ojster.cli.bench import conclusions
from ojster.cli.trial import RUN, Bounds, Reading, Trial
from ojster.cli.trial_store import FORGOTTEN_AFTER, prefix_of, trial_store
from ojster.storage.postgres.url import parse_postgres_url
from tests import forked
from tests.waiting import PATIENCE, until

FORGOTTEN = int(time.time()) - FORGOTTEN_AFTER - 60


def left_at(url: str) -> list[str]:
    """Return the names of the trial stores beside the one at a URL."""
    if url.startswith("sqlite"):
        return sorted(
            path.name
            for path in Path(url.removeprefix("sqlite:///")).parent.iterdir()
            if path.name.startswith(prefix_of(url))
        )
    with psycopg.connect(parse_postgres_url(url).conninfo) as connection:
        query = "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s) ORDER BY 1"
        return [name for (name,) in connection.execute(query, (prefix_of(url),))]


def leave(url: str, began: int) -> str:
    """Leave a store as a trial does that was killed; return its name."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///")).parent / f"{prefix_of(url)}{began}_abcdef"
        path.touch()
        return path.name
    name = f"{prefix_of(url)}{began}_abcdef"
    with psycopg.connect(parse_postgres_url(url).conninfo) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
        connection.execute(f"COMMENT ON SCHEMA {name} IS '{trial_store_module._MARK}'".encode())
    return name


def test_a_trial_measures_everything_in_a_store_of_its_own(shared_url: str) -> None:
    async def measure() -> tuple[list[Reading], float]:
        trial = Trial(store, Bounds(seconds=0.3, jobs=1_000))
        return [reading async for reading in trial.readings()], trial.bytes_per_job

    with trial_store(shared_url) as store:
        readings, size = asyncio.run(measure())
        assert store.url != shared_url
        assert len(left_at(shared_url)) >= 1
    assert left_at(shared_url) == []
    assert all(reading.value > 0 for reading in readings)
    assert len({reading.name for reading in readings}) == len(readings) == 9
    assert 200 < size < 5_000
    assert len(conclusions(readings, size)) >= 3


def test_stores_of_trials_that_were_killed_are_deleted_after_an_hour(shared_url: str) -> None:
    forgotten, fresh = leave(shared_url, FORGOTTEN), leave(shared_url, FORGOTTEN + 3_000)
    try:
        with trial_store(shared_url):
            assert forgotten not in left_at(shared_url)
            assert fresh in left_at(shared_url)
    finally:
        if not shared_url.startswith("sqlite"):
            with psycopg.connect(parse_postgres_url(shared_url).conninfo) as connection:
                connection.execute(f"DROP SCHEMA {fresh}".encode())


def test_what_only_looks_like_the_store_of_a_trial_is_never_deleted(shared_url: str) -> None:
    names = [f"{prefix_of(shared_url)}{rest}" for rest in ("1", "7_acme", "2024_q1", f"{FORGOTTEN}_abcdef_more")]
    if shared_url.startswith("sqlite"):
        folder = Path(shared_url.removeprefix("sqlite:///")).parent
        for name in names:
            (folder / name).touch()
        with trial_store(shared_url):
            assert set(names) <= set(left_at(shared_url))
        return
    names.append(f"{prefix_of(shared_url)}{FORGOTTEN}_abcdef")  # it has no mark
    with psycopg.connect(parse_postgres_url(shared_url).conninfo, autocommit=True) as connection:
        for name in names:
            connection.execute(f'CREATE SCHEMA "{name}"'.encode())
        try:
            with trial_store(shared_url):
                assert set(names) <= set(left_at(shared_url))
        finally:
            for name in names:
                connection.execute(f'DROP SCHEMA "{name}"'.encode())


def test_a_file_whose_name_is_a_pattern_is_left_clean(tmp_path: Path) -> None:
    with trial_store(f"sqlite:///{tmp_path}/jobs[1].db") as store:
        Path(store.url.removeprefix("sqlite:///")).touch()
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "sqlite:///:memory:", "sqlite:////no/such/folder/jobs.db"])
def test_what_is_no_database_on_a_disk_is_refused(url: str) -> None:
    with pytest.raises(click.UsageError), trial_store(url):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_trial_that_is_stopped_deletes_its_store(shared_url: str, number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "ojster",
        "bench",
        "--seconds",
        "60",
        "--jobs",
        "1000000",
        "--database",
        shared_url,
    ]
    running = forked.Popen(command, env=os.environ | {"TERM": "dumb"})
    until(lambda: left_at(shared_url))
    running.send_signal(number)
    assert running.wait(PATIENCE) == 130
    assert left_at(shared_url) == []


@pytest.mark.slow
def test_its_figures_can_be_read_by_a_program(shared_url: str) -> None:
    command = [sys.executable, "-m", "ojster", "bench", "--seconds", "0.2", "--jobs", "1000", "--json"]
    done = forked.run([*command, "--database", shared_url])
    found = json.loads(done.stdout)
    assert {reading["unit"] for reading in found["readings"]} == {"/s", "ms"}
    assert found["bytes_per_job"] > 0


def test_the_conclusions_name_what_limits_each_rate() -> None:
    alone = Reading("one enqueue, alone, median", 2.0, "ms")
    busy = Reading(RUN, 10_000, "/s", 0.97, 97)
    waiting = Reading("enqueued", 5_000, "/s", 0.3, 60)
    said = conclusions([alone, busy, waiting], 1_000)
    assert said[0].startswith(f"Limited by the processor of one process: {RUN}.")
    assert said[1].startswith("Limited by the database: enqueued. One commit takes about 2.0 ms")
    assert said[2].startswith("10,000 jobs a second are 864 million a day")
    assert said[3].endswith("1.0 GB for a million.")
