"""What a validation against a JSON Schema costs at most, so that no schema of a user can stop a server.

The cost is the number of times that a part of a schema is compared with a part of a value. A small schema can cost more
than all machines have: alternatives that repeat alternatives, or recursion with several branches. The validator cannot
be interrupted, so the cost is bounded before it begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from ojster.core.references import is_index

MAX_PARTS: Final = 20_000
"""Maximum number of parts of a schema, with each reference replaced by what it refers to."""

MAX_COST: Final = 400_000
"""Maximum cost of a validation: a hundredth of a second, or a tenth with the worst keywords."""

MAX_PAIRS: Final = 20_000
"""Maximum number of different pairs of parts that are looked at to find the cost for a recursive schema."""

BYTES_OF_A_PART: Final = 1_000
"""Length of a string that counts as one more part of a value: patterns look at each character."""

_IN_PLACE: Final = frozenset({"not", "if", "then", "else"})
_IN_PLACE_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf"})
_ELEMENTS: Final = frozenset({"items", "additionalItems", "contains", "unevaluatedItems"})
_VALUES: Final = frozenset({"additionalProperties", "unevaluatedProperties"})
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_UNEVALUATED: Final = frozenset({"unevaluatedItems", "unevaluatedProperties"})
"""Keywords for which validators look at the subschemas beside them once more."""

_HOLDS_DEFINITIONS: Final = frozenset({"$defs", "definitions"})


def has_array_of_items(schema: Any) -> bool:
    """Return whether a part of a schema has ``items`` as an array, and none has ``prefixItems``, which replaced it."""
    return any(isinstance(node.get("items"), list) for node in _nodes(schema)) and not any(
        "prefixItems" in node for node in _nodes(schema)
    )


class TooComplex(ValueError):
    """A schema has too many parts, or a reference that leads out of it."""


class SchemaCost:
    """The cost of validations against a schema.

    Raises
    ------
    TooComplex
        The schema has more than ``MAX_PARTS`` parts, or a reference that leads out of it.
    """

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._anchors = {anchor: node for node in _nodes(schema) for anchor in _anchors_of(node)}
        self._weights: dict[int, int] = {}
        self._open: set[int] = set()
        self._is_recursive = False
        try:
            self.parts = self._weigh(schema)
        except RecursionError:
            raise TooComplex("its parts are nested too deeply") from None
        if self._is_recursive and any(not _UNEVALUATED.isdisjoint(node) for node in _nodes(schema)):
            raise TooComplex("it refers to itself, which 'unevaluatedProperties' and 'unevaluatedItems' do not go with")
        if self.parts > MAX_PARTS:
            raise TooComplex(f"with its references replaced, it has more than {MAX_PARTS} parts")

    def of(self, value: Any) -> float:
        """Return the cost of validating a value, or infinity if it cannot be found quickly."""
        if not self._is_recursive:
            return self.parts * _parts_of(value)
        try:
            return _Walk(self).cost(self._root, value)
        except (RecursionError, _TooManyPairs):
            return math.inf

    def _weigh(self, node: Any) -> int:
        """Return the number of parts of a schema with its references replaced; a recursive one counts once."""
        if not isinstance(node, dict):
            return 1
        if (known := self._weights.get(id(node))) is not None:
            return known
        if id(node) in self._open:
            self._is_recursive = True
            return 1
        if node is not self._root and isinstance(node.get("$id"), str):
            raise TooComplex("only the whole schema may have an '$id'")
        self._open.add(id(node))
        looks = 1 + len(_UNEVALUATED & node.keys())
        weight = 1
        for name, value in node.items():
            if name in _HOLDS_DEFINITIONS:
                continue
            subschemas = list(self.subschemas(name, value))
            times = 1 if name in _UNEVALUATED else looks
            weight += times * sum(map(self._weigh, subschemas)) if subschemas else _own_parts(name, value)
            if name == "patternProperties" and isinstance(value, dict):
                weight += sum(map(len, value))
            if weight > MAX_PARTS:
                raise TooComplex(f"with its references replaced, it has more than {MAX_PARTS} parts")
        self._open.discard(id(node))
        self._weights[id(node)] = weight
        return weight

    def subschemas(self, name: str, value: Any) -> Iterator[Any]:
        """Yield the schemas in a keyword."""
        if name in _REFERENCES:
            yield self.resolve(value)
        elif isinstance(value, list) and (name in _IN_PLACE_LISTS or name in ("prefixItems", "items")):
            yield from value
        elif name in ("properties", "patternProperties", "dependentSchemas") and isinstance(value, dict):
            yield from value.values()
        elif name in _IN_PLACE or name in _ELEMENTS or name in _VALUES or name in ("propertyNames", "contentSchema"):
            yield value

    def resolve(self, reference: Any) -> Any:
        """Return what a reference refers to."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise TooComplex(f"the reference {reference!r:.80} leads out of it; use '#/$defs/…'")
        target = reference[1:]
        if target and not target.startswith("/"):
            if target in self._anchors:
                return self._anchors[target]
            raise TooComplex(f"there is nothing at {reference!r:.80}")
        node = self._root
        for step in target.split("/")[1:]:
            key = _unescape(step)
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and is_index(key) and int(key) < len(node):
                node = node[int(key)]
            else:
                raise TooComplex(f"there is nothing at {reference!r:.80}")
        return node


class _TooManyPairs(Exception):
    pass


class _Walk:
    """Counts the comparisons of one validation; each pair of a schema's and a value's part is looked at once."""

    def __init__(self, of: SchemaCost) -> None:
        self._of = of
        self._known: dict[tuple[int, int], int] = {}
        self._open: set[tuple[int, int]] = set()

    def cost(self, node: Any, value: Any) -> int:
        if not isinstance(node, dict):
            return 1
        pair = (id(node), id(value))
        if (known := self._known.get(pair)) is not None:
            return known
        if pair in self._open:
            return 1
        if len(self._known) + len(self._open) >= MAX_PAIRS:
            raise _TooManyPairs
        self._open.add(pair)
        total = 1
        for name, argument in node.items():
            if name not in _HOLDS_DEFINITIONS:
                total += self._of_keyword(name, argument, value)
            if total > MAX_COST:
                break
        self._open.discard(pair)
        self._known[pair] = total
        return total

    def _of_keyword(self, name: str, argument: Any, value: Any) -> int:
        if name == "properties" and isinstance(argument, dict):
            if not isinstance(value, dict):
                return 1
            return 1 + sum(self.cost(node, value[key]) for key, node in argument.items() if key in value)
        subschemas = list(self._of.subschemas(name, argument))
        if not subschemas:
            return _own_parts(name, argument) * (1 + (len(value) // BYTES_OF_A_PART if isinstance(value, str) else 0))
        parts: Iterable[Any]
        if name in _ELEMENTS or name == "prefixItems":
            parts = value if isinstance(value, list) else ()
        elif name in _VALUES or name == "patternProperties":
            parts = value.values() if isinstance(value, dict) else ()
        elif name == "propertyNames":
            parts = value if isinstance(value, dict) else ()
        else:
            return 1 + sum(self.cost(node, value) for node in subschemas)
        return 1 + sum(self.cost(node, part) for part in parts for node in subschemas)


def _own_parts(name: str, value: Any) -> int:
    """Return the number of parts of a keyword without schemas."""
    if name in ("enum", "const", "required", "dependentRequired"):
        return _parts_of(value)
    return len(value) if name == "pattern" and isinstance(value, str) else 1


def _parts_of(value: Any) -> int:
    """Return the number of parts of a value: its elements, members and names at every depth, and long strings."""
    parts, waiting = 0, [value]
    while waiting:
        schema = waiting.pop()
        parts += 1
        if isinstance(schema, dict):
            parts += len(schema)
            waiting += schema.values()
        elif isinstance(schema, list):
            waiting += schema
        elif isinstance(schema, str):
            parts += len(schema) // BYTES_OF_A_PART
    return parts


def _nodes(schema: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _anchors_of(node: Mapping[str, Any]) -> list[str]:
    return [node[name] for name in ("$anchor", "$dynamicAnchor") if isinstance(node.get(name), str)]


def _unescape(step: str) -> str:
    return unquote(step).replace("~1", "/").replace("~0", "~")
