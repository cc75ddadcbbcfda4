"""The Python subset for code carried by jobs: RestrictedPython with a few additions, and the allowed modules.

The subset gives well-meaning code a clear error when it uses a forbidden feature. It does not contain hostile code;
``confine`` does, and does not rely on this module.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import operator
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from RestrictedPython.compile import compile_restricted_exec
from RestrictedPython.Guards import (
    guarded_iter_unpack_sequence,
    guarded_unpack_sequence,
    safe_builtins,
    safer_getattr,
)
from RestrictedPython.transformer import RestrictingNodeTransformer

PRELOADED: Final = ("_strptime", "encodings.idna", "encodings.ascii", "encodings.latin_1")
"""Modules that the allowed modules import on first use."""

_EXTRA_BUILTINS: Final = (
    "all",
    "any",
    "bytearray",
    "dict",
    "enumerate",
    "filter",
    "frozenset",
    "iter",
    "list",
    "map",
    "max",
    "min",
    "next",
    "reversed",
    "set",
    "sum",
    "super",
    "classmethod",
    "staticmethod",
    "property",
    "object",
)


class NotAllowed(SyntaxError):
    """The code uses a forbidden Python feature."""


class _Transformer(RestrictingNodeTransformer):
    """RestrictedPython's transformer, plus three harmless features that authors expect."""

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:  # noqa: N802
        """Rewrite ``job["n"] += 1`` as ``job["n"] = job["n"] + 1``."""
        if not isinstance(node.target, ast.Subscript):
            return super().visit_AugAssign(node)
        source = ast.Subscript(node.target.value, node.target.slice, ast.Load())
        sum = ast.BinOp(ast.copy_location(source, node.target), node.op, node.value)
        assignment = ast.Assign([node.target], ast.copy_location(sum, node.value))
        return self.visit(ast.fix_missing_locations(ast.copy_location(assignment, node)))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:  # noqa: N802
        """Ignore annotations."""
        if node.value is None:
            return None
        assignment = ast.copy_location(ast.Assign([node.target], node.value), node)
        return self.visit(ast.fix_missing_locations(assignment))

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:  # noqa: N802
        """Allow ``nonlocal``, with the same check of names as ``global``."""
        for name in node.names:
            self.check_name(node, name)
        return node


def compile_body(source: str) -> types.CodeType:
    """Return the compiled source.

    Raises
    ------
    NotAllowed
        The source uses a forbidden Python feature, or has a syntax error.
    """
    compiled = compile_restricted_exec(source, "<body>", policy=_Transformer)
    if compiled.errors or compiled.code is None:
        raise NotAllowed("; ".join(str(error) for error in compiled.errors)[:2_000])
    return compiled.code


def namespace(
    modules: Mapping[str, types.SimpleNamespace],
    values: Mapping[str, Any],
    say: Callable[[str], None],
    *,
    files: bool,
) -> dict[str, Any]:
    """Return the globals of the code.

    Parameters
    ----------
    modules:
        The modules that the code can import, by name.
    values:
        Additional globals.
    say:
        Callback for the text of each ``print`` call.
    files:
        Whether ``open`` is available. Use it only in a confined process, which can reach only the scratch directory.
    """

    def import_(
        name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
    ) -> Any:
        if name in PRELOADED:  # C modules import these on behalf of the code, which cannot write such names itself
            return sys.modules[name]
        if level or name not in modules:
            raise ImportError(f"Module {name!r} is not allowed here. Allowed modules: {', '.join(sorted(modules))}.")
        if fromlist or "." not in name:
            return modules[name]
        top, _, rest = name.partition(".")
        return types.SimpleNamespace(**{rest: modules[name]}, __name__=top)

    class Print:
        def __init__(self, getattr: Any = None) -> None:
            return

        def _call_print(self, *objects: Any, sep: str | None = None, end: str | None = None, **_: Any) -> None:
            say((" " if sep is None else sep).join(map(str, objects)) + ("\n" if end is None else end))

    allowed = dict(safe_builtins) | {name: getattr(builtins, name) for name in _EXTRA_BUILTINS}
    allowed |= {"__import__": import_, "getattr": _attribute, "hasattr": _hasattr}
    if files:
        allowed["open"] = open
    return {
        "__builtins__": allowed,
        "__name__": "<body>",
        "__metaclass__": type,
        "_getattr_": _attribute,
        "_getitem_": operator.getitem,
        "_getiter_": iter,
        "_write_": lambda target: target,
        "_inplacevar_": _in_place,
        "_iter_unpack_sequence_": guarded_iter_unpack_sequence,
        "_unpack_sequence_": guarded_unpack_sequence,
        "_print_": Print,
        **values,
    }


def _attribute(target: Any, name: str, *default: Any) -> Any:
    """Return an attribute that code may read. RestrictedPython would return ``None`` for a missing attribute."""

    def get(target: Any, name: str, _: Any) -> Any:
        return getattr(target, name, *default)

    return safer_getattr(target, name, None, get)  # type: ignore[no-untyped-call]  # it has no annotations


def _hasattr(target: Any, name: str) -> bool:
    try:
        _attribute(target, name)
    except (AttributeError, NotImplementedError, TypeError):
        return False
    return True


_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "|=": operator.ior,
    "^=": operator.ixor,
    "&=": operator.iand,
    "//=": operator.ifloordiv,
    "@=": operator.imatmul,
}


def _in_place(name: str, left: Any, right: Any) -> Any:
    return _OPERATORS[name](left, right)


_FORBIDDEN_NAMES: Final = {
    "functools": frozenset({"update_wrapper", "wraps"}),  # they copy attributes of any name
    "collections": frozenset({"UserString"}),  # its format is not guarded
}


def load_modules(names: Sequence[str]) -> dict[str, types.SimpleNamespace]:
    """Import modules, and return the public names of each, without the modules that it imports itself.

    Raises
    ------
    ImportError
        A module does not exist.
    """
    return {name: _public(importlib.import_module(name)) for name in names}


def _public(module: types.ModuleType) -> types.SimpleNamespace:
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    withheld = _FORBIDDEN_NAMES.get(module.__name__, frozenset())
    offered = {name: getattr(module, name) for name in names if name not in withheld}
    own = {name: value for name, value in offered.items() if not isinstance(value, types.ModuleType)}
    return types.SimpleNamespace(**own)
