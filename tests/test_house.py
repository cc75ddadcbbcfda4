"""The shape of the house: what may import what, how large a file may be, and how far a job travels."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ojster

SOURCE = Path(ojster.__file__).parent

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("ojster", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Yield what a module imports anywhere, also in functions and for type checkers alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                yield deeper if deeper in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_imports_itself_by_any_path() -> None:
    trees = modules()
    graph = {name: {one for one in imported(tree, set(trees)) if one in trees} for name, tree in trees.items()}
    assert sum(map(len, graph.values())) > 1_000
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_no_file_is_too_long() -> None:
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        lines = len(path.read_text().splitlines())
        assert lines <= MAX_FILE_LINES, f"{name} has {lines} lines"


def test_no_function_is_too_long() -> None:
    """Docstrings do not count: they say what each parameter means."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = node.body[0] if ast.get_docstring(node) is not None else None
                described = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
                lines = (node.end_lineno or 0) - node.lineno + 1 - described
                assert lines <= MAX_FUNCTION_LINES, f"{name}.{node.name} has {lines} lines"


def test_a_job_passes_at_most_six_files_on_each_of_its_ways() -> None:
    root = SOURCE.parent.parent
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.ways"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    ways = {way: int(number) for way, number in re.findall(r"(?m)^(\w+): (\d+) files", shown)}
    assert ways.keys() == {"enqueue", "claim", "complete"}
    assert max(ways.values()) <= 6, shown
