"""Resource requirements of a job: the attributes ``ext_ml_*`` and ``requires``, and the limits of queues on them.

Spec: ojs-ml-resources
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import InvalidRequest
from ojster.core.parsing import read_value
from ojster.core.refusals import ResourcesRefused
from ojster.core.short_cache import cache_short
from ojster.core.wire import Count
from ojster.fleet.requirements import ALIASES, COMPARISONS, MAX_CONDITIONS, MAX_FACT_LENGTH, Condition, Needs, text_of
from ojster.jobs.code import ATTRIBUTE, CODE_CAPABILITY

PREFIX: Final = "ext_ml_"

LOADED_MODEL_WEIGHT: Final = 50
"""Weight (0 to 100) of the preference for workers that have loaded the job's model; see ``Needs.preferred``."""

_TEXTS: Final = (
    "gpu_type",
    "tpu_type",
    "tpu_topology",
    "model_id",
    "model_version",
    "model_provider",
    "model_registry",
    "model_registry_uri",
    "reservation_id",
)
_CHOICES: Final = {
    "accelerator": ("gpu", "tpu", "fpga", "cpu"),
    "gpu_interconnect": ("nvlink", "pcie", "any"),
    "model_format": ("safetensors", "gguf", "onnx", "torchscript", "savedmodel", "custom"),
    "runtime": ("pytorch", "tensorflow", "onnx", "triton", "vllm", "tgi", "custom"),
    "precision": ("fp32", "fp16", "bf16", "fp8", "int8", "int4"),
    "distributed_strategy": (
        "none",
        "data_parallel",
        "tensor_parallel",
        "pipeline_parallel",
        "fsdp",
        "deepspeed",
    ),
    "priority_class": ("spot", "on-demand", "reserved"),
    "escalation_target_class": ("spot", "on-demand", "reserved"),
}
_AMOUNTS: Final = ("gpu_memory_gb", "memory_gb", "storage_gb", "shm_size_gb")
_COUNTS: Final = {  # with the minimum of each
    "gpu_count": 0,
    "tpu_chip_count": 1,
    "cpu_cores": 1,
    "max_tokens": 1,
    "max_batch_size": 1,
    "timeout_seconds": 1,
    "preemption_grace_period_s": 0,
    "reservation_timeout_s": 0,
    "escalation_after_s": 0,
    "checkpoint_interval_s": 1,
    "checkpoint_max_count": 1,
}
_SWITCHES: Final = ("preemptible", "checkpoint_on_preempt", "priority_escalation", "checkpoint_enabled")

_USED: Final = ("gpu_count", "tpu_chip_count", "cpu_cores", "memory_gb", "storage_gb", "shm_size_gb")
"""Resources of its worker that a job occupies while it runs."""

_GPU: Final = ("gpu_type", "gpu_memory_gb", "gpu_compute_capability")
_LARGEST: Final = 10**9

_RANKS: Final = {"spot": -1, "on-demand": 0, "reserved": 1}

_CAPABILITY_FOR: Final = {"fp32": "7.0", "fp16": "7.0", "bf16": "8.0", "fp8": "8.9", "int8": "7.5", "int4": "7.5"}
"""Minimum compute capability of NVIDIA GPUs for each precision.

Spec: ojs-ml-resources 6
"""

_FORMATTED: Final = ("gpu_compute_capability", "model_checksum", "checkpoint_storage_uri")
_RULES: Final = ("affinity", "node_affinity", "anti_affinity", "node_selector")

ATTRIBUTES: Final = frozenset(
    PREFIX + name for name in (*_TEXTS, *_CHOICES, *_AMOUNTS, *_COUNTS, *_SWITCHES, *_FORMATTED, *_RULES)
)
"""The attributes of the extension."""

_CAPABILITY: Final = re.compile(r"\d{1,3}\.\d{1,3}")
_CHECKSUM: Final = re.compile(r"[a-z0-9_\-]+:[0-9a-f]+")
_STORAGE: Final = re.compile(r"(s3|gs|az|file)://[^\s?#]*/")


class Resources(msgspec.Struct, frozen=True):
    """The contents of a job's resource attributes: its requirements, or ``None``, and its timeout in microseconds."""

    needs: Needs | None = None
    timeout: int | None = None


def has_requirements(names: Mapping[str, Any]) -> bool:
    """Whether a job with attributes of these names states requirements."""
    return any(name.startswith(PREFIX) or name in (ATTRIBUTE, REQUIRES) for name in names)


def read_resources(members: Mapping[str, msgspec.Raw]) -> Resources:
    """Return the requirements of a job with these attributes.

    Unknown attributes of the extension, and those that are ``null``, are ignored.

    Raises
    ------
    InvalidRequest
        An attribute is malformed, or contradicts another.
    """
    members_of_resources = {
        name: bytes(raw) for name, raw in members.items() if name.startswith(PREFIX) or name == REQUIRES
    }
    return _read(tuple(sorted(members_of_resources.items())), ATTRIBUTE in members)


@cache_short(1024)
def _read(members: tuple[tuple[str, bytes], ...], carries_code: bool) -> Resources:
    values = {name.removeprefix(PREFIX): read_value(raw, name) for name, raw in members}
    ml = {name: value for name, value in values.items() if value is not None}
    _check(ml)
    required = [*_hardware(ml), *_model(ml)]
    if carries_code:
        required.append(Condition(CODE_CAPABILITY, "Exists"))
    required += _required(ml.pop(REQUIRES, None))
    if "reservation_id" in ml:
        required.append(Condition("reservation_id", "In", (ml["reservation_id"],)))
    if "node_selector" in ml:
        required += _selected(ml["node_selector"])
    preferred: list[tuple[Condition, int]] = []
    if "model_id" in ml:
        preferred.append((Condition("model_id", "In", (ml["model_id"],)), LOADED_MODEL_WEIGHT))
    for name in ("affinity", "node_affinity"):
        rules = _rules(ml, name)
        required += [condition for condition, _ in rules["required"]]
        preferred += rules["preferred"]
    apart = []
    for condition, _ in _rules(ml, "anti_affinity")["required"]:
        if condition.key in ("job_type", "queue"):
            apart.append(condition)
        else:
            required.append(msgspec.structs.replace(condition, negated=True))
    if len(required) + len(preferred) + len(apart) > MAX_CONDITIONS:
        raise InvalidRequest(f"A job can have at most {MAX_CONDITIONS} conditions on its worker.", field=PREFIX)
    needs = Needs(
        required=tuple(required),
        used=tuple((name, float(amount)) for name in _USED if (amount := _amount(ml, name))),
        apart=tuple(apart),
        preferred=tuple(preferred),
        rank=_RANKS[ml.get("priority_class", "on-demand")],
    )
    if ml.get("priority_escalation") and "escalation_target_class" in ml:
        needs = msgspec.structs.replace(
            needs,
            escalated_rank=_RANKS[ml["escalation_target_class"]],
            escalated_after=ml.get("escalation_after_s", 3_600) * SECOND,
        )
    timeout = ml.get("timeout_seconds")
    return Resources(None if needs == Needs() else needs, None if timeout is None else timeout * SECOND)


REQUIRES: Final = "requires"
"""The attribute with plain requirements on the worker: ``{"memory_mb": 4096, "region": "eu"}``."""


def _required(requires: Any) -> Iterator[Condition]:
    """Yield the conditions of ``requires``: a number is a minimum, one value of a list is enough, others are equal."""
    if requires is None:
        return
    if not isinstance(requires, dict) or len(requires) > MAX_CONDITIONS:
        raise InvalidRequest(f"'requires' must be an object with at most {MAX_CONDITIONS} members.", field=REQUIRES)
    for key, value in requires.items():
        wanted = value if isinstance(value, list) else [value]
        if (
            not 0 < len(key) <= MAX_FACT_LENGTH
            or not 0 < len(wanted) <= MAX_CONDITIONS
            or not all(isinstance(fact, str | int | float) and len(str(fact)) <= MAX_FACT_LENGTH for fact in wanted)
        ):
            raise InvalidRequest(
                f"'requires.{key[:80]}' must be a number, a string, true or false, or a list of these.", field=REQUIRES
            )
        is_minimum = isinstance(value, int | float) and not isinstance(value, bool)
        yield Condition(key, "Gte" if is_minimum else "In", tuple(text_of(fact) for fact in wanted))


def _check(ml: Mapping[str, Any]) -> None:
    """Reject malformed attributes.

    Spec: ojs-ml-resources 3
    """
    for name in _TEXTS:
        if name in ml and not (isinstance(ml[name], str) and 0 < len(ml[name]) <= MAX_FACT_LENGTH):
            raise _wrong(name, f"a string of 1 to {MAX_FACT_LENGTH} characters", ml[name])
    for name, choices in _CHOICES.items():
        if name in ml and ml[name] not in choices:
            raise _wrong(name, "one of " + ", ".join(choices), ml[name])
    for name, least in _COUNTS.items():
        if name in ml and not (type(ml[name]) is int and least <= ml[name] <= _LARGEST):
            raise _wrong(name, f"an integer from {least} to {_LARGEST}", ml[name])
    for name in _AMOUNTS:
        if name in ml and not (type(ml[name]) in (int, float) and 0 <= ml[name] <= _LARGEST):
            raise _wrong(name, f"a number from 0 to {_LARGEST}", ml[name])
    for name in _SWITCHES:
        if name in ml and not isinstance(ml[name], bool):
            raise _wrong(name, "true or false", ml[name])
    _check_formats(ml)
    if ml.get("gpu_count") == 0 and any(name in ml for name in _GPU):
        raise InvalidRequest(
            f"'{PREFIX}gpu_count' is 0, but other attributes require GPUs.", field=PREFIX + "gpu_count"
        )


def _check_formats(ml: Mapping[str, Any]) -> None:
    for name, pattern, meaning in (
        ("gpu_compute_capability", _CAPABILITY, "a version such as '8.0'"),
        ("model_checksum", _CHECKSUM, "an algorithm and a hexadecimal digest such as 'sha256:e3b0…'"),
        ("checkpoint_storage_uri", _STORAGE, "an s3://, gs://, az:// or file:// URI that ends with a slash"),
    ):
        if name in ml and not (isinstance(ml[name], str) and pattern.fullmatch(ml[name])):
            raise _wrong(name, meaning, ml[name])
    if "/../" in ml.get("checkpoint_storage_uri", ""):
        raise _wrong("checkpoint_storage_uri", "a URI without '..'", ml["checkpoint_storage_uri"])


def _wrong(name: str, meaning: str, value: Any) -> InvalidRequest:
    return InvalidRequest(f"The '{PREFIX}{name}' attribute must be {meaning}, not {value!r:.80}.", field=PREFIX + name)


def _wants_gpu(ml: Mapping[str, Any]) -> bool:
    if ml.get("gpu_count") == 0:
        return False
    return ml.get("accelerator") == "gpu" or "gpu_count" in ml or any(name in ml for name in _GPU)


def _amount(ml: Mapping[str, Any], name: str) -> float:
    default = 1 if name == "gpu_count" and _wants_gpu(ml) else 0
    return float(ml.get(name, default))


def _hardware(ml: Mapping[str, Any]) -> Iterator[Condition]:
    """Yield the conditions on the hardware, without amounts.

    Spec: ojs-ml-resources 3.1 to 3.3, 11
    """
    accelerator = ml.get("accelerator")
    if accelerator is None:
        wants_tpu = "tpu_type" in ml or "tpu_chip_count" in ml
        accelerator = "gpu" if _wants_gpu(ml) else "tpu" if wants_tpu else "cpu"
    if accelerator != "cpu":
        yield Condition("accelerator", "In", (accelerator,))
    for name in ("gpu_type", "tpu_type", "tpu_topology"):
        if name in ml:
            yield Condition(name, "In", (ml[name],))
    if "gpu_memory_gb" in ml:
        yield Condition("gpu_memory_gb", "Gte", (text_of(ml["gpu_memory_gb"]),))
    if "gpu_compute_capability" in ml:
        yield Condition("gpu_compute_capability", "Gte", (ml["gpu_compute_capability"],))
    elif _wants_gpu(ml) and "precision" in ml and not str(ml.get("gpu_type", "nvidia-")).startswith("amd-"):
        yield Condition("gpu_compute_capability", "Gte", (_CAPABILITY_FOR[ml["precision"]],), lenient=True)
    if ml.get("gpu_interconnect") == "nvlink" and ml.get("gpu_count", 1) > 1:
        yield Condition("gpu_interconnect", "In", ("nvlink",))
    if "runtime" in ml:
        yield Condition("runtime", "In", (ml["runtime"],), lenient=True)


def _model(ml: Mapping[str, Any]) -> Iterator[Condition]:
    """Yield the condition that a model version is present, unless a registry URI lets any worker fetch it.

    Spec: ojs-ml-resources 4, 5
    """
    if "model_id" in ml and "model_version" in ml and "model_registry_uri" not in ml:
        yield Condition("model", "In", (f"{ml['model_id']}@{ml['model_version']}",))


def _selected(selector: Any) -> list[Condition]:
    if not isinstance(selector, dict):
        raise _wrong("node_selector", "an object of labels", selector)
    return [
        Condition(_name(key, "node_selector"), "In", _values([value], "node_selector"))
        for key, value in selector.items()
    ]


def _rules(ml: Mapping[str, Any], name: str) -> dict[str, list[tuple[Condition, int]]]:
    """Return the rules of an affinity, each with its weight.

    Spec: ojs-ml-resources 7.2
    """
    rules: dict[str, list[tuple[Condition, int]]] = {"required": [], "preferred": []}
    affinity = ml.get(name, {})
    if not isinstance(affinity, dict):
        raise _wrong(name, "an object with 'required' and 'preferred'", affinity)
    for kind, weighted in rules.items():
        entries = affinity.get(kind, [])
        if not isinstance(entries, list):
            raise _wrong(name, f"an object with an array of rules as '{kind}'", entries)
        for rule in entries:
            weight = rule.get("weight", 1) if isinstance(rule, dict) else 0
            if type(weight) is not int or not 0 <= weight <= 100:
                raise _wrong(name, "made of rules with a weight from 0 to 100", rule)
            weighted.append((_rule(rule, name), weight))
    return rules


def _rule(rule: Any, name: str) -> Condition:
    if not isinstance(rule, dict):
        raise _wrong(name, "made of rules with 'key', 'operator' and 'values'", rule)
    operator, values = rule.get("operator", "In"), rule.get("values", [])
    if operator not in ("In", "NotIn", "Exists", "DoesNotExist", *COMPARISONS):
        raise _wrong(name, "made of rules with an operator such as 'In' or 'Gte'", operator)
    if not isinstance(values, list) or (not values and operator not in ("Exists", "DoesNotExist")):
        raise _wrong(name, "made of rules with a non-empty array of 'values'", values)
    return Condition(_name(rule.get("key"), name), operator, _values(values, name))


def _name(key: Any, where: str) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= MAX_FACT_LENGTH:
        raise _wrong(where, f"made of keys of 1 to {MAX_FACT_LENGTH} characters", key)
    return ALIASES.get(key, key)


def _values(values: Sequence[Any], where: str) -> tuple[str, ...]:
    if len(values) > MAX_CONDITIONS:
        raise InvalidRequest(f"A rule can have at most {MAX_CONDITIONS} values.", field=PREFIX + where)
    for value in values:
        if not isinstance(value, str | int | float) or len(str(value)) > MAX_FACT_LENGTH:
            raise _wrong(where, f"made of strings, numbers and booleans of at most {MAX_FACT_LENGTH} characters", value)
    return tuple(map(text_of, values))


# Limits of a queue


Amount = Annotated[float, msgspec.Meta(ge=0)]


class ResourceLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on the resources of a queue's jobs; ``None`` means unlimited.

    Parameters
    ----------
    max_gpu_count, max_gpu_memory_gb, max_memory_gb, max_timeout_seconds:
        Maximum for one job.
    allowed_gpu_types, allowed_priority_classes, allowed_models, allowed_checkpoint_prefixes:
        Allowed values of attributes that are set; for checkpoint URIs, allowed prefixes.
    max_concurrent_gpu_jobs, max_total_gpus:
        Maximum for all active jobs of the queue together. Jobs over it wait.

    Spec: ojs-ml-resources 10.2, 10.3, 15
    """

    max_gpu_count: Count | None = None
    max_gpu_memory_gb: Amount | None = None
    max_memory_gb: Amount | None = None
    max_timeout_seconds: Count | None = None
    allowed_gpu_types: tuple[str, ...] | None = None
    allowed_priority_classes: tuple[str, ...] | None = None
    allowed_models: tuple[str, ...] | None = None
    allowed_checkpoint_prefixes: tuple[str, ...] | None = None
    max_concurrent_gpu_jobs: Count | None = None
    max_total_gpus: Count | None = None

    def check(self, members: Mapping[str, msgspec.Raw], queue: str) -> None:
        """Reject a job that requires more than the queue allows.

        Raises
        ------
        ResourcesRefused
            An attribute exceeds its limit.
        """
        for name in ("gpu_count", "gpu_memory_gb", "memory_gb", "timeout_seconds"):
            most, wanted = getattr(self, f"max_{name}"), _value_of(members, name)
            if name == "gpu_count" and wanted is None:
                wanted = (needs := read_resources(members).needs) and needs.gpus
            if most is not None and wanted is not None and wanted > most:
                raise _exceeds_limit(queue, name, f"{wanted}, but at most {most} is allowed", most)
        for name, allowed in (
            ("gpu_type", self.allowed_gpu_types),
            ("priority_class", self.allowed_priority_classes),
            ("model_id", self.allowed_models),
        ):
            wanted = _value_of(members, name)
            if allowed is not None and wanted is not None and wanted not in allowed:
                raise _exceeds_limit(
                    queue, name, f"{wanted!r}, but must be one of: {', '.join(allowed)}", list(allowed)
                )
        uri, prefixes = _value_of(members, "checkpoint_storage_uri"), self.allowed_checkpoint_prefixes
        if prefixes is not None and uri is not None and not uri.startswith(prefixes):
            shown = f"{uri!r}, but must begin with one of: {', '.join(prefixes)}"
            raise _exceeds_limit(queue, "checkpoint_storage_uri", shown, list(prefixes))


def _value_of(members: Mapping[str, msgspec.Raw], name: str) -> Any:
    raw = members.get(PREFIX + name)
    return None if raw is None else read_value(raw, PREFIX + name)


def _exceeds_limit(queue: str, name: str, words: str, allowed: Any) -> ResourcesRefused:
    return ResourcesRefused(
        f"The '{PREFIX}{name}' attribute is {words} in queue {queue!r}.",
        field=PREFIX + name,
        allowed=allowed,
        queue=queue,
    )


def check_defaults(defaults: Mapping[str, Any]) -> None:
    """Reject defaults of a queue that no job could have.

    Raises
    ------
    InvalidRequest
        A default is malformed, or is not an attribute of the extension.

    Spec: ojs-ml-resources 10.1
    """
    for name in defaults:
        if not name.startswith(PREFIX):
            raise InvalidRequest(f"{name[:80]!r} is not an attribute that begins with '{PREFIX}'.", field="ml_defaults")
    read_resources({name: msgspec.Raw(msgspec.json.encode(value)) for name, value in defaults.items()})
