"""Mutation tests: make small changes to the code, one at a time, and count those that no test notices.

    python -m tests.mutants --sample 250 --seed 1 src/ojster/core src/ojster/jobs

1. All quick tests run once, on SQLite. Coverage tells which tests run which line.
2. Each file is parsed, and each change of `changes` is one mutant: `<` becomes `<=`, `and` becomes `or`, a condition
   becomes true, a call is left out. Docstrings, annotations, assertions and what only type checkers read stay.
3. A random sample of the mutants is tried. A mutant is tried in a fork of a process that has imported the libraries,
   but not Ojster: the fork imports the changed module in place of the file, and runs tests that run its line. A mutant
   is killed if one of them fails or takes too long. If none of the first tests fails, more are tried.

A mutant survives if all tests pass. It may mean that a test is missing, or that the change changes nothing.
Mutants on lines that no test runs count as survivors. Tests that start other processes cannot notice a mutant there.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import importlib.util
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import coverage
import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

WARM = """
apsw asyncio click cronsim email httpx msgspec hypothesis.strategies hypothesis.stateful jsonschema_rs prometheus_client
psycopg rfc8785 rich.console starlette.applications starlette.testclient uvicorn yaml
"""
"""Libraries that are imported once, before any fork."""

LEFT_OUT = {"chaos", "conformance", "integrations", "sandbox", "typing"}
"""Folders of tests that are slow or mostly look at other processes."""

OPTIONS = "-q -n 0 --assert=plain -p no:cacheprovider -W ignore::pytest.PytestAssertRewriteWarning".split()  # noqa: SIM905

Comparison = dict[type[ast.cmpop], type[ast.cmpop]]
COMPARISONS: Comparison = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Pow: ast.Mult,
}
TYPES = {"int", "str", "bytes", "float", "bool", "dict", "list", "tuple", "set", "frozenset", "object", "type"}


@dataclass
class Change:
    """One change of a syntax tree, and where to look for the tests that may notice it."""

    parent: ast.AST
    field: str
    index: int | None
    """Where the node stands if the field is a list."""

    node: ast.expr | ast.stmt
    new: ast.AST
    place: Place

    def __str__(self) -> str:
        return f"{_short(self.node)}  →  {_short(self.new)}"

    def apply(self) -> None:
        """Change the tree."""
        ast.copy_location(self.new, self.node)
        if self.index is None:
            setattr(self.parent, self.field, self.new)
        else:
            getattr(self.parent, self.field)[self.index] = self.new


@dataclass(frozen=True)
class Place:
    """What surrounds a node: its statement, and the names through which code of the module or a class is used."""

    lines: range = range(0)
    """Lines of the statement, without those of the statements within."""

    names: frozenset[str] = frozenset()
    """For code that runs when the module is imported."""

    in_function: bool = False


@dataclass(frozen=True)
class Mutant:
    """The change with the index `number` of a file."""

    path: Path
    number: int
    line: int
    text: str
    places: tuple[range, range]
    """Lines of the node, and lines of its statement: tests that run one of them run the mutant."""

    names: frozenset[str]
    """Tests that use one of these names, too."""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"

    @property
    def module(self) -> str:
        return ".".join(self.path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")

    def code(self) -> CodeType:
        """Return the compiled module with the change."""
        tree = ast.parse(self.path.read_text())
        list(changes(tree))[self.number].apply()
        return compile(ast.fix_missing_locations(tree), str(self.path), "exec")


def changes(tree: ast.Module) -> Iterator[Change]:
    """Yield all changes of a module, always in the same order."""
    return _visit(tree, Place())


def _visit(node: ast.AST, place: Place) -> Iterator[Change]:
    if _is_for_types(node):
        return
    if isinstance(node, ast.stmt):
        place = _place_of(node, place)
    for name, value in ast.iter_fields(node):
        if not _is_kept(node, name):
            children = value if isinstance(value, list) else [value]
            for index, child in enumerate(children):
                if isinstance(child, ast.AST) and not _is_docstring(node, child):
                    inside = place
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name == "body":
                        inside = Place(in_function=True)
                    yield from _changes_of(node, name, index if isinstance(value, list) else None, child, inside)
                    yield from _visit(child, inside)


def _place_of(node: ast.stmt, around: Place) -> Place:
    end = node.end_lineno or node.lineno
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():  # what remains are the defaults of its parameters
            return Place(range(node.body[0].lineno, end + 1), frozenset({node.name}), around.in_function)
        case ast.ClassDef():
            return Place(range(node.lineno, end + 1), around.names | {node.name}, around.in_function)
        case ast.If() | ast.For() | ast.AsyncFor() | ast.While() | ast.With() | ast.AsyncWith() | ast.Try():
            end = max(node.body[0].lineno - 1, node.lineno)
        case ast.Match():
            end = node.lineno
        case ast.Assign() | ast.AnnAssign() if not around.in_function:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
            return Place(range(node.lineno, end + 1), around.names | names)
    return Place(range(node.lineno, end + 1), around.names, around.in_function)


def _is_kept(node: ast.AST, name: str) -> bool:
    """Whether a field of a node stays as it is: an annotation, a decorator, `frozen=True`."""
    return name in ("annotation", "returns", "decorator_list", "bases", "ops", "op", "ctx") or (
        isinstance(node, ast.ClassDef) and name == "keywords"
    )


def _is_docstring(node: ast.AST, child: ast.AST) -> bool:
    return isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)


def _is_for_types(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.FunctionDef(name="__repr__"):
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef() if any(
            "overload" in ast.unparse(d) for d in node.decorator_list
        ):
            return True
        case ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec" | "NewType")):
            return True
        case ast.Subscript(value=ast.Name(id="Literal" | "Annotated" | "Callable" | "Union" | "Optional")):
            return True
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.BinOp(op=ast.BitOr()):
            return _is_type(node)
        case _:
            return False


def _is_type(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return _is_type(left) and _is_type(right)
        case ast.Constant(value=None):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in TYPES or (name[0].isupper() and not name.isupper())
        case ast.Subscript(value=value):
            return _is_type(value)
        case _:
            return False


def _changes_of(parent: ast.AST, name: str, index: int | None, node: ast.AST, place: Place) -> Iterator[Change]:
    """Yield the changes of one node, except those of its parts."""
    if isinstance(node, ast.expr | ast.stmt) and not _is_for_types(node):
        for new in _replacements(parent, name, node):
            yield Change(parent, name, index, node, new, place)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) < 120 else f"{text[:117]}..."


def _replacements(parent: ast.AST, name: str, node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in place of a node."""
    if name in ("test", "guard", "ifs") and isinstance(parent, ast.If | ast.IfExp | ast.match_case | ast.comprehension):
        yield ast.Constant(True)
        yield ast.Constant(False)
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for place, op in enumerate(ops):
                new: list[ast.cmpop] = [*ops[:place], COMPARISONS[type(op)](), *ops[place + 1 :]]
                yield ast.Compare(left, new, comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS and not (
            _is_text(left) or _is_text(right)
        ):
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in OPERATORS and not _is_text(value):
            yield ast.AugAssign(target, OPERATORS[type(op)](), value)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str() as value) if _is_key(parent, name):
            yield ast.Constant(f"XX{value}")
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_key(parent: ast.AST, name: str) -> bool:
    """Whether a string stands where it is compared or looked up."""
    match parent:
        case ast.Compare() | ast.MatchValue():
            return True
        case ast.Dict():
            return name == "keys"
        case ast.Subscript():
            return name == "slice"
        case ast.Call(func=ast.Attribute(attr="get" | "pop" | "setdefault")):
            return name == "args"
        case _:
            return False


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of a file."""
    mutants = []
    for number, change in enumerate(changes(ast.parse(path.read_text()))):
        node, place = change.node, change.place
        end = node.lineno if hasattr(node, "body") else node.end_lineno or node.lineno
        places = (range(node.lineno, end + 1), place.lines)
        names: frozenset[str] = frozenset() if place.in_function else place.names
        mutants.append(Mutant(path, number, node.lineno, str(change), places, names))
    return mutants


class Loader(SourceFileLoader):
    """Loads a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(mutant.path))
        self._code = mutant.code()

    def get_code(self, fullname: str) -> CodeType:
        """Return the changed code."""
        return self._code


class Finder(MetaPathFinder):
    """Finds a mutant in place of its file."""

    def __init__(self, mutant: Mutant) -> None:
        self._loader = Loader(mutant)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the one module."""
        if name != self._loader.name:
            return None
        return importlib.util.spec_from_file_location(name, self._loader.path, loader=self._loader)


class Chosen:
    """A pytest plugin that runs the given tests in the given order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._place = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave all other tests out."""
        chosen = [item for item in items if item.nodeid in self._place]
        items[:] = sorted(chosen, key=lambda item: self._place[item.nodeid])


@dataclass
class Map:
    """What the tests run."""

    files: dict[str, str] = field(default_factory=dict)
    """The files of the tests, and their digests."""

    seconds: dict[str, float] = field(default_factory=dict)
    """How long each test takes."""

    tests: list[str] = field(default_factory=list)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """By file and line, the tests that run it, as places in `tests`."""

    def at(self, path: Path, lines: Iterable[int]) -> set[str]:
        """Return the tests that run one of the lines of a file."""
        of_file = self.lines.get(str(path.relative_to(ROOT)), {})
        found = {self.tests[place] for line in lines for place in of_file.get(str(line), ())}
        return found & self.seconds.keys()

    def forget(self, tests: Iterable[str]) -> None:
        """Forget tests that have changed."""
        for test in tests:
            self.seconds.pop(test, None)

    def add(self, other: Map) -> None:
        """Add what other tests run."""
        shift = len(self.tests)
        self.tests += other.tests
        self.seconds |= other.seconds
        for file, by_line in other.lines.items():
            of_file = self.lines.setdefault(file, {})
            for line, places in by_line.items():
                of_file.setdefault(line, []).extend(place + shift for place in places)


class Recorder:
    """A pytest plugin that records which test runs which line."""

    def __init__(self) -> None:
        self.map = Map()
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[f"{SOURCE}/*"], concurrency=["thread"]
        )
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave PostgreSQL out."""
        items[:] = [item for item in items if not _needs_postgres(item)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record one test."""
        self._coverage.switch_context(item.nodeid)
        began = time.perf_counter()
        result = yield
        self.map.seconds[item.nodeid] = round(time.perf_counter() - began, 4)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what does not pass: it says nothing about a mutant."""
        if report.outcome != "passed":
            self._failed.add(report.nodeid)

    def pytest_sessionstart(self) -> None:
        """Start before the first module is imported."""
        self._coverage.start()

    def pytest_sessionfinish(self) -> None:
        """Gather the lines."""
        self._coverage.stop()
        data = self._coverage.get_data()
        for test in self._failed:
            self.map.seconds.pop(test, None)
        self.map.tests = list(self.map.seconds)
        places = {test: place for place, test in enumerate(self.map.tests)}
        for file in data.measured_files():
            by_line = data.contexts_by_lineno(file)
            self.map.lines[str(Path(file).relative_to(ROOT))] = {
                str(line): [places[test] for test in tests if test in places] for line, tests in by_line.items()
            }


def _needs_postgres(item: pytest.Item) -> bool:
    return "postgres" in item.nodeid or any("postgres" in name for name in getattr(item, "fixturenames", ()))


def in_fork(act: Callable[[], int], seconds: float, log: Path | None = None) -> int | None:
    """Run a function in a process of its own and return its result, or None if it took too long."""
    child = os.fork()
    if child == 0:
        os.setsid()
        out = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        code = 70
        try:
            code = act()
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    ends = time.monotonic() + seconds
    try:
        while time.monotonic() < ends:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def recorded(keep: Path) -> Map:
    """Run all quick tests, or only those that have changed since they were run on the same code."""
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCE.rglob("*.py")))).hexdigest()[:16]
    file, log = keep / f"{key}.json", keep / "tests.log"
    map = Map(**json.loads(file.read_text())) if file.exists() else Map()
    tests = {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("test_*.py")}
    now = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in tests.items()}
    left_out = {name for name, path in tests.items() if LEFT_OUT & set(path.parts)}
    changed = [name for name in sorted(now.keys() - left_out) if map.files.get(name) != now[name]]

    def record() -> int:
        recorder = Recorder()
        pytest.main([*OPTIONS, "-m", "not slow and not thorough", *changed], [recorder])
        gone = {*changed, *(map.files.keys() - now.keys())}
        map.forget(test for test in map.tests if test.partition("::")[0] in gone)
        map.add(recorder.map)
        map.files = now
        file.write_text(json.dumps(vars(map)))
        return 0

    if changed:
        print(f"Running the tests of {len(changed)} files, to see which line each of them runs ...", flush=True)
        if in_fork(record, 3600, log) != 0:
            raise SystemExit(f"The tests cannot run: see {log}")
        map = Map(**json.loads(file.read_text()))
    return map


def _name_of(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str() as name):
            return name
        case _:
            return ""


class Choice:
    """Chooses the tests that may notice a mutant."""

    def __init__(self, map: Map) -> None:
        self._map = map
        self._uses: defaultdict[str, list[tuple[Path, int]]] = defaultdict(list)
        self._made_of: defaultdict[str, set[str]] = defaultdict(set)
        for path in SOURCE.rglob("*.py"):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if name := _name_of(node):
                    self._uses[name].append((path, getattr(node, "lineno", 0)))
            for one in tree.body:
                if isinstance(one, ast.Assign | ast.AnnAssign):
                    targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                    made = {name for target in targets if (name := _name_of(target))}
                    for node in ast.walk(one):
                        self._made_of[_name_of(node)] |= made

    def _names(self, names: Iterable[str]) -> set[str]:
        """Return these names, and those of what is made of them when a module is imported."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._made_of[name]
        return found

    def tests(self, mutant: Mutant, seconds: float) -> list[str]:
        """Return tests that run the mutant and together take no longer than `seconds`, the most promising first."""
        own, around = mutant.places
        running = self._map.at(mutant.path, own) or self._map.at(mutant.path, around)
        for name in self._names(mutant.names):
            for path, line in self._uses[name]:
                running |= self._map.at(path, [line])
        words = set(mutant.path.stem.split("_"))

        def rank(test: str) -> tuple[bool, bool, float]:
            file = Path(test.partition("::")[0])
            return (
                not words & set(file.stem.split("_")),
                file.parts[1] not in mutant.path.parts,
                self._map.seconds[test],
            )

        near = [test for test in sorted(running, key=rank) if not rank(test)[0]]
        functions: defaultdict[str, list[str]] = defaultdict(list)
        for test in sorted(running.difference(near), key=rank):
            functions[test.partition("[")[0]].append(test)
        turns = max(map(len, functions.values()), default=0)
        in_turn = [tests[turn] for turn in range(turns) for tests in functions.values() if turn < len(tests)]
        chosen: list[str] = []
        used = 0.0
        for some, room in ((near, seconds / 2), (in_turn, seconds)):  # not only variants of a few tests
            for test in some:
                cost = self._map.seconds[test] + 0.005
                if not chosen or used + cost <= room:
                    chosen.append(test)
                    used += cost
        return chosen


class End(Enum):
    """What becomes of a mutant."""

    SURVIVES = "survives"
    KILLED = "killed"
    TOO_LONG = "takes too long"


def outcome(mutant: Mutant, tests: Sequence[str], limit: float) -> End:
    """Run tests on a mutant until one fails."""
    with tempfile.TemporaryDirectory(prefix="ojster-mutant-") as folder:

        def run() -> int:
            os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder  # what one mutant breaks is no hint for the next
            sys.meta_path.insert(0, Finder(mutant))
            files = sorted({str(ROOT / test.partition("::")[0]) for test in tests})
            options = [*OPTIONS, "-x", "--hypothesis-seed=0", f"--basetemp={folder}/pytest"]
            return int(pytest.main([*options, *files], [Chosen(tests)]))

        code = in_fork(run, limit)
    return End.TOO_LONG if code is None else End.SURVIVES if code == 0 else End.KILLED


def interval(killed: int, tried: int) -> tuple[float, float]:
    """Return the interval that contains the share of killed mutants with 95 % confidence (Wilson)."""
    z, n, p = 1.96, max(tried, 1), killed / max(tried, 1)
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def main() -> None:
    """Try a sample of mutants and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="folders or files with the code to change")
    parser.add_argument("--sample", type=int, default=250, help="how many mutants are tried (default: 250)")
    parser.add_argument("--seed", type=int, default=1, help="which sample is drawn (default: 1)")
    parser.add_argument("--only", help="try only mutants whose description contains this, such as retry.py:42:")
    parser.add_argument(
        "--keep",
        type=Path,
        default=Path(tempfile.gettempdir()) / "ojster-mutants",
        help="where to keep the map of lines and tests",
    )
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    os.environ.setdefault("OJSTER_TEST_POSTGRES", "none")  # no test that needs PostgreSQL is run
    for library in WARM.split():
        with suppress(ImportError):
            importlib.import_module(library)

    choice = Choice(recorded(given.keep))
    files = sorted(
        {file.resolve() for path in given.paths for file in ([path] if path.is_file() else path.rglob("*.py"))}
    )
    population = [mutant for file in files for mutant in mutants_of(file)]
    if given.only:
        population = [mutant for mutant in population if given.only in str(mutant)]
    sample = random.Random(given.seed).sample(population, min(given.sample, len(population)))
    gc.freeze()  # the forks share what is there
    killed, too_long = 0, 0
    survivors: list[str] = []
    for tried, mutant in enumerate(sample, 1):
        fewer, all = choice.tests(mutant, 3), choice.tests(mutant, 18)
        more = [test for test in all if test not in set(fewer)]
        end = End.SURVIVES
        if fewer:
            end = outcome(mutant, fewer, 60)
        if more and end is End.SURVIVES:
            end = outcome(mutant, more, 120)
        killed += end is not End.SURVIVES
        if end is End.SURVIVES:
            survivors.append(f"{mutant}{'' if fewer else '   (no test runs it)'}")
            print(f"\nsurvives: {survivors[-1]}", flush=True)
        elif end is End.TOO_LONG:
            too_long += 1
            print(f"\ntakes too long: {mutant}", flush=True)
        print(f"\r{tried} of {len(sample)} tried, {killed} killed", end="", flush=True)
    low, high = interval(killed, len(sample))
    print(
        f"\n\n{killed} of {len(sample)} mutants killed ({killed / max(len(sample), 1):.1%}; {low:.1%} to {high:.1%}),"
    )
    print(f"{too_long} of them because they take too long;")
    print(f"a sample of {len(population)} mutants. The survivors:")
    for line in sorted(survivors):
        print(f"  {line}")


if __name__ == "__main__":
    main()
