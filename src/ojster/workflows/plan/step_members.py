"""What the members of a step say of it, whatever its kind: its name, its rule, and what it refers to."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.collections.items import INTERNAL, Lookup, read_lookup
from ojster.core.json_objects import Members, raw_list
from ojster.core.references import (
    STEP_NAME,
    Unresolvable,
    can_be_step_id,
    lookups_in,
    may_hold_references,
    references_in,
)
from ojster.workflows.node import EXPANDED, Kind, Node
from ojster.workflows.plan.conditions import InvalidCondition, check_condition
from ojster.workflows.plan.members import Problem, flag, problems_at, text
from ojster.workflows.plan.rules import USERS_RULES
from ojster.workflows.plan.steps import References, RequestedStep
from ojster.workflows.plan.values import Spec

_decode: Final = msgspec.json.decode

LONGEST_STEP_NAME: Final = 255


class Siblings(msgspec.Struct):
    """The container of the steps that are read.

    Parameters
    ----------
    kind, place:
        Its kind, and its place in the workflow.
    named:
        Its steps by name; ``None``: a step that exists already.
    """

    kind: Kind
    place: str
    named: dict[str, RequestedStep | None] = {}

    def place_of(self, step: int | str) -> str:
        """Return the place of a step with a name or at a position."""
        return f"{self.place}.{step}" if self.place else str(step)


class Here(msgspec.Struct, gc=False):
    """Where a step is, and what it inherits.

    Parameters
    ----------
    siblings:
        Its container.
    position, path, place:
        Of the step: see ``Node`` and ``RequestedStep``.
    inherited:
        The options of the containers around it.
    level:
        The number of containers around it.
    can_be_undone:
        Whether ``compensate`` is allowed there.
    gives_values:
        Whether its arguments are values, in which a ``$ref`` is data: a flow gives them to its steps, and the start
        of a flow without ``params`` to the flow.
    """

    siblings: Siblings
    position: int
    path: str
    place: str
    inherited: Members
    level: int
    can_be_undone: bool = False
    gives_values: bool = False

    def of(self, kind: Kind) -> tuple[str, str, Node]:
        """Return the first members of a step of a kind that is here."""
        return self.path, self.place, Node(0, None, self.position, kind.value)

    def inside(
        self, siblings: Siblings, position: int, path: str, name: str | int, *, can_be_undone: bool = False
    ) -> Here:
        """Return where a step with a name is in a container that is here; it inherits the same."""
        place = siblings.place_of(name)
        return Here(siblings, position, path, place, self.inherited, self.level, can_be_undone)


class BoundValues(msgspec.Struct, frozen=True):
    """The values bound by the maps around a step: their ``names``, and the ``values`` that are known."""

    names: frozenset[str]
    values: dict[str, msgspec.Raw]


def spec_of(members: Members, path: str) -> Spec:
    """Return what a step says of its node that does not change."""
    display_name = text(members, "display_name", path)
    return Spec(
        display_name=display_name if display_name is not None else text(members, "name", path),
        step=text(members, "step", path),
        group=text(members, "group", path),
        visible=flag(members, "visible", path, otherwise=True),
    )


def read_rules(step: RequestedStep, members: Members, here: Here, bound: BoundValues) -> None:
    """Read the rule, the condition, the dependencies and the flags of a step."""
    path, node = here.path, step.node
    node.tolerated = int(flag(members, "allow_failure", path))
    node.manual = int(flag(members, "manual", path)) or node.manual
    rule = text(members, "when", path)
    if rule is not None:
        if rule not in USERS_RULES:
            raise Problem(f"{path}.when", f"'when' must be one of {', '.join(USERS_RULES)}, not {rule!r:.40}.")
        node.rule = rule
    condition = text(members, "if", path)
    if condition is not None:
        try:
            step.condition_names = check_condition(condition, bound.names)
        except InvalidCondition as error:
            raise Problem(f"{path}.if", str(error)) from None
        step.spec.condition, step.spec.bindings = condition, bound.values
    if "depends_on" in members:
        if here.siblings.kind != Kind.GRAPH:
            raise Problem(f"{path}.depends_on", "Only the steps of a graph can have 'depends_on'.")
        try:
            wishes = _decode(members["depends_on"], type=list[str] | None)
        except msgspec.ValidationError:
            raise Problem(f"{path}.depends_on", "It must be an array of step ids.") from None
        step.depends_on = list(dict.fromkeys(wishes or []))


def name_of(members: Members, here: Here) -> str | None:
    """Return the name by which others refer to a step: its ``id``, else its ``name`` if that is a valid id."""
    if here.siblings.kind in EXPANDED:
        return None  # all elements would have the same name
    taken = here.siblings.named
    id = text(members, "id", here.path)
    if id is not None:
        if not can_be_step_id(id) or len(id) > LONGEST_STEP_NAME:
            raise Problem(
                f"{here.path}.id",
                f"The id {id!r:.60} must be printable characters, not only digits, without '.' and '/'.",
            )
        earlier = taken.get(id)
        if earlier is not None and not earlier.has_id:  # an ``id`` takes precedence over a ``name``
            earlier.node.name = None
            del taken[id]
        if id in taken:
            raise Problem(f"{here.path}.id", f"There is another step with the id {id!r:.60}.")
        return id
    name = text(members, "name", here.path)
    if name is None or len(name) > LONGEST_STEP_NAME or not STEP_NAME.fullmatch(name) or name.isdigit():
        return None
    return None if name in taken else name


def steps_in(members: Members, name: str, path: str) -> list[msgspec.Raw]:
    """Return the steps in a member, or raise ``Problem``."""
    raw = bytes(members.get(name, b"null"))
    if raw[:1] != b"[":
        raise Problem(f"{path}.{name}", f"'{name}' must be an array of steps.")
    steps = raw_list(raw)
    if not steps:
        raise Problem(f"{path}.{name}", f"{name} array must contain at least one element")
    return steps


def references_of(spec: Spec, raw: bytes | msgspec.Raw, path: str, bound: BoundValues) -> References | None:
    """Return the references and lookups in a value; ``None``: it has neither. Give the bound values to the spec.

    Raises
    ------
    Problem
        A reference or a lookup is malformed, or a reference begins with a name that is not known there.
    """
    if not may_hold_references(raw):
        return None
    try:
        references = list(references_in(raw))
    except Unresolvable as error:
        raise Problem(path, str(error)) from None
    raw_lookups, lookups = list(lookups_in(raw)), list[Lookup]()
    for raw_lookup in raw_lookups:
        if not may_hold_references(raw_lookup):  # else its references are resolved when the node starts
            with problems_at(path):
                lookups += [lookup for lookup in read_lookup(raw_lookup)[0] if lookup.collection == INTERNAL]
    known = {"steps", "params", *bound.names}
    for reference in references:
        if reference.root not in known:
            shown = ", ".join(sorted(known))
            raise Problem(path, f"The reference {reference.text!r:.100} must begin with one of {shown}.")
    if references:
        spec.bindings = bound.values
    names = frozenset(reference.step for reference in references if reference.step is not None)
    return References(path, names, lookups) if references or raw_lookups else None
