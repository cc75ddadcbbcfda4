"""Every option of every public call in Python changes what the call does, or a test elsewhere uses it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import MetaData

from ojster import App, Encryption, Graph, Run, chain, element, gate, reactions
from ojster.sqlalchemy import Outbox
from ojster.testing import FakeContext
from tests.options.test_options_in_python import SHOWN, SIGNATURES
from tests.options.test_options_of_commands import Asked, Recorder
from tests.options.test_options_that_programs_set import CHECKED

pytestmark = pytest.mark.anyio

TESTS: Final = Path(__file__).parent.parent

MODULES: Final = (
    "ojster",
    "ojster.testing",
    "ojster.middleware",
    "ojster.reactions",
    "ojster.sqlalchemy",
    "ojster.fastapi",
    "ojster.flask",
    "ojster.dashboard",
)

OF_THE_LIBRARY: Final = frozenset(
    {"Child", "Drained", "Job", "JobHandle", "JobInfo", "StepInfo", "WorkflowInfo", "FlowRun", "FlowType", "Flow"}
    | {"Run", "Step", "Workflow"}
)
"""Classes whose objects the library makes: programs do not set the options of their constructors."""

BY_THE_LIBRARY: Final = frozenset({"FlowType.request", "JobType.request"})
"""Methods that the library calls."""

TABLES: Final = SIGNATURES.keys() | CHECKED.keys() | SHOWN.keys() | {"Sharing"}
"""Calls whose options other tables of this folder try."""

Calls = Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]]

RECORDED: Final[Calls] = {
    "AppWorkflows.asend": (
        lambda run, **options: run._app.asend("n", **{"key": 1} | options),
        {"data": 7, "key": 2, "idempotency_key": "k"},
    ),
    "Run.aapprove": (lambda run, **options: run.aapprove("g", **options), {"notes": "n", "author": "ada"}),
    "Run.areject": (lambda run, **options: run.areject("g", **options), {"notes": "n", "author": "ada"}),
    "Run.anote": (lambda run, **options: run.anote("g", "n", **options), {"author": "ada"}),
    "Run.acancel": (lambda run, **options: run.acancel(**options), {"stop_active": True}),
    "Run.aresume": (lambda run, **options: run.aresume(**options), {"result": 7, "error": "e", "step": "g"}),
    "Run.aretry": (lambda run, **options: run.aretry(**options), {"step": "g"}),
    "Forkable.afork": (lambda run, **options: run.afork(**options), {"from_step": "g", "args": [7], "result": 7}),
    "RunMessages.asend": (
        lambda run, **options: run.asend("n", **options),
        {"data": 7, "step": "g", "idempotency_key": "k"},
    ),
    "RunMessages.apublished": (lambda run, **options: run.apublished(**options), {"step": "g"}),
}
"""Methods that call a server or a database, and a value of each of their options."""


def _reports(**options: Any) -> Any:
    context = FakeContext()
    context.progress(1, **options)
    return context.progress_reports, context.progress_data


RETURNED: Final[Calls] = {
    "collect": (
        lambda **options: reactions.collect("n", **options),
        {"collection": "c", "category": "x", "data": 7, "replace": False, "artifacts": {"a": 1}},
    ),
    "notify": (
        lambda **options: reactions.notify("c", **options),
        {"subject": "s", "text": "t", "to": ["a@b.org"], "cc": ["a@b.org"]},
    ),
    "record": (reactions.record, {"subject": "s", "context": "c"}),
    "skip_if_unchanged": (reactions.skip_if_unchanged, {"inputs": [7], "subject": "s", "context": "c"}),
    "skip_if_changed": (lambda **options: reactions.skip_if_changed("l", 1, **options), {"provides": "p"}),
    "element": (element, {"name": "other"}),
    "Graph": (lambda **options: Graph(**options).wire, {"name": "n"}),
    "Workflow.draw": (lambda **options: chain(gate(id="g")).draw(**options), {"format": "svg"}),
    "Encryption": (
        lambda **options: Encryption({"a": b"a" * 32, "b": b"b" * 32}, **options).key_id,
        {"current": "a"},
    ),
    "FakeContext.progress": (_reports, {"total": 4, "message": "m", "data": {"d": 1}}),
    "FakeContext.restored": (lambda **options: FakeContext().restored(**options), {"default": 7}),
    "Outbox": (lambda **options: Outbox(App(), MetaData(), **options).table.name, {"name": "other"}),
    "FakeContext": (
        lambda **options: (FakeContext(**options).job, FakeContext(**options).restored()),
        {"type": "other", "args": [7], "meta": {"m": 1}, "attempt": 2, "max_attempts": 5, "restored": 7},
    ),
}
"""Calls whose options change what they return, and a value of each."""

ELSEWHERE: Final[dict[str, str]] = {
    "Gzip": "client/test_codecs.py",
    "verify_signature": "core/test_signatures.py",
    "HandlerRegister.discover": "client/test_declaring.py",
    "FlowDeclarations.flow": "flows/test_pinned_flows.py",
    "Flow.map": "flows/test_windows_of_maps.py",
    "Flow.step": "flows/test_steps_in_transactions.py",
    "StepConnection.execute": "flows/test_steps_in_transactions.py",
    "HandlerRegister.orchestrator": "client/test_declaring.py",
    "Compensation.run": "flows/test_flows.py",
    "Depends": "worker/test_injection.py",
    "Messages.receive": "flows/test_broadcasts.py",
    "Messages.receive_many": "flows/test_broadcasts.py",
    "Messages.stream": "flows/test_streams.py",
    "RunMessages.stream": "flows/test_streams.py",
    "Run.aresult": "workflows/test_workflows_in_python.py",
    "JobHandle.aresult": "client/test_app.py",
    "JobHandle.alogs": "worker/test_kept_logs.py",
    "Run.draw": "workflows/test_workflows_in_python.py",
    "Graph.add": "workflows/test_workflows_in_python.py",
    "JobContext.progress": "worker/handlers.py",
    "JobContext.restored": "worker/handlers.py",
    "Orchestrator.callback": "workflows/test_orchestrators.py",
    "Orchestrator.ensure": "workflows/test_orchestrators.py",
    "Orchestrator.workflow": "workflows/test_orchestrators.py",
    "SharedProperties.aget": "workflows/test_definitions_in_python.py",
    "SharedProperties.aupdate": "workflows/test_definitions_in_python.py",
    "Worker.run": "client/test_app.py",
    "Worker.stop": "worker/test_worker.py",
    "JobTester": "testing/test_tester.py",
    "JobTester.aall": "testing/test_tester.py",
    "JobTester.adrain": "testing/test_tester.py",
    "crash_everywhere": "testing/test_crashes.py",
    "sentry_errors": "worker/test_middleware.py",
    "lifespan": "cli/test_wrong_uses.py",
    "job_router": "integrations/test_frameworks.py",
    "Ojster": "integrations/test_frameworks.py",
    "dashboard": "dashboard/test_wsgi.py",
    "Outbox.relay": "integrations/test_sqlalchemy.py",
    "asgi": "dashboard/test_serving.py",
    "wsgi": "dashboard/test_wsgi.py",
}
"""Files below ``tests`` that use the options of a call by their names."""

BY_POSITION: Final = frozenset(
    {
        "Messages.receive type",
        "Messages.receive_many type",
        "Messages.stream type",
        "RunMessages.stream type",
        "Run.draw format",
        "JobContext.progress total",
        "JobContext.progress message",
        "JobContext.progress data",
        "JobContext.restored default",
        "JobTester.aall type",
        "Outbox.relay most",
        "FlowDeclarations.flow type",
        "StepConnection.execute parameters",
        "Ojster app",
    }
)
"""Options that these files pass by their position."""


def options_of(call: Any) -> set[str]:
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return set()
    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return {
        parameter.name
        for parameter in parameters
        if parameter.kind is keyword or (parameter.kind is positional and parameter.default is not parameter.empty)
    }


def public_calls() -> Iterator[tuple[str, Any]]:
    """Yield each public function, class and method with its name; of plain twins, the asynchronous method alone."""
    for module_name in MODULES:
        module = import_module(module_name)
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
        for name in getattr(module, "__all__", own):
            value = getattr(module, name)
            if name.startswith("_") or not callable(value):
                continue
            if inspect.isclass(value) and issubclass(value, BaseException | str):
                continue
            yield name, value
            for method, function in inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else ():
                is_twin = hasattr(value, f"a{method}")
                if not method.startswith("_") and not is_twin and function.__module__.startswith("ojster"):
                    yield function.__qualname__, function


def with_options() -> dict[str, set[str]]:
    made = OF_THE_LIBRARY | BY_THE_LIBRARY | TABLES
    named = {name: options_of(call) for name, call in public_calls() if name not in made and "<" not in name}
    named["Workflow.request"] = set()
    return {name: options for name, options in named.items() if options and name not in ("Graph.request", "Step.set")}


def test_each_option_of_each_public_call_is_tried_here_or_used_by_another_test() -> None:
    wrong: dict[str, set[str]] = {}
    for name, options in with_options().items():
        if name in RECORDED or name in RETURNED:
            rest = options ^ (RECORDED.get(name) or RETURNED[name])[1].keys()
        else:
            source = (TESTS / ELSEWHERE[name]).read_text() if name in ELSEWHERE else ""
            rest = {option for option in options if not re.search(rf"\b{option}=", source)}
            rest -= {option for option in options if f"{name} {option}" in BY_POSITION}
        if rest:
            wrong[name] = rest
    assert wrong == {}
    assert (RECORDED.keys() | RETURNED.keys() | ELSEWHERE.keys()) == with_options().keys()


@pytest.mark.parametrize("name", [f"{call} {option}" for call, (_, options) in RETURNED.items() for option in options])
def test_an_option_changes_what_a_call_returns(name: str) -> None:
    call, option = name.split()
    make, values = RETURNED[call]
    assert make(**{option: values[option]}) != make()


@pytest.mark.parametrize("name", RECORDED)
async def test_an_option_changes_the_call_that_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, values = RECORDED[name]
    async with App("sqlite:///:memory:") as app:
        run: Run = await app.astart(chain(gate(id="g")))
        with monkeypatch.context() as patch:
            patch.setattr(App, "client", lambda self: Recorder())
            made = []
            for options in ({}, *({option: value} for option, value in values.items())):
                with pytest.raises(Asked) as asked:
                    await make(run, **options)
                made.append(re.sub(r"(?!01900000)[0-9a-f]{8}-[0-9a-f-]{27}", "", str(asked.value)))
    assert all(call != made[0] for call in made[1:]), made
