"""PostgreSQL refuses a statement for a reason that lies with an operator and may pass."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import pytest

from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.service import Service
from ojster.storage.call import for_each
from ojster.storage.open import open_database
from ojster.storage.transaction import Transaction

pytestmark = pytest.mark.anyio

REFUSED: Final = {
    "a time limit": ("SELECT set_config('statement_timeout', '1', true)", "SELECT pg_sleep(60)", "statement timeout"),
    "a cancellation": ("SELECT pg_cancel_backend(pg_backend_pid())", "SELECT pg_sleep(60)", "user request"),
    "a missing right": ("SET LOCAL ROLE pg_monitor", "SELECT count(*) FROM jobs", "permission denied"),
    "a missing table": ("SELECT 1", "SELECT count(*) FROM nowhere", "does not exist"),
    "a missing index": (
        "SELECT 1",
        "INSERT INTO queues (name, created_at) VALUES ('q', 1) ON CONFLICT (created_at) DO NOTHING",
        "no unique",
    ),
    "a missing schema": ("SELECT 1", "CREATE TABLE nowhere.nothing ()", "does not exist"),
}
"""Two statements of a transaction, of which the second is refused, and a part of the reason."""


@pytest.fixture
async def service(postgres_url: str) -> AsyncIterator[Service]:
    service = Service(open_database(postgres_url))
    yield service
    await service.close()


@for_each
def _run(tx: Transaction, statements: tuple[str, ...]) -> int:
    for statement in statements:
        tx.execute(statement)
    return len(statements)


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_refused_statement_is_an_outage_of_its_call_alone(service: Service, kind: str) -> None:
    *statements, reason = REFUSED[kind]
    refused = asyncio.ensure_future(service.database.run(_run, tuple(statements)))
    neighbor = asyncio.ensure_future(service.database.run(_run, ("SELECT 1",)))
    with pytest.raises(BackendUnavailable, match=reason):
        await refused
    assert await neighbor == 1


@pytest.mark.parametrize(
    ("statement", "error"), [("SELECT 1 FROM nowhere", BackendUnavailable), ("SELECT 1 / 0", InvalidRequest)]
)
async def test_what_only_reads_is_refused_in_the_same_way(
    service: Service, statement: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await service.database.read(_run, (statement,))
    assert await service.database.read(_run, ("SELECT 1",)) == 1


@for_each
def _go_on_after_a_failed_part(tx: Transaction, inside: int) -> int:
    """Catch the error of a part of the transaction, whose first statement fails because of one before the part."""
    with contextlib.ExitStack() as outer:
        for _ in range(inside):
            outer.enter_context(tx.savepoint())
        tx.execute("CREATE TABLE nowhere.nothing ()")
        with contextlib.suppress(Exception), tx.savepoint():
            tx.execute("SELECT 1")
        tx.execute("SELECT 1")
    return inside


@pytest.mark.parametrize("inside", [0, 1, 2])
async def test_a_statement_that_fails_before_a_part_of_the_transaction_is_named(service: Service, inside: int) -> None:
    with pytest.raises(BackendUnavailable, match='schema "nowhere" does not exist'):
        await service.database.run(_go_on_after_a_failed_part, inside)
    assert await service.database.run(_run, ("SELECT 1",)) == 1
