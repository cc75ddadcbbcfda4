"""What documentation shows is public, can be imported, and has a plain method for each asynchronous one."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ojster.core.calls import Calls

ROOT = Path(__file__).parent.parent

IMPORT = re.compile(r"^\s*(?:>>> |\.\.\. )?(?:from|import) (ojster(?:\.\w+)*)", re.MULTILINE)

PUBLIC = re.findall(
    r"`(ojster[.\w]*)`",
    "".join(re.findall(r"^\| `ojster.*?\|", (ROOT / "docs/stability.md").read_text(), re.MULTILINE)),
)


def shown() -> list[Path]:
    """Return the pages and programs that users read."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "adr" not in path.parts]
    return [*pages, *(ROOT / "examples").rglob("*.py"), ROOT / "README.md", ROOT / "llms.txt"]


def test_what_is_shown_imports_public_modules_alone() -> None:
    imported = {module: path for path in shown() for module in IMPORT.findall(path.read_text())}
    assert {module: path.name for module, path in imported.items() if module not in PUBLIC} == {}


INSTALLED = [
    name for name in PUBLIC if "django" not in name and (name != "ojster.openai_agents" or find_spec("agents"))
]
"""Those whose libraries are there."""


@pytest.mark.parametrize("module", INSTALLED)
def test_a_public_module_can_be_imported(module: str) -> None:
    assert import_module(module).__doc__


ASYNCHRONOUS_ALONE = {
    "ojster.handlers.agent.AgentTask": "for asynchronous handlers, which call language models",
    "ojster.handlers.compensation.Compensation": "a part of the function of a flow",
    "ojster.openai_agents.FlowRunner": "the function of a flow is a coroutine function",
    "ojster.pydantic_ai.FlowBackend": "agents call it",
    "ojster.pydantic_ai.FlowDurability": "agents call it",
    "ojster.handlers.flow.Flow": "the function of a flow is a coroutine function",
    "ojster.sandbox.sandbox.Sandbox": "workers run code in it",
    "ojster.server.application.Application": "an ASGI application",
    "ojster.service.Service": "the calls of a database, for an event loop",
    "ojster.worker.worker.Worker": "runs in the event loop of its process",
}
"""Public classes that synchronous programs do not use, with the reason."""

FOR_WORKERS = "The worker calls it."
"""What the docstring of a method says that neither handlers nor programs call."""


def public_classes() -> set[type]:
    """Return the classes of the public modules, and those that their methods and properties return."""
    waiting = [
        value
        for module in map(import_module, INSTALLED)
        for name in getattr(module, "__all__", vars(module))
        if inspect.isclass(value := getattr(module, name))
    ]
    classes: set[type] = set()
    while waiting:
        kind = waiting.pop()
        if kind.__module__.startswith("ojster.") and kind.__name__[0] != "_" and kind not in classes:
            classes.add(kind)
            if path_of(kind) not in ASYNCHRONOUS_ALONE:
                waiting += returned_by(kind)
    return classes


def path_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def returned_by(kind: type) -> Iterator[type]:
    """Yield the classes of the house that a class returns from its public methods and properties."""
    for name, member in inspect.getmembers(kind):
        function = member.fget if isinstance(member, property) else getattr(member, "func", member)
        if name[0] != "_" and inspect.isfunction(function):
            for word in re.findall(r"\w+", str(function.__annotations__.get("return"))):
                returned = sys.modules[function.__module__].__dict__.get(word)
                if inspect.isclass(returned):
                    yield returned


def asynchronous_methods() -> Iterator[tuple[type, str, Callable[..., Any]]]:
    for kind in public_classes():
        if path_of(kind) in ASYNCHRONOUS_ALONE or getattr(kind, "_is_protocol", False) or issubclass(kind, Calls):
            continue
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
            if is_async and name[0] != "_" and FOR_WORKERS not in (method.__doc__ or ""):
                yield kind, name, method


def test_no_public_class_is_the_asynchronous_one_of_two() -> None:
    assert [kind for kind in public_classes() if kind.__name__.startswith("Async")] == []


def test_each_asynchronous_method_has_a_plain_twin_with_the_same_signature() -> None:
    """The name of the asynchronous one begins with ``a``; the plain one takes the same and returns the same."""
    checked, problems = set(), []
    for kind, name, method in asynchronous_methods():
        twin = getattr(kind, name[1:], None)
        checked.add(f"{kind.__name__}.{name}")
        if name[0] != "a" or not inspect.isfunction(twin) or inspect.iscoroutinefunction(twin):
            problems.append(f"{kind.__name__}.{name} has no plain twin")
        elif shown_signature(twin) != shown_signature(method).replace("-> 'Async", "-> '"):
            problems.append(f"{kind.__name__}: {name}{shown_signature(method)}, but {shown_signature(twin)}")
    assert problems == []
    alone = {path for path in ASYNCHRONOUS_ALONE if find_spec("agents") or "openai_agents" not in path}
    assert alone <= set(map(path_of, public_classes()))
    assert {
        *(
            "App.astart",
            "App.aclose",
            "JobType.aenqueue_in",
            "JobHandle.aresult",
            "Run.awatch",
            "JobContext.aheartbeat",
        ),
        *("SharedCollection.aadd_file", "SharedProperties.aupdate", "JobTester.adrain", "FakeContext.anote"),
    } <= checked


def shown_signature(method: Callable[..., Any]) -> str:
    return str(inspect.signature(method))
