"""Plans of PostgreSQL that were made for a small table are not used when it has grown."""

from __future__ import annotations

import os

import psycopg
import pytest

from ojster.jobs.claim import claim
from ojster.jobs.claim_policy import Claim
from ojster.jobs.completion import acknowledge
from ojster.service import Service
from ojster.storage.call import for_each
from ojster.storage.open import open_database
from ojster.storage.postgres import statistics
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.transaction import Transaction
from tests.conftest import request, url_of_schema
from tests.storage.statements import success_of
from tests.storage.test_postgres_plans import FINISHED
from tests.waiting import LONG_WAIT

pytestmark = [pytest.mark.anyio, pytest.mark.needs("planner-settings")]


@pytest.mark.usefixtures("postgres_url")
async def test_a_plan_for_a_small_table_is_not_used_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first jobs after an idle night find a few rows. What is planned for these would read all of a burst."""
    url = url_of_schema(f"Grown-{os.getpid()}")  # it has to be quoted in SQL
    service = Service(open_database(f"{url}&connections=1", migrate=True))
    parsed = parse_postgres_url(url)
    try:
        with psycopg.connect(parsed.conninfo, options=f'-c search_path="{parsed.schema}"', autocommit=True) as other:
            if other.info.server_version < 150000:
                pytest.skip("counts of rows cannot be published at once")
            monkeypatch.setattr(statistics, "LOOK_SECONDS", LONG_WAIT)
            other.execute("TRUNCATE jobs")
            other.execute("VACUUM ANALYZE jobs")
            await service.jobs.enqueue([request("t") for _ in range(10)])
            await service.database.run(_rows_read_by_ten, None)
            other.execute(FINISHED.encode())
            other.execute("SELECT pg_stat_force_next_flush()")
            await service.jobs.enqueue([request("t") for _ in range(10)])
            monkeypatch.setattr(statistics, "LOOK_SECONDS", 0)
            monkeypatch.setattr(statistics, "LOOK_TRANSACTIONS", 1)
            read = await service.database.run(_rows_read_by_ten, None)
    finally:
        await service.close()
    assert read < 100  # of 5,020


@for_each
def _rows_read_by_ten(tx: Transaction, _: None) -> int:
    """Claim and complete ten plain jobs; return how many rows of jobs that has read."""
    before = _rows_read(tx)
    (jobs,) = claim(tx, [Claim(("default",), 10, "w")])
    acknowledge(tx, [success_of(job) for job in jobs])
    return _rows_read(tx) - before


def _rows_read(tx: Transaction) -> int:
    """Return how many rows of jobs the connection has read, as far as the database has not counted them yet."""
    read = "SELECT coalesce(sum(idx_tup_fetch + seq_tup_read), 0) FROM pg_stat_xact_user_tables WHERE relname = 'jobs'"
    return int(tx.execute(read)[0][0])
