"""The shape of the house: what may import what, how large a file may be, and how far a job travels."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

import ojster
from tests.waiting import PATIENCE

SOURCE = Path(ojster.__file__).parent

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


@cache
def sources() -> dict[Path, tuple[str, ast.Module]]:
    """Return the text and the syntax tree of each file: to parse them all takes two seconds."""
    texts = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    return {path: (text, ast.parse(text)) for path, text in texts.items()}


def modules() -> dict[str, ast.Module]:
    trees = {}
    for path, (_, tree) in sources().items():
        name = ".".join(("ojster", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        trees[name] = tree
    return trees


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Yield what a module imports anywhere, also in functions and for type checkers alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                yield deeper if deeper in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


SQL = re.compile(
    r"\b(SELECT .* FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM|WHERE|ORDER BY|ON CONFLICT|RETURNING|(NOT )?EXISTS \()|"
    r"\bAND \w+(\.\w+)? (=|<|>|IN|IS|LIKE)",
    re.DOTALL,
)
"""What only SQL contains, in whole statements and in conditions."""


def glued_literals(source: str, tree: ast.Module) -> Iterator[ast.expr]:
    """Yield strings that are written in several pieces: side by side on several lines, or added to each other."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            if sum(SQL.search(text_of(literal)) is not None for literal in summands(node)) > 1:
                yield node
        elif is_text(node) and node.lineno != node.end_lineno and SQL.search(text_of(node)):
            written = ast.get_source_segment(source, node) or ""
            if not re.match(r"\w*(\"\"\"|''')", written):
                yield node


def summands(node: ast.expr) -> list[ast.expr]:
    """Return the strings that a sum adds."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return summands(node.left) + summands(node.right)
    return [node] if is_text(node) else []


def is_text(node: ast.AST) -> TypeGuard[ast.Constant | ast.JoinedStr]:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def text_of(node: ast.AST) -> str:
    """Return what a string or a sum of strings says, without the values in it."""
    parts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return " ".join(part for part in parts if isinstance(part, str))


def test_no_module_imports_itself_by_any_path() -> None:
    trees = modules()
    graph = {name: {one for one in imported(tree, set(trees)) if one in trees} for name, tree in trees.items()}
    assert sum(map(len, graph.values())) > 1_000
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_no_file_is_too_long() -> None:
    for path, (source, _) in sources().items():
        name = str(path.relative_to(SOURCE))
        lines = len(source.splitlines())
        assert lines <= MAX_FILE_LINES, f"{name} has {lines} lines"


def test_no_file_has_the_marks_of_a_merge() -> None:
    """No type checker reads the sources of the page in each run of the tests, and nothing else does before a build."""
    marks = re.compile(rf"^(?:{'<' * 7} |{'>' * 7} )", re.MULTILINE)
    root = Path(__file__).parent.parent
    files = [
        path
        for folder, suffixes in (("dashboard/src", (".ts", ".tsx", ".css")), ("docs", (".md",)), ("tests", (".py",)))
        for path in (root / folder).rglob("*")
        if path.suffix in suffixes
    ]
    assert len(files) > 100
    assert [path.name for path in files if marks.search(path.read_text())] == []


def test_no_function_is_too_long() -> None:
    """Docstrings do not count: they say what each parameter means."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = node.body[0] if ast.get_docstring(node) is not None else None
                described = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
                lines = (node.end_lineno or 0) - node.lineno + 1 - described
                assert lines <= MAX_FUNCTION_LINES, f"{name}.{node.name} has {lines} lines"


def test_no_sql_is_glued_together_from_strings() -> None:
    """A statement of more than one line is one literal with triple quotes, one clause a line."""
    glued = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, (source, tree) in sources().items()
        for node in glued_literals(source, tree)
        if SQL.search(text_of(node))
    ]
    assert not glued, glued


def test_a_statement_in_two_strings_counts_as_glued() -> None:
    """The test above would also pass if it found nothing."""
    two = "'SELECT a '\n'FROM t WHERE a = 1'"
    for source in (f"x = ({two})", f"x = (f{two})", "x = 'SELECT a FROM t' + y + f' WHERE a = {b}'"):
        assert any(SQL.search(text_of(literal)) for literal in glued_literals(source, ast.parse(source))), source
    for source in ("x = '''\n SELECT a\n FROM t\n'''", "x = 'SELECT a FROM t' + lock", "x = ('Say'\n'please.')"):
        assert not any(SQL.search(text_of(literal)) for literal in glued_literals(source, ast.parse(source))), source


LOCKS = re.compile(
    r"(\{|\+ \(?|, )tx\.(for_update|for_key_share|skip_locked)\b|"
    r"\.lock_keys\(|(^ +|\w )FOR UPDATE\b|\bBEGIN IMMEDIATE\b|pg_(try_)?advisory|\bflock\(|with_for_update\(",
    re.MULTILINE,
)
"""What takes a lock, or goes around locked rows."""


def test_each_lock_has_its_reason() -> None:
    """A comment, in the function that takes it or right above the statement of a module."""
    without = []
    for path, (source, tree) in sources().items():
        lines = source.splitlines()
        for node in functions_and_statements(tree):
            written = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            above = lines[node.lineno - 2] if node.lineno > 1 else ""
            if LOCKS.search(written) and not re.search(r"(^|\s)# ", f"{above}\n{written}"):
                without.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not without, without


def functions_and_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the functions of a module and of its classes, and its other statements."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.ClassDef) else [node]


NO_NAMES = {"found", "one", "given"}
"""What says nothing of the thing that it names."""


def named(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the variables, parameters and attributes that a module binds, and where."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None:
            yield node.name, node.lineno


def test_a_thing_is_called_what_it_is() -> None:
    vague = [
        f"{module}:{line} {name}"
        for module, tree in modules().items()
        for name, line in named(tree)
        if name in NO_NAMES
    ]
    assert vague == []


TWICE = {
    "Reader": "the register of capabilities loads it by this name",
    **dict.fromkeys(
        ("Job", "Released", "RetryWorkflow", "SkipRest", "Snooze", "Wait"),
        "code that jobs carry has the names of ``import ojster``, in a process of its own",
    ),
}
"""Names of classes in more than one module, with the reason."""


def test_a_private_variable_of_a_module_is_used() -> None:
    """Linters count the variables of modules as used, whatever their names."""
    idle = []
    for module, tree in modules().items():
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        for statement in tree.body:
            for target in ast.walk(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else ():
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    is_private = re.match(r"_[^_]|log$", target.id) is not None
                    idle += [f"{module}.{target.id}"] if is_private and target.id not in read else []
    assert idle == []


def test_a_class_has_a_name_of_its_own() -> None:
    """Names that begin with an underscore are those of one module."""
    defined = Counter(
        node.name
        for tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    )
    assert {name for name, times in defined.items() if times > 1} == TWICE.keys()


def test_a_job_passes_at_most_six_files_on_each_of_its_ways() -> None:
    root = SOURCE.parent.parent
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.ways"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    ways = {way: int(number) for way, number in re.findall(r"(?m)^(\w+): (\d+) files", shown)}
    assert ways.keys() == {"enqueue", "claim", "complete"}
    assert max(ways.values()) <= 6, shown


TESTS = Path(__file__).parent

WAITS = re.compile(r"asyncio\.(wait_for|timeout|wait)|(\w+\.)+(join|wait|result|aresult)|httpx\.\w+")
"""Calls that wait for something, at most for so long as one of their arguments says."""


def dotted(node: ast.expr) -> str:
    """Return names with dots between them; an empty text for any other expression."""
    if isinstance(node, ast.Attribute) and (inner := dotted(node.value)):
        return f"{inner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_now(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "time.monotonic"


def short_deadlines(source: str) -> Iterator[int]:
    """Yield the lines of a test on which something must happen within a few seconds."""
    tree = ast.parse(source)
    refused = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.With) and "pytest.raises(TimeoutError" in ast.unparse(node.items[0])
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and is_now(node.left):
            numbers = [node.right]
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.BinOp) and is_now(node.left.left):
            numbers = node.comparators
        elif isinstance(node, ast.Call) and WAITS.fullmatch(dotted(node.func)) and node not in refused:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
            numbers = [*node.args[-1:], *named]
        else:
            continue
        seconds = [one.value for one in numbers if isinstance(one, ast.Constant)]
        if any(isinstance(one, float | int) and 1 < one < PATIENCE for one in seconds):
            yield node.lineno


def test_what_must_happen_may_take_as_long_as_a_slow_machine_needs() -> None:
    """Deadlines are ``tests.waiting.PATIENCE``: a shorter one fails where the machine is slow or busy."""
    short = [
        f"{path.relative_to(TESTS)}:{number}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for number in short_deadlines(path.read_text())
    ]
    assert not short, short


def test_a_deadline_of_seconds_counts_as_short() -> None:
    """The test above would also pass if it found nothing."""
    for source in (
        "asyncio.wait_for(x, 5)",
        "async def f():\n async with asyncio.timeout(10): pass",
        "process.wait(30)",
        "handle.result(timeout=5)",
        "end = time.monotonic() + 10",
        "assert time.monotonic() - began < 20",
        "httpx.get(url, timeout=5)",
    ):
        assert list(short_deadlines(source)), source
    refused = "with pytest.raises(TimeoutError):\n handle.result(2)"
    for source in ("process.wait(PATIENCE)", refused, "asyncio.sleep(5)", "time.monotonic() - 10"):
        assert not list(short_deadlines(source)), source
