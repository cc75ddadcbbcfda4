"""What does a job need of the worker that runs it, and what does a worker provide? (ojs-ml-resources.md)

What a job says becomes conditions on facts, what a worker says of itself becomes facts. The conditions of many jobs are
the same, so they have a key, by which the jobs wait.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import InvalidRequest

LONGEST_TEXT: Final = 256
"""The most characters of the name of a fact, or of a value."""

MOST_CONDITIONS: Final = 100
"""How many conditions a job may have, and how many values one of them."""

MOST_FACTS: Final = 1_000

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Gte", "Lt", "Lte"]

COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "Gt": lambda left, right: left > right,
    "Gte": lambda left, right: left >= right,
    "Lt": lambda left, right: left < right,
    "Lte": lambda left, right: left <= right,
}


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """Something that must hold for a fact (section 7.2).

    Parameters
    ----------
    key, operator, values:
        Of which fact what must hold; numbers, and versions such as ``8.0``, are compared as such.
    lenient:
        Whether it also holds if nothing is known of the fact.
    negated:
        Whether it holds where it would not otherwise.
    """

    key: str
    operator: Operator
    values: tuple[str, ...] = ()
    lenient: bool = False
    negated: bool = False

    def holds(self, found: Sequence[str]) -> bool:
        """Whether it holds where these are the values of the fact; none: nothing is known of it."""
        if not found and self.lenient:
            return True
        return self._is_true_of(found) != self.negated

    def _is_true_of(self, found: Sequence[str]) -> bool:
        match self.operator:
            case "In":
                return any(value in self.values for value in found)
            case "NotIn":
                return not any(value in self.values for value in found)
            case "Exists":
                return bool(found)
            case "DoesNotExist":
                return not found
        compare = COMPARISONS[self.operator]
        pairs = [_comparable(value, wanted) for value in found for wanted in self.values]
        return any(pair is not None and compare(*pair) for pair in pairs)


class Needs(msgspec.Struct, frozen=True):
    """What a job needs.

    Parameters
    ----------
    required:
        What must hold for the worker.
    used:
        How much of which fact, a number, the job takes while it runs.
    apart:
        What must not hold for the jobs that the worker is at: their ``job_type`` and ``queue``.
    preferred:
        What should hold, and how much that counts, from 0 to 100.
    rank:
        Jobs of the same priority go first that have a greater one: 1 is ``reserved``, -1 ``spot``.
    escalated_rank, escalated_after:
        Its rank once it has waited for so long, in microseconds.
    """

    required: tuple[Condition, ...] = ()
    used: tuple[tuple[str, float], ...] = ()
    apart: tuple[Condition, ...] = ()
    preferred: tuple[tuple[Condition, int], ...] = ()
    rank: int = 0
    escalated_rank: int | None = None
    escalated_after: int = 3_600 * SECOND

    @property
    def key(self) -> str:
        """The same for equal needs, and for no others."""
        return hashlib.blake2b(_encode(self), digest_size=12).hexdigest()

    @property
    def gpus(self) -> int:
        """How many GPUs the job takes."""
        return next((int(amount) for name, amount in self.used if name == "gpu_count"), 0)

    def rank_after(self, waited: int) -> int:
        """Return its rank when it has waited for so long, in microseconds (section 8.4)."""
        if self.escalated_rank is not None and waited > self.escalated_after:
            return max(self.rank, self.escalated_rank)
        return self.rank


class Provided(msgspec.Struct, frozen=True):
    """What a worker provides: facts by name, each with one value or several; numbers as they are written shortest."""

    facts: dict[str, tuple[str, ...]] = {}

    def __hash__(self) -> int:
        return hash(frozenset(self.facts.items()))

    def meets(self, needs: Needs) -> bool:
        """Whether all that a job requires holds, as far as it does not depend on what the worker is at."""
        if (needs.used or needs.apart) and not self.facts:
            return False
        holds = all(condition.holds(self.facts.get(condition.key, ())) for condition in needs.required)
        return holds and all(self.amount(name) >= amount for name, amount in needs.used)

    def amount(self, name: str) -> float:
        """How much there is of a fact that is a number."""
        numbers = [number for value in self.facts.get(name, ()) if (number := _number(value)) is not None]
        return max(numbers, default=0.0)

    def liking(self, needs: Needs) -> int:
        """How much of what a job prefers holds."""
        return sum(
            weight for condition, weight in needs.preferred if condition.holds(self.facts.get(condition.key, ()))
        )


NOTHING: Final = Provided()
"""What a worker provides that says nothing of it."""

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_DOTTED: Final = re.compile(r"\d+(\.\d+)*")


def _comparable(left: str, right: str) -> tuple[Any, Any] | None:
    """Return two values as numbers, or as versions, if both are."""
    numbers = _number(left), _number(right)
    if None not in numbers:
        return numbers
    if _DOTTED.fullmatch(left) and _DOTTED.fullmatch(right):
        return [int(part) for part in left.split(".")], [int(part) for part in right.split(".")]
    return None


def text_of(value: str | float | bool) -> str:
    """Return a value as facts and conditions have it: numbers as they are written shortest."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


# What a worker says

ALIASES: Final = {"compute_capability": "gpu_compute_capability"}
"""What is called otherwise in rules (section 7.2) than it is here."""

_DEVICES: Final = {
    "gpu": ("type", "count", "memory_gb", "compute_capability", "interconnect"),
    "tpu": ("type", "topology", "chip_count"),
}
_PLAIN: Final = ("cpu_cores", "memory_gb", "storage_gb", "shm_size_gb")


def read_provided(capabilities: Mapping[str, Any]) -> Provided:
    """Return what a worker provides that says so (section 11). What is not known of it, is left out.

    Beside what the section has, ``models_available`` are models that the worker can load, and ``reservations`` the
    reservations that it is of. What is there is said, not what of it is free: the server counts what jobs take.

    Raises
    ------
    InvalidRequest
        Something is malformed.
    """
    facts: dict[str, tuple[str, ...]] = {}
    labels = capabilities.get("labels", {})
    if not isinstance(labels, dict) or len(labels) > MOST_FACTS:
        raise _no_capability("labels", f"an object with at most {MOST_FACTS} members")
    for key, value in labels.items():
        facts[_label(key)] = (_scalar(value, f"labels.{key[:80]}"),)
    accelerators = {"cpu"}
    if "accelerator" in capabilities:
        accelerators.add(_scalar(capabilities["accelerator"], "accelerator"))
    for device, names in _DEVICES.items():
        described = capabilities.get(device)
        if described is None:
            continue
        if not isinstance(described, dict):
            raise _no_capability(device, "an object")
        accelerators.add(device)
        found = {name: _scalar(described[name], f"{device}.{name}") for name in names if name in described}
        if device == "gpu":
            found.setdefault("count", "1")
        facts |= {f"{device}_{name}": (value,) for name, value in found.items()}
    for name in _PLAIN:
        if name in capabilities:
            facts[name] = (_scalar(capabilities[name], name),)
    for name in ("runtimes", "reservations"):
        values = _list(capabilities, name)
        if values:
            facts[{"runtimes": "runtime", "reservations": "reservation_id"}[name]] = tuple(
                _scalar(value, name) for value in values
            )
    _add_models(facts, capabilities)
    if facts or len(accelerators) > 1 or "accelerator" in capabilities:
        facts["accelerator"] = tuple(sorted(accelerators))
    return Provided(facts)


def _add_models(facts: dict[str, tuple[str, ...]], capabilities: Mapping[str, Any]) -> None:
    models: dict[str, None] = {}
    loaded: dict[str, None] = {}
    for name in ("models_loaded", "models_available"):
        for model in _list(capabilities, name):
            if not isinstance(model, dict) or not isinstance(model.get("model_id"), str):
                raise _no_capability(name, "an array of objects with a 'model_id'")
            id = _scalar(model["model_id"], name)
            if name == "models_loaded":
                loaded[id] = None
            if model.get("model_version") is not None:
                models[f"{id}@{_scalar(model['model_version'], name)}"] = None
    if loaded:
        facts["model_id"] = tuple(loaded)
    if models:
        facts["model"] = tuple(models)


def _list(capabilities: Mapping[str, Any], name: str) -> list[Any]:
    values = capabilities.get(name, [])
    if not isinstance(values, list) or len(values) > MOST_FACTS:
        raise _no_capability(name, f"an array of at most {MOST_FACTS} elements")
    return values


def _label(key: str) -> str:
    if not 0 < len(key) <= LONGEST_TEXT:
        raise _no_capability("labels", f"an object whose names have 1 to {LONGEST_TEXT} characters")
    return key


def _scalar(value: Any, name: str) -> str:
    if not isinstance(value, str | int | float) or len(str(value)) > LONGEST_TEXT:
        raise _no_capability(name, f"a string, a number or a boolean of at most {LONGEST_TEXT} characters")
    return text_of(value)


def _no_capability(name: str, meaning: str) -> InvalidRequest:
    return InvalidRequest(f"'capabilities.{name}' must be {meaning}.", field=f"capabilities.{name}")
