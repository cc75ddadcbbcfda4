"""Finds calls in the functions of flows that come out otherwise the next time: clocks, chance, input and output.

The source is read: the body of a flow, and the functions of its module that it calls directly. What is handed to
``flow.step`` is a step, and may do all of this.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import logging
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import msgspec

log = logging.getLogger(__name__)

IGNORE: Final = "# flow: ignore"
"""What the line of a call ends with that is meant so."""

_TIME: Final = "Take the time from flow.now."
_CHANCE: Final = "Take random numbers from flow.random, and ids from flow.uuid()."
_DRAW: Final = "Draw it in a step: await flow.step(…)."
_OUTSIDE: Final = "Do it in a step: await flow.step(…)."
_WAIT: Final = "Wait without a worker: await flow.sleep(…)."
_LOOP: Final = "A flow has an event loop of its own: await it, or call it in a step."

_CALLS: Final = {
    **dict.fromkeys(
        (
            *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"),
            *("time.perf_counter_ns", "time.process_time"),
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
        ),
        _TIME,
    ),
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "os.getrandom"), _CHANCE),
    **dict.fromkeys(("os.urandom", "hash"), _DRAW),
    "time.sleep": _WAIT,
    **dict.fromkeys(("io.open", "input", "os.open", "os.system", "os.popen"), _OUTSIDE),
    **dict.fromkeys(("asyncio.to_thread", "asyncio.open_connection", "asyncio.open_unix_connection"), _OUTSIDE),
    **dict.fromkeys(("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"), _OUTSIDE),
    "asyncio.run": _LOOP,
}
"""Calls, and what to do instead."""

_MODULES: Final = {
    **dict.fromkeys(("random", "numpy.random"), _CHANCE),
    "secrets": _DRAW,
    **dict.fromkeys(
        (
            *("aiohttp", "httpx", "requests", "urllib.request", "urllib3", "http.client", "socket", "smtplib"),
            *("subprocess", "multiprocessing", "threading", "concurrent.futures", "shutil", "tempfile"),
            *("asyncpg", "psycopg", "psycopg2", "sqlite3", "redis", "boto3"),
        ),
        _OUTSIDE,
    ),
}
"""Modules of which every call counts, and what to do instead."""

_METHODS: Final = dict.fromkeys(("read_text", "read_bytes", "write_text", "write_bytes", "run_in_executor"), _OUTSIDE)
"""Methods that do the same whatever object has them."""

_INSIDE: Final = {
    "posix": "os",
    "nt": "os",
    "_io": "io",
    "_thread": "threading",
    "_socket": "socket",
    "_random": "random",
}
"""Modules that others show under their own name."""


class FlowWarning(UserWarning):
    """The function of a flow calls something that comes out otherwise when it runs again.

    A worker warns once for each place when it runs the flow. ``ojster flows check`` lists all places.

    Parameters
    ----------
    args:
        The call, and what to do instead.

    Examples
    --------
    >>> import warnings
    >>> from ojster import FlowWarning
    >>> warnings.simplefilter("error", FlowWarning)  # in tests: such a flow fails
    """


class FlowFinding(msgspec.Struct, frozen=True, order=True):
    """A call in the function of a flow.

    Parameters
    ----------
    file, line, column:
        The place, as linters say it: lines and columns count from 1.
    call:
        What is called.
    advice:
        What to do.
    flow:
        Name of the function.
    """

    file: str
    line: int
    column: int
    call: str
    advice: str
    flow: str

    def __str__(self) -> str:
        """Return the finding as linters print it."""
        return f"{self.file}:{self.line}:{self.column}: {self.message}"

    @property
    def message(self) -> str:
        """What it is, and what to do."""
        return f"{self.call}() comes out otherwise when the flow {self.flow} runs again. {self.advice}"


def check_flow(function: Callable[..., Any]) -> list[FlowFinding]:
    """Return the calls in the function of a flow, and in those of its module that it calls, that do not belong there.

    Nothing is found in a function without source, such as one that was typed into a console.
    """
    waiting, seen = [inspect.unwrap(function)], set[types.CodeType]()
    findings: set[FlowFinding] = set()
    while waiting:
        checked: Any = waiting.pop()
        if checked.__code__ in seen:
            continue
        seen.add(checked.__code__)
        tree = _tree_of(checked)
        if tree is not None:
            visitor = _Calls(checked, function.__qualname__)
            visitor.look_at(tree.body)
            findings |= visitor.findings
            waiting += visitor.called
    return sorted(findings)


def warn_of(function: Callable[..., Any]) -> None:
    """Warn of such calls, once in a process for each function. What asyncio has is refused when it is called."""
    code = getattr(function, "__code__", None)
    if code is None or code in _warned:
        return
    _warned.add(code)
    try:
        findings = check_flow(function)
    except Exception as error:  # such as a SystemError, with which Python 3.11 fails to read source now and then
        log.debug("the source of the flow %s could not be checked: %r", function, error)
        return
    for finding in findings:
        if not finding.call.startswith("asyncio."):
            warnings.warn_explicit(finding.message, FlowWarning, finding.file, finding.line)


_warned: Final = set[types.CodeType]()


@lru_cache(4)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _tree_of(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the source of a function, with its places in the file."""
    code: types.CodeType = function.__code__
    try:
        module = _parsed("".join(linecache.getlines(code.co_filename, function.__globals__)))
    except SyntaxError:
        return None
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


class _Calls(ast.NodeVisitor):
    """Looks at the calls of one function."""

    def __init__(self, function: Any, flow: str) -> None:
        self._file = function.__code__.co_filename
        self._flow = flow
        self._module = function.__module__
        code: types.CodeType = function.__code__
        around = {**vars(builtins), **function.__globals__}
        own = {*code.co_varnames, *code.co_cellvars}
        self._names: dict[str, Any] = {name: value for name, value in around.items() if name not in own}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # nothing is in it so far
                self._names[name] = cell.cell_contents
        self._steps: set[str] = set()
        """Names of the functions that are handed to steps."""
        self.findings: set[FlowFinding] = set()
        self.called: list[Any] = []

    def look_at(self, body: list[ast.stmt]) -> None:
        """Look at the statements of the function."""
        calls = [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call)]
        handed = [argument for call in calls if _is_step(call) for argument in call.args]
        self._steps = {argument.id for argument in handed if isinstance(argument, ast.Name)}
        for statement in body:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Look into a function inside, unless it is a step."""
        if node.name not in self._steps:
            self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Look into a coroutine function inside, unless it is a step."""
        if node.name not in self._steps:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        """Note a module that the function imports."""
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            self._names[alias.asname or name] = _Dotted(name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Note a name that the function imports."""
        for alias in node.names:
            self._names[alias.asname or alias.name] = _Dotted(f"{node.module}.{alias.name}")

    def visit_Call(self, node: ast.Call) -> None:
        """Look at a call, and at its arguments, which are made in the function."""
        self.visit(node.func)
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if not (_is_step(node) and isinstance(argument, ast.Lambda)):
                self.visit(argument)
        target = self._target_of(node.func)
        function = target if inspect.isfunction(target) else None
        if function is not None and function.__module__ == self._module:
            self.called.append(function)
            return
        name = _name_of(target)
        advice = _advice_on(name)
        if advice is None and isinstance(node.func, ast.Attribute) and target is None:
            name, advice = node.func.attr, _METHODS.get(node.func.attr)
        if advice is not None and name is not None:
            self._note(node, name, advice)

    def _note(self, node: ast.Call, name: str, advice: str) -> None:
        if not linecache.getline(self._file, node.lineno).rstrip().endswith(IGNORE):
            self.findings.add(FlowFinding(self._file, node.lineno, node.col_offset + 1, name, advice, self._flow))

    def _target_of(self, node: ast.expr) -> Any:
        """Return what a name, or a path of attributes of modules and classes, stands for; ``None``: not known."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        holder = self._target_of(node.value)
        if isinstance(holder, _Dotted):
            return _Dotted(f"{holder}.{node.attr}")
        if isinstance(holder, types.ModuleType) or inspect.isclass(holder):
            return _Dotted(f"{_name_of(holder)}.{node.attr}")
        return None


def _is_step(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "step"


class _Dotted(str):
    """A name that is not looked up."""

    __slots__ = ()


def _name_of(target: Any) -> str | None:
    """Return the name of a call with that of its module."""
    if isinstance(target, _Dotted):
        return str(target)
    if isinstance(target, types.ModuleType):
        return target.__name__
    owner = getattr(target, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):  # such as random.random, a method of an object
        module = (owner if inspect.isclass(owner) else type(owner)).__module__
        inner = f"{owner.__qualname__}." if inspect.isclass(owner) else ""
        return f"{module}.{inner}{target.__name__}" if hasattr(target, "__name__") else None
    if not callable(target) or not hasattr(target, "__qualname__"):
        return None
    module = _INSIDE.get(target.__module__, target.__module__)
    return target.__name__ if module == "builtins" else f"{module}.{target.__qualname__}"


def _advice_on(name: str | None) -> str | None:
    """Return what to do instead of a call; ``None``: it may stay."""
    if name is None:
        return None
    if name.startswith("asyncio."):  # such as asyncio.threads.to_thread
        name = f"asyncio.{name.rpartition('.')[2]}"
    if name in _CALLS:
        return _CALLS[name]
    if name.startswith("random.Random"):  # a generator with a seed is the same each time
        return None
    return next((advice for module, advice in _MODULES.items() if f"{name}.".startswith(f"{module}.")), None)
