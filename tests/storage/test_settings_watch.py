"""Processes that share a SQLite file see what operators change in another one, also if its message is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ojster.core.access import Grant, Role
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.sqlite.notifier import SocketNotifier
from ojster.tenancy.tokens import tokens_by_id
from tests.conftest import request

pytestmark = pytest.mark.anyio


@pytest.fixture
async def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Service, Service]]:
    """Two services on one file, as in two processes, whose messages get lost."""
    monkeypatch.setattr(SocketNotifier, "ring", lambda notifier, topics: None)
    one, other = [Service(open_database(f"sqlite:///{tmp_path}/jobs.db")) for _ in range(2)]
    yield one, other
    await one.close()
    await other.close()


async def names(service: Service) -> set[str]:
    return {token.name for token in (await service.database.remembered(tokens_by_id)).values()}


@pytest.mark.parametrize("writes", [False, True])
async def test_a_transaction_sees_what_another_process_has_configured(
    services: tuple[Service, Service], writes: bool
) -> None:
    one, other = services

    async def work() -> None:
        await (other.jobs.enqueue([request("x")]) if writes else other.jobs.count())

    await work()
    assert await names(other) == set()
    for number in range(3):
        await one.tokens.create(f"ci{number}", [Grant(Role.VIEWER)])
        await work()
        assert await names(other) == {f"ci{one}" for one in range(number + 1)}


async def test_what_is_remembered_stays_while_others_only_work(services: tuple[Service, Service]) -> None:
    one, other = services
    await one.tokens.create("ci", [Grant(Role.VIEWER)])
    await other.jobs.count()
    known = await other.database.remembered(tokens_by_id)
    for _ in range(5):
        await one.jobs.enqueue([request("x")])
        await other.jobs.enqueue([request("x")])
        await other.jobs.count()
    assert await other.database.remembered(tokens_by_id) is known
