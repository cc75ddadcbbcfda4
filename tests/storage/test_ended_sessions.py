"""Sessions that PostgreSQL ends because they are idle, in a transaction or between two."""

from __future__ import annotations

import os
from collections.abc import Sequence

import psycopg
import pytest

from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.transaction import Transaction
from tests.conftest import SERVER_VARIABLE
from tests.waiting import until

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
