"""Every member of every request has an effect, is refused, or brings a warning."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from ojster.core.calls import Arguments
from ojster.core.wire import FromWorker
from ojster.server.endpoints import routes_of
from tests.options.requests import COMBINATIONS, INSIDE, SAY_THE_SAME, SCENES, TRIED_ELSEWHERE
from tests.options.scenes import Call, Scene, ShownBy, With, outcome

pytestmark = pytest.mark.anyio

_WORKFLOW: Final = {"type": "chain", "steps": [{"type": "a", "args": []}]}

BODIES: Final = {
    route.body.__name__: route.body
    for route in routes_of()
    if isinstance(route.body, type) and issubclass(route.body, msgspec.Struct)
}

ALL: Final = SCENES | INSIDE


def inside(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the types of the objects in a type, at any depth."""
    if isinstance(kind, msgspec.inspect.StructType):
        yield kind.cls
        for field in kind.fields:
            yield from inside(field.type)
    for name in ("types", "item_type", "value_type"):
        parts = getattr(kind, name, ())
        for part in parts if isinstance(parts, tuple) else (parts,):
            if isinstance(part, msgspec.inspect.Type):
                yield from inside(part)


def members_of(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def test_each_member_of_each_request_has_a_value_here() -> None:
    assert {name: set(scene.members) for name, scene in SCENES.items()} == {
        name: members_of(body) for name, body in BODIES.items()
    }
    kinds = {kind.__name__: kind for body in BODIES.values() for kind in inside(msgspec.inspect.type_info(body))}
    assert {name: set(scene.members) for name, scene in INSIDE.items()} == {
        name: members_of(kind) for name, kind in kinds.items() if name not in BODIES.keys() | TRIED_ELSEWHERE.keys()
    }


KEPT: Final = frozenset({"EnqueueBody", "BatchSchema", "JobTypeBody", "CronBody", "WorkflowBody", "DefinitionBody"})
"""Requests with jobs or workflows, whose unknown members are kept, or looked at with the rest of them."""


def test_unknown_members_of_each_request_are_refused_or_bring_a_warning_or_are_kept() -> None:
    for name, body in BODIES.items():
        is_strict = body.__struct_config__.forbid_unknown_fields
        assert is_strict or issubclass(body, Arguments | FromWorker) or name in KEPT, name


@cache
def functions_of(file: str) -> dict[str, str]:
    """Return the source of each test in a file below ``tests``."""
    source = (Path(__file__).parent.parent / file).read_text()
    return {
        node.name: ast.unparse(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


NAMED: Final = [value for scene in ALL.values() for value in scene.members.values() if isinstance(value, ShownBy)]


@pytest.mark.parametrize("named", NAMED, ids=lambda named: named.test)
def test_a_test_that_shows_an_effect_is_there(named: ShownBy) -> None:
    assert named.test in functions_of(named.file)


TRIED: Final = [
    f"{kind}.{member}"
    for kind, scene in ALL.items()
    for member, value in scene.members.items()
    if not isinstance(value, ShownBy)
]


@pytest.mark.parametrize("name", TRIED)
async def test_a_member_has_an_effect_or_is_refused_or_brings_a_warning(name: str) -> None:
    kind, member = name.split(".")
    scene: Scene = ALL[kind]
    value = scene.members[member]
    more = value if isinstance(value, With) else With(value)
    plain = await outcome(scene, scene.body(more.others), more)
    tried = await outcome(scene, scene.body({**more.others, member: more.value}), more)
    assert max(tried.status, plain.status) < 500
    if tried.status >= 400:
        assert (tried.status, tried.message) != (plain.status, plain.message)
    else:
        assert (tried.warnings, tried.seen) != (plain.warnings, plain.seen), "it is accepted, and does nothing"


@pytest.mark.parametrize(("kind", "members"), COMBINATIONS, ids=[str(n) for n in range(len(COMBINATIONS))])
async def test_members_without_effect_beside_others_are_refused_or_bring_a_warning(
    kind: str, members: dict[str, Any]
) -> None:
    scene = SCENES[kind]
    tried = await outcome(scene, scene.body(members), With(None))
    assert 400 <= tried.status < 500 or tried.warnings, tried.seen[0]


@pytest.mark.parametrize(("kind", "members", "others"), SAY_THE_SAME, ids=[str(n) for n in range(len(SAY_THE_SAME))])
async def test_null_and_defaults_and_equal_values_contradict_nothing(
    kind: str, members: dict[str, Any], others: dict[str, Any]
) -> None:
    scene = SCENES[kind]
    plain = await outcome(scene, scene.body(members), With(None))
    both = await outcome(scene, scene.body(members) | others, With(None))
    assert both.status < 300, both.message
    assert (both.warnings, both.seen) == (plain.warnings, plain.seen)


@pytest.mark.parametrize("kind", SCENES)
async def test_null_counts_as_absent_in_each_request(kind: str) -> None:
    scene = SCENES[kind]
    for member in scene.members.keys() - scene.body({}).keys():
        sent = await outcome(scene, scene.body({}) | {member: None}, With(None))
        plain = await outcome(scene, scene.body({}), With(None))
        assert (sent.status, sent.message) == (plain.status, plain.message), member


async def test_a_queue_that_a_workflow_has_anyhow_is_no_contradiction() -> None:
    scene = SCENES["CronBody"]
    made = await outcome(scene, scene.body({"type": None, "workflow": _WORKFLOW, "queue": "default"}), With(None))
    assert (made.status, made.warnings[0]) == (
        201,
        "The member 'queue' has no effect beside 'workflow'. Write it inside.",
    )


@pytest.mark.parametrize("version", ["1", "1.0", "1.0.0", 1])
async def test_a_version_may_be_written_in_several_ways(version: int | str) -> None:
    body = {"version": version, "schema": {"type": "array"}}
    made = await outcome(Scene(("PUT", "/admin/schemas/a/1", body), {}), body, With(None))
    assert made.status == 201, made.message


async def test_another_version_than_the_one_in_the_path_is_refused() -> None:
    body = {"version": "1.1", "schema": {"type": "array"}}
    refused = await outcome(Scene(("PUT", "/admin/schemas/a/1", body), {}), body, With(None))
    assert (refused.status, refused.message) == (400, "The version is '1' and '1.1'. Use one.")


@pytest.mark.parametrize(("mode", "status"), [("warn", 201), ("strict", 422), ("off", 201)])
async def test_the_template_of_a_cron_job_is_checked_by_the_schema_as_a_push_is(mode: str, status: int) -> None:
    schema: Call = ("POST", "/schemas", {"job_type": "a", "version": 1, "mode": mode, "schema": {"maxItems": 0}})
    template = {"type": "a", "args": [1]}
    pushed = await outcome(Scene(("POST", "/jobs", {}), {}, (schema,)), template, With(None))
    body = {"name": "c", "expression": "0 0 * * *", "job_template": template}
    made = await outcome(Scene(("POST", "/cron", {}), {}, (schema,)), body, With(None))
    assert (made.status, made.warnings, made.message) == (pushed.status, pushed.warnings, pushed.message)
    assert (made.status, bool(made.warnings)) == (status, mode == "warn")
