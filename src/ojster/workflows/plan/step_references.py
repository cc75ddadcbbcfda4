"""What the arguments of jobs and the lists of maps refer to: steps, values bound by maps, and promised items."""

from __future__ import annotations

import msgspec

from ojster.collections.items import INTERNAL, Lookup, read_lookup
from ojster.core.errors import OjsterError
from ojster.core.references import Unresolvable, lookups_in, may_hold_references, references_in
from ojster.workflows.plan.members import Problem
from ojster.workflows.plan.step_members import BoundValues
from ojster.workflows.plan.steps import References
from ojster.workflows.plan.values import Spec


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
    lookups, has_lookups = _lookups_of(raw, path)
    known = {"steps", "params", *bound.names}
    for reference in references:
        if reference.root not in known:
            shown = ", ".join(sorted(known))
            raise Problem(path, f"The reference {reference.text!r:.100} must begin with one of {shown}.")
    if references:
        spec.bindings = bound.values
    names = frozenset(reference.step for reference in references if reference.step is not None)
    return References(path, names, lookups) if references or has_lookups else None


def _lookups_of(raw: bytes | msgspec.Raw, path: str) -> tuple[list[Lookup], bool]:
    """Return the lookups in the workflow's collection, and whether there are any lookups."""
    raw_lookups, internal = list(lookups_in(raw)), list[Lookup]()
    for raw_lookup in raw_lookups:
        if may_hold_references(raw_lookup):
            continue  # its references are resolved when the node starts
        try:
            lookups, _ = read_lookup(raw_lookup)
        except OjsterError as error:
            raise Problem(path, error.message) from None
        internal += [lookup for lookup in lookups if lookup.collection == INTERNAL]
    return internal, bool(raw_lookups)
