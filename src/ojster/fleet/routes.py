"""What do operators say of workers? (seed 003: matching)"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from ojster.fleet.worker_rule import read_rule_members
from ojster.server import wire
from ojster.server.request import Answer, Exchange, encode
from ojster.server.route import BASE, Route


async def list_worker_rules(exchange: Exchange) -> Answer:
    """List what is said of workers, present or not."""
    return Answer(encode({"items": [rule.to_wire() for rule in await exchange.engine.worker_rules()]}))


async def change_worker_rule(exchange: Exchange) -> Answer:
    """Say of a worker whether it gets jobs, of which types, and what it provides; what is left out stays.

    It stands over what the worker says of itself, and for the next worker of this id too. One that is disabled gives
    back what it holds.
    """
    body = await exchange.read(wire.WORKER_RULE)
    given = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    rule = await exchange.engine.change_worker_rule(exchange.path["id"], read_rule_members(given))
    return Answer(encode({"rule": rule.to_wire()}))


async def forget_worker_rule(exchange: Exchange) -> Answer:
    """Say nothing of a worker any more."""
    await exchange.engine.forget_worker_rule(exchange.path["id"])
    return Answer(encode({"deleted": True, "id": exchange.path["id"]}))


_RULES: Final = f"{BASE}/admin/worker-rules"

ROUTES: Final = (
    Route("GET", _RULES, list_worker_rules, "Operators"),
    Route("PATCH", f"{_RULES}/{{id}}", change_worker_rule, "Operators", wire.WorkerRuleBody),
    Route("DELETE", f"{_RULES}/{{id}}", forget_worker_rule, "Operators"),
)
