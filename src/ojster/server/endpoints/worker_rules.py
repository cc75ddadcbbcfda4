"""Endpoints for worker rules: operators' settings for single workers."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from ojster.fleet.answer_wire import DeletedRuleAnswer, WorkerRuleAnswer, WorkerRulesAnswer, show_rule
from ojster.fleet.wire import WORKER_RULE, WorkerRuleBody
from ojster.fleet.worker_rule import read_rule_members
from ojster.server.answer import Answer, encode
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def list_worker_rules(request: HttpRequest) -> Answer:
    """List the worker rules, including those of absent workers."""
    return Answer(encode(WorkerRulesAnswer([show_rule(rule) for rule in await request.service.fleet.rules()])))


async def change_worker_rule(request: HttpRequest) -> Answer:
    """Set whether a worker gets jobs, of which types, and what it provides. Omitted members keep their values.

    The rule overrides what the worker reports, and also applies to later workers with this id. A disabled worker gives
    its jobs back.
    """
    body = await request.read(WORKER_RULE)
    given = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    rule = await request.service.fleet.change_rule(request.path["id"], read_rule_members(given))
    return Answer(encode(WorkerRuleAnswer(show_rule(rule))))


async def forget_worker_rule(request: HttpRequest) -> Answer:
    """Delete the rule of a worker."""
    await request.service.fleet.forget_rule(request.path["id"])
    return Answer(encode(DeletedRuleAnswer(request.path["id"])))


_RULES: Final = f"{BASE}/admin/worker-rules"

ROUTES: Final = (
    Route("GET", _RULES, list_worker_rules, "Operators", answer=WorkerRulesAnswer),
    Route("PATCH", f"{_RULES}/{{id}}", change_worker_rule, "Operators", WorkerRuleBody, WorkerRuleAnswer),
    Route("DELETE", f"{_RULES}/{{id}}", forget_worker_rule, "Operators", answer=DeletedRuleAnswer),
)
