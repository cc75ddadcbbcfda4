"""What a claim costs: a plain one, and one beside each policy that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import apsw
import pytest

from ojster.capabilities import CAPABILITIES, Capability, extensions_of
from ojster.jobs.extension import Extension, install
from ojster.service import Service
from ojster.storage.postgres import pipeline
from ojster.storage.sqlite.database import SqliteDatabase
from tests.conftest import Bench, request

pytestmark = pytest.mark.anyio

MOST_STATEMENTS = 9
"""Statements of a claim of one plain job, with the begin and the end of its transaction (and the wake-up of others on
PostgreSQL): as many as before claims were a pipeline.
"""


def claims(capability: Capability) -> bool:
    """Whether a capability has claim policies."""
    return any(type(one).claim_policies is not Extension.claim_policies for one in extensions_of([capability]))


@contextmanager
def counted(service: Service) -> Iterator[list[str]]:
    """Record each execution of a statement in which data is read or written."""
    said: list[str] = []
    connections: list[apsw.Connection] = []
    if isinstance(service.database, SqliteDatabase):
        connections += [lane.run(lambda connection: connection) for lane in service.database._lanes]

    def note(cursor: apsw.Cursor, sql: str, parameters: Any) -> bool:
        if sql != "PRAGMA data_version":  # it reads no data
            said.append(sql)
        return True

    def recording(name: str) -> Any:
        real = getattr(pipeline.PipelineConnection, name)

        def send(self: pipeline.PipelineConnection, sql: str, *more: Any) -> Any:
            said.append(sql)
            return real(self, sql, *more)

        return patch.object(pipeline.PipelineConnection, name, send)

    real_together = pipeline.PipelineConnection.execute_together

    def together(self: pipeline.PipelineConnection, queries: Sequence[tuple[str, Any]]) -> Any:
        said.extend(sql for sql, _ in queries)
        return real_together(self, queries)

    for connection in connections:
        connection.exec_trace = note
    try:
        sends_together = patch.object(pipeline.PipelineConnection, "execute_together", together)
        with recording("execute"), recording("execute_many"), recording("send"), sends_together:
            yield said
    finally:
        for connection in connections:
            connection.exec_trace = None


async def statements_of_a_claim(bench: Bench) -> list[str]:
    """Return the statements of a plain claim: the fewest of three, because the server now and then reads more."""
    await bench.service.jobs.enqueue([request() for _ in range(4)])
    await bench.fetch_one(worker_id="w")
    claims = []
    for _ in range(3):
        with counted(bench.service) as said:
            await bench.fetch_one(worker_id="w")
        claims.append(said)
    return min(claims, key=len)


async def test_a_plain_claim_needs_no_more_statements_than_before(bench: Bench) -> None:
    said = await statements_of_a_claim(bench)
    assert len(said) <= MOST_STATEMENTS, "\n".join(said)
    assert sum(one.lstrip().startswith("SELECT") for one in said if "pg_notify" not in one) == 2, (
        "the policies in use, the jobs"
    )


@pytest.mark.parametrize("name", [one.name for one in CAPABILITIES if claims(one)])
async def test_a_policy_that_nobody_uses_costs_no_statement(bench: Bench, name: str) -> None:
    with_all = await statements_of_a_claim(bench)
    install(bench.service.database.memory, extensions_of(one for one in CAPABILITIES if one.name != name))
    without = await statements_of_a_claim(bench)
    assert len(with_all) == len(without), name


async def test_what_is_counted_grows_with_a_policy_that_is_used(bench: Bench) -> None:
    """The other tests would also pass if nothing were counted."""
    plain = await statements_of_a_claim(bench)
    limit = {"key": "k", "concurrency": 5}
    await bench.service.jobs.enqueue([request(rate_limit=limit, priority=10) for _ in range(4)])
    limited = await statements_of_a_claim(bench)
    assert len(limited) > len(plain)
