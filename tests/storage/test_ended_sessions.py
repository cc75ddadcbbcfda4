"""Sessions that PostgreSQL ends because they are idle, in a transaction or between two."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

import psycopg
import pytest

from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.postgres import notifier
from ojster.storage.transaction import Transaction
from tests.conftest import SERVER_VARIABLE, request
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


def with_setting(url: str, name: str, milliseconds: int) -> str:
    return f"{url}&options=-c%20{name}%3D{milliseconds}"


def until_ended(pid: int) -> None:
    with psycopg.connect(os.environ[SERVER_VARIABLE], autocommit=True) as other:
        until(lambda: not other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchall())


async def test_a_transaction_whose_session_ends_before_its_commit_runs_again(postgres_url: str) -> None:
    service = Service(open_database(with_setting(postgres_url, "idle_in_transaction_session_timeout", 100)))
    pids: list[int] = []

    def dawdle(tx: Transaction, requests: Sequence[None]) -> list[int]:
        ((pid,),) = tx.execute("SELECT pg_backend_pid()")
        pids.append(pid)
        if len(pids) == 1:
            until_ended(pid)
        return [pid]

    first = await service.database.run(dawdle, None)
    assert len(pids) == 2
    assert first == pids[1]
    await service.close()


async def test_the_log_names_the_setting_that_ends_idle_connections_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends, ended = 0, asyncio.Event()
    loop = asyncio.get_running_loop()
    rest = notifier.PostgresNotifier._rest

    def count(self: notifier.PostgresNotifier, seconds: float) -> None:
        nonlocal ends
        ends += 1
        if ends == 3:
            loop.call_soon_threadsafe(ended.set)
        rest(self, seconds)

    monkeypatch.setattr(notifier.PostgresNotifier, "_rest", count)
    with caplog.at_level(logging.WARNING):
        service = Service(open_database(with_setting(postgres_url, "idle_session_timeout", 100)))
        await asyncio.wait_for(ended.wait(), PATIENCE)
        await service.jobs.enqueue([request()])
        await service.close()
    (warning,) = caplog.messages
    assert "set idle_session_timeout to 0 for this role, or to more than 15 s" in warning
