"""Requirements of a job on its worker, and the capabilities that a worker provides.

A job's attributes become conditions on facts, and a worker's capabilities become facts. Many jobs have the same
conditions, so each set of conditions has a key, by which waiting jobs are grouped.

Spec: ojs-ml-resources
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

MAX_FACT_LENGTH: Final = 256
"""Maximum length of the name or a value of a fact, in characters."""

MAX_CONDITIONS: Final = 100
"""Maximum number of conditions of a job, and of values in a condition."""

MAX_FACTS: Final = 1_000

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Gte", "Lt", "Lte"]

COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "Gt": lambda left, right: left > right,
    "Gte": lambda left, right: left >= right,
    "Lt": lambda left, right: left < right,
    "Lte": lambda left, right: left <= right,
}


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """A condition on a fact.

    Parameters
    ----------
    key, operator, values:
        The fact, the comparison, and the values to compare with. Numbers, and versions such as ``8.0``, compare as
        such.
    lenient:
        Whether the condition also holds if the fact is unknown.
    negated:
        Whether the result of the comparison is inverted.

    Spec: ojs-ml-resources 7.2
    """

    key: str
    operator: Operator
    values: tuple[str, ...] = ()
    lenient: bool = False
    negated: bool = False

    def holds(self, values: Sequence[str]) -> bool:
        """Whether the condition holds for these values of the fact; without values, the fact is unknown."""
        if not values and self.lenient:
            return True
        return self._is_true_of(values) != self.negated

    def _is_true_of(self, facts: Sequence[str]) -> bool:
        match self.operator:
            case "In":
                return any(value in self.values for value in facts)
            case "NotIn":
                return not any(value in self.values for value in facts)
            case "Exists":
                return bool(facts)
            case "DoesNotExist":
                return not facts
        compare = COMPARISONS[self.operator]
        pairs = [_comparable(value, wanted) for value in facts for wanted in self.values]
        return any(pair is not None and compare(*pair) for pair in pairs)


class Needs(msgspec.Struct, frozen=True):
    """The requirements of a job.

    Parameters
    ----------
    required:
        Conditions that the worker must meet.
    used:
        Names and amounts of numeric facts that the job occupies while it runs.
    apart:
        Conditions on ``job_type`` and ``queue`` that no other job on the worker may meet.
    preferred:
        Conditions that should hold, each with its weight from 0 to 100.
    rank:
        Order among jobs of the same priority, greater first: 1 is ``reserved``, 0 ``on-demand``, -1 ``spot``.
    escalated_rank, escalated_after:
        The rank after a longer wait than ``escalated_after``, in microseconds (default: one hour); ``None``: no change.
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
        """A hash of the requirements; only equal requirements have the same."""
        return hashlib.blake2b(_encode(self), digest_size=12).hexdigest()

    @property
    def gpus(self) -> int:
        """The number of GPUs that the job occupies."""
        return next((int(amount) for name, amount in self.used if name == "gpu_count"), 0)

    def rank_after(self, waited: int) -> int:
        """Return the rank of a job that has waited this long, in microseconds.

        Spec: ojs-ml-resources 8.4
        """
        if self.escalated_rank is not None and waited > self.escalated_after:
            return max(self.rank, self.escalated_rank)
        return self.rank


class ProvidedFacts(msgspec.Struct, frozen=True):
    """The capabilities of a worker: facts by name, each with one or more values. Numbers are in their shortest form."""

    facts: dict[str, tuple[str, ...]] = {}

    def __hash__(self) -> int:
        return hash(frozenset(self.facts.items()))

    def meets(self, needs: Needs) -> bool:
        """Whether the worker meets the requirements, apart from those that depend on its running jobs."""
        if (needs.used or needs.apart) and not self.facts:
            return False
        holds = all(condition.holds(self.facts.get(condition.key, ())) for condition in needs.required)
        return holds and all(self.amount(name) >= amount for name, amount in needs.used)

    def amount(self, name: str) -> float:
        """Return the amount of a numeric fact, or 0.0; of several values, the largest."""
        numbers = [number for value in self.facts.get(name, ()) if (number := _number(value)) is not None]
        return max(numbers, default=0.0)

    def liking(self, needs: Needs) -> int:
        """Return the sum of the weights of the preferences that the worker meets."""
        return sum(
            weight for condition, weight in needs.preferred if condition.holds(self.facts.get(condition.key, ()))
        )


class AllFacts(ProvidedFacts, frozen=True):
    """Whatever a job requires, in any amount: what stands in for all workers in a test provides it."""

    def meets(self, needs: Needs) -> bool:
        """Return true."""
        return True

    def amount(self, name: str) -> float:
        """Return infinity."""
        return math.inf


ALL: Final = AllFacts({"all": ("true",)})
"""The capabilities of what stands in for all workers. There is a fact, because without any, jobs with requirements are
not looked for."""

NOTHING: Final = ProvidedFacts()
"""The capabilities of a worker that reports none."""

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_DOTTED: Final = re.compile(r"\d+(\.\d+)*")


def _comparable(left: str, right: str) -> tuple[Any, Any] | None:
    """Return both values as numbers or as versions; ``None`` if they are not both one of these."""
    numbers = _number(left), _number(right)
    if None not in numbers:
        return numbers
    if _DOTTED.fullmatch(left) and _DOTTED.fullmatch(right):
        return [int(part) for part in left.split(".")], [int(part) for part in right.split(".")]
    return None


def text_of(value: str | float | bool) -> str:
    """Return a value as text for facts and conditions; numbers in their shortest form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


# Capabilities that a worker reports

ALIASES: Final = {"compute_capability": "gpu_compute_capability"}
"""Facts with another name in affinity rules, and their names here.

Spec: ojs-ml-resources 7.2
"""

_DEVICES: Final = {
    "gpu": ("type", "count", "memory_gb", "compute_capability", "interconnect"),
    "tpu": ("type", "topology", "chip_count"),
}
_PLAIN: Final = ("cpu_cores", "memory_gb", "storage_gb", "shm_size_gb")
_AMOUNTS: Final = ("gpu_count", "gpu_memory_gb", "tpu_chip_count", *_PLAIN)
"""Facts that are amounts."""

_CAPABILITIES: Final = frozenset(
    {"labels", "accelerator", "runtimes", "reservations", "models_loaded", "models_available", *_DEVICES, *_PLAIN}
)
"""Names of capabilities."""


def read_provided(capabilities: Mapping[str, Any]) -> ProvidedFacts:
    """Return the capabilities that a worker reports. Facts that it does not report are left out.

    In addition to the specification, ``models_available`` lists the models that the worker can load, and
    ``reservations`` the reservations that it belongs to. Amounts are totals: the server itself subtracts what running
    jobs occupy.

    Raises
    ------
    InvalidRequest
        A capability is malformed.

    Spec: ojs-ml-resources 11
    """
    facts: dict[str, tuple[str, ...]] = {}
    labels = capabilities.get("labels", {})
    if not isinstance(labels, dict) or len(labels) > MAX_FACTS:
        raise _no_capability("labels", f"an object with at most {MAX_FACTS} members")
    for key, value in labels.items():
        facts[_label(key)] = (_scalar(value, f"labels.{key[:80]}"),)
    accelerators = _add_devices(facts, capabilities)
    for name in _PLAIN:
        if name in capabilities:
            facts[name] = (_scalar(capabilities[name], name),)
    for name, fact in (("runtimes", "runtime"), ("reservations", "reservation_id")):
        if values := _list(capabilities, name):
            facts[fact] = tuple(_scalar(value, name) for value in values)
    _add_models(facts, capabilities)
    if facts or len(accelerators) > 1 or "accelerator" in capabilities:
        facts["accelerator"] = tuple(sorted(accelerators))
    return ProvidedFacts(facts)


def idle_capabilities(capabilities: Mapping[str, Any]) -> list[str]:
    """Return a warning for each capability that no job can require, because the specification does not name it."""
    idle = [name for name in capabilities if name not in _CAPABILITIES]
    for device, names in _DEVICES.items():
        described = capabilities.get(device)
        if isinstance(described, dict):
            idle += [f"{device}.{name}" for name in described if name not in names]
    return [
        f"The capability {name[:60]!r} has no effect. Report it in 'labels', where jobs can require it by any name."
        for name in idle
    ]


def check_capabilities(capabilities: Mapping[str, Any]) -> None:
    """Refuse capabilities that are malformed, or that no job can require.

    Raises
    ------
    InvalidRequest
        A capability is malformed, or has no effect.
    """
    facts = read_provided(capabilities).facts
    for name in _AMOUNTS:
        for value in facts.get(name, ()):
            number = _number(value)
            if number is None or number < 0:
                message = f"The capability {name} is {value!r}, which no job can require. Use a number from 0."
                raise InvalidRequest(message, field="capabilities")
    for warning in idle_capabilities(capabilities):
        raise InvalidRequest(warning, field="capabilities")


def _add_devices(facts: dict[str, tuple[str, ...]], capabilities: Mapping[str, Any]) -> set[str]:
    """Add the facts about GPUs and TPUs, and return the kinds of accelerators."""
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
        facts_of_device = {name: _scalar(described[name], f"{device}.{name}") for name in names if name in described}
        if device == "gpu":
            facts_of_device.setdefault("count", "1")
        facts |= {f"{device}_{name}": (value,) for name, value in facts_of_device.items()}
    return accelerators


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
    if not isinstance(values, list) or len(values) > MAX_FACTS:
        raise _no_capability(name, f"an array of at most {MAX_FACTS} elements")
    return values


def _label(key: str) -> str:
    if not 0 < len(key) <= MAX_FACT_LENGTH:
        raise _no_capability("labels", f"an object with names of 1 to {MAX_FACT_LENGTH} characters")
    return key


def _scalar(value: Any, name: str) -> str:
    if not isinstance(value, str | int | float) or len(str(value)) > MAX_FACT_LENGTH:
        raise _no_capability(name, f"a string, a number or a boolean of at most {MAX_FACT_LENGTH} characters")
    return text_of(value)


def _no_capability(name: str, meaning: str) -> InvalidRequest:
    return InvalidRequest(f"'capabilities.{name}' must be {meaning}.", field=f"capabilities.{name}")
