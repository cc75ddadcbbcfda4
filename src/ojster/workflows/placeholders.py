"""Placeholders in the arguments of steps, for what is known only when a step starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final


class Placeholder(dict[str, Any]):
    """A placeholder in the arguments of a step, for a value that is known only when the step starts.

    ``reference["member"]`` and ``reference[0]`` refer to a part of the value.
    """

    def __init__(self, text: str) -> None:
        super().__init__({"$ref": text})
        self._text = text

    def __getitem__(self, part: str | int) -> Placeholder:
        return Placeholder(f"{self._text}.{part}")

    def __repr__(self) -> str:
        return f"<Reference {self._text}>"

    def __format__(self, specification: str) -> str:
        raise TypeError(f"The value of {self._text} is unknown until its step starts. Pass it as an argument.")


def found(lookup: str | Mapping[str, Any] | Sequence[Any]) -> Any:
    """Return a reference to what a lookup finds in a collection when the step starts.

    Steps that promise a matching item are predecessors of the step.

    Parameters
    ----------
    lookup:
        ``"internal/build-1"``: an item that must exist, as an object with ``name``, ``category`` and ``data``;
        ``{"collection": "internal", "name_startswith": "build-"}`` (also ``name_endswith``, ``name_contains``,
        ``category``, ``data`` with members that it must have, and ``data_startswith``, ``data_endswith`` and
        ``data_contains`` with parts of strings in it): a list of items, the oldest first; or a list of both, with the
        items joined into one list, each once.

    Returns
    -------
    dict
        The reference.

    Examples
    --------
    >>> from ojster import found
    >>> found({"collection": "internal", "name_startswith": "build-"})
    {'$lookup': {'collection': 'internal', 'name_startswith': 'build-'}}
    """
    return {"$lookup": lookup}


def element(name: str = "item") -> Any:
    """Return a reference to the current element of a map.

    Parameters
    ----------
    name:
        Name that the map gives to the element; ``item`` by default.

    Returns
    -------
    Reference
        The reference. ``reference["member"]`` and ``reference[0]`` refer to a part of the element.

    Examples
    --------
    >>> from ojster import element
    >>> element()["id"]
    <Reference item.id>
    """
    return Placeholder(name)


INDEX: Final[Any] = Placeholder("index")
"""A reference to the index, from 0, of the current element of a map."""


def param(name: str) -> Any:
    """Return a reference to a parameter of the workflow.

    Parameters
    ----------
    name:
        Name of the parameter, a member of ``params`` in ``App.start``.

    Returns
    -------
    Reference
        The reference.

    Examples
    --------
    >>> from ojster import param
    >>> param("month")
    <Reference params.month>
    """
    return Placeholder(f"params.{name}")
