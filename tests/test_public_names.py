"""Every public name has a complete docstring, and the examples in the docstrings run."""

from __future__ import annotations

import ast
import doctest
import functools
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import ojster

SECTIONS: Final = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Examples")

WITHOUT_PARAMETERS: Final = {"JobState": "an enumeration: its members are documented as attributes"}
"""Public names that take arguments but need no section 'Parameters', with the reason."""

RAISED_BY_HELPERS: Final = {
    "JobType": "InvalidRequest",
    "SkipRest": "TypeError",
    "Snooze": "InvalidRequest",
    "Wait": "InvalidRequest",
    "batch": "TypeError",
    "chain": "TypeError",
    "code": "OSError",
    "error_of": "ValueError",
    "group": "TypeError",
    "result_of": "ValueError",
    "saga": "TypeError",
    "wait": "InvalidRequest",
}
"""Errors of public names that no ``raise`` statement of their own shows."""

PUBLIC: Final = {
    name: value
    for name in ojster.__all__
    if (inspect.isclass(value := getattr(ojster, name)) or inspect.isfunction(value)) and not typing.is_typeddict(value)
}
"""Public classes and functions; constants and typed dictionaries are left out."""

CLASSES: Final = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}

each_name: Final = pytest.mark.parametrize("name", sorted(PUBLIC))
each_class: Final = pytest.mark.parametrize("name", sorted(CLASSES))


def own_docstring(value: Any) -> str:
    """Return the docstring of a class or function itself, without that of a base class."""
    return inspect.cleandoc(vars(value).get("__doc__") or "") if inspect.isclass(value) else inspect.getdoc(value) or ""


def sections_of(text: str) -> dict[str, str]:
    """Return the sections of a numpy docstring, by title; the part before the first has the title ''."""
    found, title = {"": ""}, ""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line in SECTIONS and following == "-" * len(line):
            title = line
            found[title] = ""
        elif set(line) != {"-"}:
            found[title] += line + "\n"
    return found


def entries_of(section: str) -> set[str]:
    """Return the names that a section describes: those of its lines without indentation."""
    lines = re.findall(r"^\w.*$", section, re.MULTILINE)
    return {name for line in lines for name in line.rstrip(":").split(", ")}


def parameters_of(value: Any) -> set[str] | None:
    """Return the names of the parameters; ``None`` if the class takes the arguments of a built-in exception."""
    try:
        return set(inspect.signature(value).parameters)
    except ValueError:
        return None


def errors_raised_in(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the names of the classes in the ``raise`` statements of a function."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Raise):
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(raised, ast.Name) and raised.id[0].isupper() and raised.id != "AssertionError":
                yield raised.id


def methods_of(kind: type) -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Yield the public methods and properties that a class defines: name, function, and whether it is a property."""
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property) and value.fget is not None:
            yield name, value.fget, True
        elif isinstance(value, functools.cached_property):
            yield name, value.func, True
        elif isinstance(value, classmethod | staticmethod):
            yield name, value.__func__, False
        elif inspect.isfunction(value):
            yield name, value, False


@each_name
def test_it_has_a_docstring_with_a_summary(name: str) -> None:
    summary = sections_of(own_docstring(PUBLIC[name]))[""].strip()
    assert summary.partition("\n\n")[0].endswith((".", ":"))


@each_name
def test_its_parameters_are_described(name: str) -> None:
    if name in WITHOUT_PARAMETERS:
        pytest.skip(WITHOUT_PARAMETERS[name])
    taken = parameters_of(PUBLIC[name])
    described = entries_of(sections_of(own_docstring(PUBLIC[name])).get("Parameters", ""))
    assert described == ({"args"} if taken is None else taken)


@each_name
def test_the_result_of_a_function_is_described(name: str) -> None:
    if inspect.isfunction(PUBLIC[name]):
        assert sections_of(own_docstring(PUBLIC[name])).get("Returns", "").strip()


@each_name
def test_its_errors_are_described(name: str) -> None:
    value = PUBLIC[name]
    function = vars(value).get("__init__") if inspect.isclass(value) else value
    raised = set(errors_raised_in(function)) if inspect.isfunction(function) else set()
    if name in RAISED_BY_HELPERS:
        raised.add(RAISED_BY_HELPERS[name])
    assert raised <= entries_of(sections_of(own_docstring(value)).get("Raises", ""))


@each_class
def test_the_results_and_errors_of_its_methods_are_described(name: str) -> None:
    problems = []
    for method, function, is_property in methods_of(CLASSES[name]):
        sections = sections_of(inspect.getdoc(function) or "")
        returns = function.__annotations__.get("return") not in (None, "None")
        if not sections[""].strip():
            problems.append(f"{method}: no docstring")
        if returns and not is_property and not sections.keys() & {"Returns", "Yields"}:
            problems.append(f"{method}: no section 'Returns'")
        missing = set(errors_raised_in(function)) - entries_of(sections.get("Raises", ""))
        problems += [f"{method}: {error} is not described" for error in sorted(missing)]
    assert problems == []


@each_name
def test_its_example_runs_without_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OJSTER_DATABASE_URL", "OJSTER_FILES", "OJSTER_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    text = own_docstring(PUBLIC[name])
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert test.examples, "it has no example"
    assert "Examples" in sections_of(text)
    if "sqlite:///:memory:" in text:
        assert "app.close()" in text or "await app.aclose()" in text
    written: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False).run(test, out=written.append)
    assert outcome.failed == 0, "".join(written)
    assert list(tmp_path.iterdir()) == []
