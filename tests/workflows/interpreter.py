"""Reference interpreter of workflows: the same rules as the service's, without counters or transactions.

``Interpreter`` gets the outcome of each job and approval in advance. It computes the end state of every step and the
number of runs of each job. This module does not use the service.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

GOOD = ("completed", "skipped")
LISTS = {"chain": "steps", "graph": "steps", "group": "jobs"}
FALSE = "params.no"
TRUE = "params.yes"

End = tuple[dict[str, Any], str]
"""A step and its end state."""


class Maker:
    """Makes random nested workflows with every kind of step."""

    def __init__(self, rng: random.Random, *, levels: int = 4) -> None:
        self.rng = rng
        self.levels = levels
        self.jobs = 0
        self.undoing = rng.choice([0.0, 0.05, 0.3])
        """Share of the steps that have a compensation."""

    def workflow(self) -> dict[str, Any]:
        made = self.container(self.levels)
        made |= {"params": {"yes": True, "no": False, "list": [1, 2, 3]}}
        for branch in ("on_error", "on_cancel"):
            if self.rng.random() < 0.4:
                made[branch] = self.job() if self.rng.random() < 0.7 else [self.job(), self.job()]
        return made

    def job(self) -> dict[str, Any]:
        self.jobs += 1
        return {"type": f"j{self.jobs}", "args": []}

    def step(self, levels: int, *, grows: bool = False) -> dict[str, Any]:
        rng = self.rng
        if levels > 1 and rng.random() < 0.35:
            made = self.container(levels - 1)
        elif rng.random() < 0.07:
            made = {"type": "gate"}
        else:
            made = self.job()
            if grows and rng.random() < 0.08:
                made["meta"] = {"grows": True}
        if rng.random() < 0.1:
            made["allow_failure"] = True
        if rng.random() < 0.1:
            made["if"] = rng.choice([TRUE, FALSE])
        if rng.random() < 0.06:
            made["manual"] = True
        if rng.random() < 0.1 and made["type"] != "gate":
            made["fallback"] = self.undone(self.job())
        return self.undone(made)

    def undone(self, step: dict[str, Any]) -> dict[str, Any]:
        return step | {"compensate": self.job()} if self.rng.random() < self.undoing else step

    def steps(self, levels: int, **more: Any) -> list[dict[str, Any]]:
        return [self.step(levels, **more) for _ in range(self.rng.choice([1, 2, 2, 3, 4]))]

    def container(self, levels: int) -> dict[str, Any]:
        rng = self.rng
        match rng.choice(["chain", "chain", "group", "batch", "saga", "graph", "map"]):
            case "chain":
                steps = self.steps(levels, grows=True)
                for step in steps[1:]:
                    if rng.random() < 0.15:
                        step["when"] = rng.choice(["finished", "failed"])
                return {"type": "chain", "steps": steps}
            case "group":
                return {"type": "group", "jobs": self.steps(levels, grows=True)}
            case "batch":
                names = rng.sample(["on_complete", "on_success", "on_failure"], rng.choice([1, 2, 3]))
                return {
                    "type": "batch",
                    "jobs": self.steps(levels),
                    "callbacks": {name: self.step(1) for name in names},
                }
            case "saga":
                steps = self.steps(levels)
                for step in steps:
                    if rng.random() < 0.6:
                        step["compensate"] = self.job()
                return {"type": "saga", "steps": steps}
            case "graph":
                steps = self.steps(levels)
                for place, step in enumerate(steps):
                    step["id"] = f"s{place}"
                    known = [f"s{before}" for before in range(place)]
                    step["depends_on"] = rng.sample(known, rng.randint(0, min(2, len(known))))
                    if step["depends_on"] and rng.random() < 0.2:
                        step["when"] = rng.choice(["finished", "failed"])
                return {"type": "graph", "steps": steps}
            case _:
                return self.map(levels)

    def map(self, levels: int) -> dict[str, Any]:
        rng = self.rng
        self.jobs += 1
        over = {"$ref": "params.list"} if rng.random() < 0.5 else list(range(rng.choice([0, 1, 2])))
        do: dict[str, Any] = {"type": f"m{self.jobs}", "args": [{"$ref": "index"}]}
        if levels > 1 and rng.random() < 0.3:
            do = {"type": "chain", "steps": [self.undone(do), self.undone(self.job())]}
        return {"type": "map", "over": over, "do": self.undone(do)}


@dataclass
class Script:
    """Outcome of each job (``ok`` or ``fail``) and of each approval, by path, drawn at random on first use."""

    rng: random.Random
    failing: float
    ends: dict[str, str] = field(default_factory=dict)
    approvals: dict[str, bool] = field(default_factory=dict)

    def end(self, path: str) -> str:
        return self.ends.setdefault(path, "fail" if self.rng.random() < self.failing else "ok")

    def approves(self, path: str) -> bool:
        return self.approvals.setdefault(path, self.rng.random() < 0.8)


class Interpreter:
    """Computes how the steps of a workflow end, with one call of ``run`` for each run of the workflow."""

    def __init__(self, wire: dict[str, Any]) -> None:
        self.wire = wire
        self.states: dict[str, str] = {}
        self.runs: Counter[str] = Counter()
        self.state = ""
        self._kept: set[str] = set()
        self._undone: set[str] = set()
        """Paths of the steps that were undone."""
        self._grown: dict[str, list[dict[str, Any]]] = {}

    def run(self, script: Script) -> None:
        """Compute all states for the first run, or for a retry if there was a run before."""
        self._script = script
        before, self.states = self.states, {}
        self._before = before
        self._kept = set()
        if before:
            self._before = dict(before)
            self._keep("", {k: v for k, v in self.wire.items() if k not in ("on_error", "on_cancel")})
        main = self._container(self.wire, "")
        self.states[""] = main
        self.state = main
        for name, wanted in (("on_error", ("failed", "compensated")), ("on_cancel", ("cancelled",))):
            branch = self.wire.get(name)
            if branch is not None:
                if isinstance(branch, list):
                    branch = {"type": "chain", "steps": branch}
                if main in wanted:
                    self._node(branch, name)
                else:
                    self._never(branch, name, "skipped")

    # Steps that a retry keeps

    def _keep(self, path: str, node: dict[str, Any]) -> None:
        """Keep what succeeded, or was allowed to fail, in a container, unless it follows what runs again."""
        anew: set[str] = set()
        """Paths of the children of this container that run again, also in part."""
        for child, place, before in self._inside(node, path):
            state = self._before.get(place, "skipped")  # a map that never started has no children
            good = state in GOOD or (child.get("allow_failure") and state in ("failed", "compensated"))
            if before & anew:
                anew.add(place)
                self._forget(place)
            elif good:
                self._keep_whole(place, child)
            else:
                anew.add(place)
                if self._is_container(child) or "fallback" in child:
                    self._keep(place, child)

    def _keep_whole(self, place: str, node: dict[str, Any]) -> None:
        self._kept |= {path for path in self._before if path == place or path.startswith(place + ".")}

    def _forget(self, place: str) -> None:
        """Forget the earlier run of the steps inside a node, which starts from the beginning."""
        for known in [known for known in self._before if known.startswith(join(place, ""))]:
            del self._before[known]
        self._undone = {known for known in self._undone if not known.startswith(join(place, ""))}

    def _inside(self, node: dict[str, Any], path: str) -> list[tuple[dict[str, Any], str, set[str]]]:
        """Return the children of a container that a retry keeps or runs again one by one, each with what it follows."""
        if self._is_saga(node):
            undone = self._before.get(undo_place(node, path))
            if undone == "completed":  # the steps were compensated, so no result remains
                self._forget(path)
                return []
            if undone in ("failed", "cancelled") and self._before[path] == "failed":
                self._kept |= {known for known in self._before if self._is_forward(known, node, path)}
                return self._following(self._undo_of(node, path), undo_place(node, path))
        return self._following(node, path)

    def _following(self, node: dict[str, Any], path: str) -> list[tuple[dict[str, Any], str, set[str]]]:
        """Return the children of a container, each with the paths of those that it follows."""
        if "fallback" in node:
            (inner, first), (other, second) = self._parts(node, path)
            return [(inner, first, set()), (other, second, {first})]
        kind = node["type"]
        listed = self._listed(node, path)
        if kind == "batch":
            jobs = listed if self._before[join(path, "<jobs>")] not in GOOD else []
            if not jobs:
                self._kept.add(join(path, "<jobs>"))
                for step, place in listed:
                    self._keep_whole(place, step)
            before = {place for _, place in jobs}
            callbacks = [(step, join(path, name), before) for name, step in node["callbacks"].items()]
            return [*[(step, place, set[str]()) for step, place in jobs], *callbacks]
        if kind == "graph":
            return [(step, place, {join(path, name) for name in step["depends_on"]}) for step, place in listed]
        return in_order(listed) if kind in ("chain", "saga") else [(step, place, set()) for step, place in listed]

    # End states of nodes

    def _node(self, node: dict[str, Any], path: str) -> str:
        """Compute the end state of a node that is ready to start."""
        if path in self._kept:
            self._copy(path)
            return self.states[path]
        if node.get("if") == FALSE:
            return self._never(node, path, "skipped")
        if (node.get("manual") or node["type"] == "gate") and not self._script.approves(path):
            return self._never(node, path, "cancelled")
        if any(self.states[whole] == "completed" for whole in node.get("<unless>", ())):
            return self._never(node, path, "skipped")
        if "<of>" in node and (self.states.get(node["<of>"]) != "completed" or node["<of>"] in self._undone):
            return self._never(node, path, "skipped")
        if node["type"] == "gate":
            state = "completed"
        elif "fallback" in node or self._is_container(node):
            state = self._container(node, path)
        else:
            self.runs[path] += 1
            state = "completed" if self._script.end(path) == "ok" else "failed"
        if "<of>" in node and state == "completed":
            self._undone.add(node["<of>"])
        self.states[path] = state
        return state

    def _container(self, node: dict[str, Any], path: str) -> str:
        return self._saga(node, path) if self._is_saga(node) else self._forward(node, path)

    def _forward(self, node: dict[str, Any], path: str) -> str:
        """Compute the end state of a container, as if nothing undid it."""
        if "fallback" in node:
            return self._with_fallback(node, path)
        kind = node["type"]
        if kind == "map":
            return self._listing([(step, place) for step, place in self._listed(node, path)])
        if kind == "saga":
            return self._chain(self._listed(node, path))
        if kind == "batch":
            return self._batch(node, path)
        if kind == "graph":
            return self._graph(node, path)
        if kind == "group":
            return self._listing(self._growing(node, path))
        return self._chain(self._growing(node, path))

    def _listing(self, steps: Any) -> str:
        ends = []
        for step, place in steps:
            rule = step.get("when", "succeeded")
            state = self._node(step, place) if rule != "failed" else self._never(step, place, "skipped")
            ends.append((step, state))
        return together(ends)

    def _chain(self, steps: Any) -> str:
        ends: list[End] = []
        for step, place in steps:
            ends.append(self._after(step, place, ends[-1:]))
        return together(ends)

    def _graph(self, node: dict[str, Any], path: str) -> str:
        ends: dict[str, End] = {}
        for step, place in self._listed(node, path):
            ends[step["id"]] = self._after(step, place, [ends[name] for name in step["depends_on"]])
        return together(list(ends.values()))

    def _after(self, step: dict[str, Any], place: str, before: list[End]) -> End:
        """Compute the end of a step after the ends of its predecessors; one that was left out tolerates nothing."""
        if place in self._kept:
            return step, self._node(step, place)
        match step.get("when", "succeeded"):
            case "succeeded" if not all(well(one, state) for one, state in before):
                return {}, self._never(step, place, "cancelled")
            case "failed" if not any(state in ("failed", "cancelled", "compensated") for _, state in before):
                return step, self._never(step, place, "skipped")
        return step, self._node(step, place)

    def _batch(self, node: dict[str, Any], path: str) -> str:
        place = join(path, "<jobs>")
        if place in self._kept:
            for _, inner in self._listed(node, path):
                self._copy(inner)
            jobs = self._before[place]
        else:
            jobs = self._container({"type": "group", "jobs": node["jobs"]}, path)
        self.states[place] = jobs
        called = {"on_complete": True, "on_success": jobs in GOOD, "on_failure": jobs not in GOOD}
        ran = []
        for name, step in node["callbacks"].items():
            inner = join(path, name)
            if inner in self._kept or called[name]:
                state = self._node(step, inner)
            else:
                state = self._never(step, inner, "skipped")
            if state != "skipped":
                ran.append((step, state))
        bad = [state for step, state in (ran or [({}, jobs)]) if not well(step, state)]
        if not bad:
            return "completed"
        return "cancelled" if all(state == "cancelled" for state in bad) else "failed"

    def _with_fallback(self, node: dict[str, Any], path: str) -> str:
        (inner, first_place), (other, place) = self._parts(node, path)
        if self._node(inner, first_place) in GOOD:
            self._never(other, place, "skipped")
            return "completed"
        second = self._node(other, place)
        return "completed" if second in GOOD else "cancelled" if second == "cancelled" else "failed"

    def _saga(self, node: dict[str, Any], path: str) -> str:
        inside, place = steps_place(node, path), undo_place(node, path)
        if inside in self._kept:
            forward = {one: state for one, state in self._before.items() if self._is_forward(one, node, path)}
            self.states |= forward
            steps = forward[inside]
        else:
            steps = self._forward(node, path)
        self.states[inside] = steps
        undo = self._undo_of(node, path)
        if steps in GOOD:
            self._never(undo, place, "skipped")
            return "completed"
        self.states[place] = self._forward(undo, place)
        return "compensated" if self.states[place] in GOOD else "failed"

    def _is_forward(self, known: str, node: dict[str, Any], path: str) -> bool:
        """Whether a path is inside a container, but not inside what undoes it."""
        undo = undo_place(node, path)
        return (
            known.startswith(join(path, ""))
            and known not in (path, undo)
            and not known.startswith((undo + ".", "on_error", "on_cancel"))
        )

    def _undo_of(self, node: dict[str, Any], path: str) -> dict[str, Any]:
        """Return the container that undoes another: the last step first, in parallel what ran in parallel."""
        steps = [(step, place, place[len(join(path, "")) :] or "0") for step, place in self._parts(node, path)]
        units = {name: self._units(step, place, name) for step, place, name in steps}
        for at, (step, _, name) in enumerate(steps):
            for unit in units[name]:
                behind = self._behind(node, steps, step, at)
                unit["depends_on"] = [other["id"] for later in behind for other in units[later]]
        kind = "group" if node["type"] in ("group", "map") and "fallback" not in node else "graph"
        made = [unit for _, _, name in reversed(steps) for unit in units[name]]
        return {"type": kind, LISTS[kind]: made}

    def _behind(self, node: dict[str, Any], steps: list[Any], step: dict[str, Any], at: int) -> list[str]:
        """Return the names of the steps that come after one."""
        if "fallback" in node or node["type"] in ("chain", "saga", "batch"):
            first_of_batch = node.get("type") == "batch" and at > 0 and "fallback" not in node
            return [] if first_of_batch else [name for _, _, name in steps[at + 1 :]]
        if node["type"] != "graph":
            return []
        later, names = {step["id"]}, []
        for other, _, name in steps[at + 1 :]:
            if later & set(other["depends_on"]):
                later.add(other["id"])
                names.append(name)
        return names

    def _units(self, step: dict[str, Any], place: str, name: str) -> list[dict[str, Any]]:
        """Return what undoes a step in the container around it: its compensation, and that of what is inside it."""
        units = [step["compensate"] | {"id": name, "<of>": place}] if "compensate" in step else []
        if self._is_saga(step):
            inner = self._undo_of(step, place)
            if inner[LISTS[inner["type"]]] or (step["type"] == "map" and "fallback" not in step):
                if units:  # its own compensation undoes all of it, once it has completed
                    settle(inner, place)
                units.append(inner | {"id": f"{name}-inside" if units else name})
        return units

    def _is_saga(self, node: dict[str, Any]) -> bool:
        """Whether a container is undone if it does not succeed: a saga, or one with a compensation inside it."""
        return (node["type"] == "saga" and "fallback" not in node) or self._holds(node)

    def _holds(self, node: dict[str, Any]) -> bool:
        return any("compensate" in step or self._holds(step) for step in inner_steps(node))

    # Children and paths

    def _listed(self, node: dict[str, Any], path: str) -> list[tuple[dict[str, Any], str]]:
        if node["type"] == "map":
            over = self.wire["params"]["list"] if isinstance(node["over"], dict) else node["over"]
            return [(node["do"], join(path, str(index))) for index in range(len(over))]
        steps = node.get("steps") or node.get("jobs") or []
        steps = steps + self._grown.get(path, [])
        return [(step, join(path, step.get("id", str(index)))) for index, step in enumerate(steps)]

    def _growing(self, node: dict[str, Any], path: str) -> Any:
        """Yield the children of a container, including those that completed children append."""
        index = 0
        while index < len(listed := self._listed(node, path)):
            step, place = listed[index]
            yield step, place
            grows = "fallback" not in step and step.get("meta", {}).get("grows")
            grows = grows and self.states[place] == "completed" and place not in self._kept
            if "fallback" in step and step.get("meta", {}).get("grows"):
                inner = join(place, "0")
                grows = self.states.get(inner) == "completed" and inner not in self._kept
            if grows:
                self._grown.setdefault(path, []).append(grown())
            index += 1

    def _parts(self, node: dict[str, Any], path: str) -> list[tuple[dict[str, Any], str]]:
        """Return the children of a container that it consists of, without what undoes it."""
        if "fallback" in node:
            inner = {k: v for k, v in node.items() if k in ("type", "args", *self._own(node), "meta")}
            return [(inner, join(path, "0")), (node["fallback"], join(path, "fallback"))]
        if node["type"] == "batch":
            jobs = {"type": "group", "jobs": node["jobs"]}
            return [(jobs, path), *((step, join(path, name)) for name, step in node["callbacks"].items())]
        if node["type"] == "map" and join(path, "0") not in self.states:
            return [one for one in self._listed(node, path) if one[1] in self._before]
        return self._listed(node, path)

    def _never(self, node: dict[str, Any], path: str, state: str) -> str:
        """Set the state of a node that does not start and of all steps inside it, except those that a retry keeps."""
        if path in self._kept:
            self._copy(path)
            return self.states[path]
        self.states[path] = state
        if "fallback" not in node and not self._is_container(node):
            return state
        if "fallback" in node or node["type"] != "map" or path in self._expanded:
            for step, place in self._parts(node, path):
                if place != path:
                    self._never(step, place, state)
        if node["type"] == "batch" and "fallback" not in node:
            jobs = {"type": "group", "jobs": node["jobs"]}
            self._never(jobs, path, state)
            self.states[join(path, "<jobs>")] = state
        if self._is_saga(node):
            self.states[steps_place(node, path)] = state
            self._never(self._undo_of(node, path), undo_place(node, path), state)
        return state

    @property
    def _expanded(self) -> set[str]:
        """Paths of containers that got children in an earlier run."""
        return {path.rpartition(".")[0] for path in self._before} if self._before else set()

    def _copy(self, path: str) -> None:
        for known, state in self._before.items():
            if known == path or known.startswith(path + "."):
                self.states[known] = state

    def _is_container(self, node: dict[str, Any]) -> bool:
        return node["type"] in ("chain", "group", "batch", "saga", "graph", "map")

    def _own(self, node: dict[str, Any]) -> tuple[str, ...]:
        return ("steps", "jobs", "callbacks", "over", "do")


def well(step: dict[str, Any], state: str) -> bool:
    return state in GOOD or bool(step.get("allow_failure"))


def in_order(steps: list[tuple[dict[str, Any], str]]) -> list[tuple[dict[str, Any], str, set[str]]]:
    """Return the steps of a chain, each with the path of the one before it."""
    places = [set[str](), *[{place} for _, place in steps]]
    return [(step, place, before) for (step, place), before in zip(steps, places, strict=False)]


def together(ends: list[End]) -> str:
    """Return the end state of a container, given its children and their end states."""
    bad = [state for step, state in ends if not well(step, state)]
    if any(state in ("failed", "compensated") for state in bad):
        return "failed"
    return "cancelled" if bad else "completed"


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def grown() -> dict[str, Any]:
    """Return the step that a growing job appends."""
    return {"type": "grown", "args": []}


def undo_place(node: dict[str, Any], path: str) -> str:
    """Return the path of what undoes a container; the jobs of a batch are a container at its own path."""
    is_batch = node["type"] == "batch" and "fallback" not in node
    return join(path, "compensate_all" if is_batch else "compensate")


def steps_place(node: dict[str, Any], path: str) -> str:
    return join(path, "<all>" if undo_place(node, path).endswith("_all") else "<steps>")


def settle(node: dict[str, Any], place: str) -> None:
    """Let compensations do nothing if the step at a place, which is undone as a whole, has completed."""
    if "<of>" in node:
        node["<unless>"] = [*node.get("<unless>", ()), place]
    for step in inner_steps(node):
        settle(step, place)


def inner_steps(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps inside a step."""
    found = [*node.get("steps", ()), *node.get("jobs", ()), *node.get("callbacks", {}).values()]
    return found + [node[name] for name in ("do", "fallback") if name in node]
