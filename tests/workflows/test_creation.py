"""Workflows that are created in one transaction: written together, and each of them checked against those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ojster.core.errors import Duplicate, InvalidRequest, OjsterError
from ojster.core.ids import new_id
from ojster.core.json_objects import read_members
from ojster.storage.postgres.transaction import PostgresTransaction
from ojster.storage.sqlite.database import SqliteDatabase
from ojster.storage.sqlite.transaction import SqliteTransaction
from ojster.storage.transaction import Transaction
from ojster.workflows.plan.values import NewWorkflow
from ojster.workflows.run import creation
from tests.conftest import Bench

pytestmark = pytest.mark.anyio

GROUP: dict[str, Any] = {"type": "group", "jobs": [{"type": "t", "args": []}]}


async def prepared(bench: Bench, **more: Any) -> NewWorkflow:
    return await bench.service.workflows.prepare(read_members(msgspec.json.encode(GROUP | more)))


async def created(bench: Bench, new: Sequence[NewWorkflow]) -> list[str | OjsterError]:
    return list(await bench.service.database.run_many(creation.create, new))


async def test_workflows_of_one_transaction_are_inserted_by_one_statement(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    on_file = isinstance(bench.service.database, SqliteDatabase)
    kind: type[Transaction] = SqliteTransaction if on_file else PostgresTransaction
    insert, update = kind.insert_rows, kind.update_rows

    def insert_rows(tx: Transaction, table: str, columns: Any, rows: Sequence[Any]) -> None:
        if table == "workflows" and rows:
            written.append(len(rows))
        insert(tx, table, columns, rows)

    def update_rows(tx: Transaction, table: str, columns: Any, rows: Sequence[Any]) -> None:
        assert table != "workflows" or not rows, "they were inserted as they are at the end"
        update(tx, table, columns, rows)

    monkeypatch.setattr(kind, "insert_rows", insert_rows)
    monkeypatch.setattr(kind, "update_rows", update_rows)
    ids = await created(bench, [await prepared(bench, params={"n": number}) for number in range(20)])
    assert written == [20]
    assert [(await bench.service.workflows.show(str(id))).state for id in ids] == ["running"] * 20


async def test_of_two_workflows_with_one_id_in_one_transaction_the_second_is_refused(bench: Bench) -> None:
    id = new_id()
    first, second = await created(bench, [await prepared(bench, id=id), await prepared(bench, id=id)])
    assert first == id
    assert isinstance(second, Duplicate)
    assert (await bench.service.workflows.show(id)).state == "running"


async def test_of_two_workflows_with_one_target_in_one_transaction_the_second_is_refused(bench: Bench) -> None:
    new = [await prepared(bench) for _ in range(2)]
    for one in new:
        one.target, one.target_key = "/gists", "gist /gists"
    first, second = await created(bench, new)
    assert first == new[0].id
    assert isinstance(second, Duplicate)
    assert second.details["existing_workflow_id"] == first


async def test_a_workflow_that_locks_targets_keeps_one_of_the_same_transaction_from_its_target(bench: Bench) -> None:
    new = [await prepared(bench) for _ in range(2)]
    new[0].target, new[0].target_key, new[0].locks = "/gists", "gist /gists", "^/gists"
    new[1].target, new[1].target_key = "/gists/1", "gist /gists/1"
    first, second = await created(bench, new)
    assert first == new[0].id
    assert isinstance(second, OjsterError), "the target is locked"


async def test_what_a_workflow_becomes_in_the_transaction_that_creates_it_is_kept(bench: Bench) -> None:
    new = await prepared(bench, name="nightly", params={"a": 1})
    (id,) = await created(bench, [new])
    shown = await bench.service.workflows.show(str(id))
    assert (shown.state, shown.name, msgspec.json.encode(shown.params)) == ("running", "nightly", b'{"a":1}')
    await bench.ack(await bench.fetch_one())
    assert (await bench.service.workflows.show(str(id))).state == "completed"


@pytest.mark.parametrize("arg", [1, {"$ref": "steps.0.result"}])
async def test_what_middleware_makes_of_a_step_is_checked_before_the_workflow_is_created(
    bench: Bench, arg: Any
) -> None:
    async def spoil(request: Any, next: Any) -> Any:
        return await next(request | ({"options": {"priority": 1_000}} if request["type"] == "b" else {}))

    bench.service.middleware.append(spoil)
    steps = [{"type": "a", "args": []}, {"type": "b", "args": [arg]}]
    with pytest.raises(InvalidRequest, match="priority"):
        await prepared(bench, type="chain", jobs=None, steps=steps)
