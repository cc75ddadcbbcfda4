"""Documents ``result = plain(aresult)`` as the method that it is, when the site is built: see ``plain_methods``."""

from __future__ import annotations

import re
from typing import Any

import griffe

DERIVED = re.compile(r"plain(_iterator)?\((a\w+)\)")


class PlainMethods(griffe.Extension):
    """Replaces each derived attribute of a class with a function that has the parameters of the asynchronous one."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the plain methods of a class."""
        for name, member in list(cls.members.items()):
            derived = DERIVED.fullmatch(str(member.value)) if isinstance(member, griffe.Attribute) else None
            if derived is not None and isinstance(source := cls.members[derived[2]], griffe.Function):
                cls.members[name] = _plain(name, source, member)  # keeps its place among the members


def _plain(name: str, source: griffe.Function, member: griffe.Attribute) -> griffe.Function:
    returns = str(source.returns).removeprefix("Async")
    method = griffe.Function(
        name,
        parameters=source.parameters,
        returns=returns,
        lineno=member.lineno,
        endlineno=member.endlineno,
        parent=member.parent,
    )
    method.docstring = griffe.Docstring(f"Wait for ``{source.name}``, and return what it returns.", parent=method)
    return method
