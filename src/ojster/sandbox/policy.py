"""The Python subset for code carried by jobs: RestrictedPython with a few additions, and the allowed modules.

The subset gives well-meaning code a clear error when it uses a forbidden feature. It does not contain hostile code;
``confine`` does, and does not rely on this module.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import operator
import string
import sys
import types
from _string import formatter_field_name_split  # type: ignore[import-not-found]  # of the standard library
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from RestrictedPython.compile import compile_restricted_exec
from RestrictedPython.Guards import guarded_iter_unpack_sequence, guarded_unpack_sequence, safe_builtins, safer_getattr
from RestrictedPython.transformer import INSPECT_ATTRIBUTES, IOPERATOR_TO_STR, RestrictingNodeTransformer

PRELOADED: Final = ("_strptime", "encodings.idna", "encodings.ascii", "encodings.latin_1")
"""Modules that the allowed modules import on first use."""

_EXTRA_BUILTINS: Final = (
    "all",
    "any",
    "ascii",
    "bin",
    "bytearray",
    "bytes",
    "dict",
    "enumerate",
    "filter",
    "format",
    "frozenset",
    "iter",
    "list",
    "map",
    "max",
    "min",
    "next",
    "reversed",
    "set",
    "sorted",
    "sum",
    "super",
    "tuple",
    "zip",
    "classmethod",
    "staticmethod",
    "property",
    "object",
)


class NotAllowed(SyntaxError):
    """The code uses a forbidden Python feature."""


class _Transformer(RestrictingNodeTransformer):
    """RestrictedPython's transformer, plus harmless features that authors expect."""

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:  # noqa: N802
        """Rewrite ``job["n"] += 1`` as ``a = job; b = "n"; a[b] = inplace("+=", a[b], 1)``, and attributes in this way.

        The object and the key are evaluated once, as Python does.
        """
        target = node.target
        if isinstance(target, ast.Name):
            return super().visit_AugAssign(node)
        before, load, store = self._item(target) if isinstance(target, ast.Subscript) else self._attribute(target)
        operands = [ast.Constant(IOPERATOR_TO_STR[type(node.op)]), load, self.visit(node.value)]
        result = ast.Call(ast.Name("_inplacevar_", ast.Load()), operands, [])
        statements = [*before, ast.Assign([store], result)]
        return [ast.fix_missing_locations(ast.copy_location(statement, node)) for statement in statements]

    def _item(self, target: ast.Subscript) -> tuple[list[ast.Assign], ast.expr, ast.expr]:
        """Return what assigns the object and the key to variables, what then reads the item, and what writes it."""
        owner, keep_owner = self._kept(target.value)
        key, keep_key = self._kept(target.slice)
        load = ast.Call(ast.Name("_getitem_", ast.Load()), [owner, key], [])
        return [keep_owner, keep_key], load, ast.Subscript(owner, key, ast.Store())

    def _attribute(self, target: ast.Attribute) -> tuple[list[ast.Assign], ast.expr, ast.expr]:
        """Return the same for an attribute."""
        self.visit(ast.copy_location(ast.Attribute(ast.Constant(None), target.attr, ast.Load()), target))  # checks it
        owner, keep = self._kept(target.value)
        load = ast.Call(ast.Name("_getattr_", ast.Load()), [owner, ast.Constant(target.attr)], [])
        return [keep], load, ast.Attribute(owner, target.attr, ast.Store())

    def _kept(self, value: ast.expr) -> tuple[ast.Name, ast.Assign]:
        """Return a new variable, and the assignment of a value to it."""
        name = self.gen_tmp_name()
        return ast.Name(name, ast.Load()), ast.Assign([ast.Name(name, ast.Store())], self.visit(value))

    def visit_arg(self, node: ast.arg) -> Any:
        """Ignore annotations: they may name what the code does not have."""
        node.annotation = None
        return super().visit_arg(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:  # noqa: N802
        """Ignore annotations."""
        node.returns = None
        return super().visit_FunctionDef(node)

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

    def visit_MatchClass(self, node: ast.MatchClass) -> ast.AST:  # noqa: N802
        """Allow patterns with attributes that the code may read."""
        for name in node.kwd_attrs:
            if name.startswith("_") or name in INSPECT_ATTRIBUTES:
                self.error(node, f'"{name}" is an invalid attribute name in a pattern.')
        return self.node_contents_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> ast.AST:  # noqa: N802
        """Allow patterns that bind a name, with the same check of the name as assignments."""
        if node.name is not None:
            self.check_name(node, node.name)
        return self.node_contents_visit(node)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> ast.AST:  # noqa: N802
        """Allow patterns of dictionaries."""
        if node.rest is not None:
            self.check_name(node, node.rest)
        return self.node_contents_visit(node)

    visit_MatchStar = visit_MatchAs  # noqa: N815
    visit_Match = visit_match_case = RestrictingNodeTransformer.node_contents_visit  # noqa: N815
    visit_MatchValue = visit_MatchSingleton = RestrictingNodeTransformer.node_contents_visit  # noqa: N815
    visit_MatchSequence = visit_MatchOr = RestrictingNodeTransformer.node_contents_visit  # noqa: N815


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
    allowed |= {name: builtin for name, builtin in vars(builtins).items() if _is_exception(builtin)}
    allowed |= {"__import__": import_, "getattr": _attribute, "hasattr": _hasattr, "type": _type_of}
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
        "_apply_": _apply,
        "_iter_unpack_sequence_": guarded_iter_unpack_sequence,
        "_unpack_sequence_": guarded_unpack_sequence,
        "_print_": Print,
        **values,
    }


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _type_of(value: Any) -> type:
    """Return the type of a value; ``type`` with three arguments, which makes classes, is not available."""
    return type(value)


class _Formatter(string.Formatter):
    """``str.format`` that reads only the attributes that code may read."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the value of a field and the argument that it begins with."""
        first, rest = formatter_field_name_split(field_name)
        value = self.get_value(first, args, kwargs)
        for is_attribute, name in rest:
            value = _attribute(value, name) if is_attribute else value[name]
        return value, first


def _attribute(target: Any, name: str, *default: Any) -> Any:
    """Return an attribute that code may read. RestrictedPython would return ``None`` for a missing attribute."""
    if isinstance(target, str) and name == "format":
        return lambda *args, **kwargs: _Formatter().vformat(target, args, kwargs)
    if isinstance(target, str) and name == "format_map":
        return lambda values: _Formatter().vformat(target, (), values)

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


def _apply(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function as ``f(*args)`` and ``f(**kwargs)`` do."""
    return function(*args, **kwargs)


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
