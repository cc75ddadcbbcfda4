"""Diagrams of workflows: Mermaid text, or SVG documents rendered without the network.

A chain runs from left to right, and parallel steps stand below each other. A graph is drawn in columns: each step to
the right of its predecessors. Steps of one container with the same ``group`` have a frame around them. Steps that are
not ``visible`` are left out; what follows them follows their predecessors instead.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeVar
from xml.sax.saxutils import escape

import msgspec

from ojster.core.printable import printable
from ojster.workflows.read.info import StepInfo, WorkflowInfo

S = TypeVar("S", StepInfo, WorkflowInfo)

COLOURS: Final = {
    "waiting": ("#eef1f5", "#8492a6"),
    "blocked": ("#f3e8ff", "#8b5cf6"),
    "held": ("#f3e8ff", "#8b5cf6"),
    "pending": ("#e0efff", "#2f7bd9"),
    "active": ("#fff4cc", "#d39e00"),
    "completed": ("#dcf5e3", "#2e9e52"),
    "failed": ("#fde2e1", "#d33a35"),
    "compensated": ("#fde9d2", "#d9822b"),
    "cancelled": ("#e8e8e8", "#777777"),
    "skipped": ("#f7f7f7", "#aaaaaa"),
}
"""Background and border colour of a step, by state."""

MARKS: Final = {
    "waiting": "·",
    "blocked": "✋",
    "held": "⏸",
    "pending": "…",
    "active": "▶",
    "completed": "✓",
    "failed": "✗",
    "compensated": "↺",
    "cancelled": "⊘",
    "skipped": "↷",
}


def draw(workflow: WorkflowInfo, format: Literal["mermaid", "svg"] = "mermaid") -> str:
    """Return a diagram of a workflow, as text.

    Raises
    ------
    ValueError
        The format is neither ``mermaid`` nor ``svg``.
    """
    workflow = _without_hidden(workflow)
    match format:
        case "mermaid":
            return _Mermaid(workflow).text()
        case "svg":
            return _Svg(workflow).text()
    raise ValueError(f"A workflow can be drawn as 'mermaid' or 'svg', not {format!r}.")


def _without_hidden(shown: S) -> S:
    """Return a workflow or a step without the hidden steps in it."""
    hidden = {child.id: child for child in shown.children if not child.visible and child.id}

    def before(step: StepInfo) -> list[str]:
        names: list[str] = []
        for name in step.depends_on or ():
            names += before(hidden[name]) if name in hidden else [name]
        return list(dict.fromkeys(names))

    def visible(step: StepInfo | None) -> StepInfo | None:
        if step is None or not step.visible:
            return None
        step = _without_hidden(step)
        return msgspec.structs.replace(step, depends_on=before(step)) if step.depends_on else step

    changes: dict[str, Any] = {
        name: list(filter(None, map(visible, getattr(shown, name) or ())))
        for name in ("steps", "jobs", "compensations")
    }
    callbacks = {name: visible(step) for name, step in shown.callbacks.items()}
    changes["callbacks"] = {name: step for name, step in callbacks.items() if step is not None}
    for name in ("fallback",) if isinstance(shown, StepInfo) else ("on_error", "on_cancel"):
        changes[name] = visible(getattr(shown, name))
    return msgspec.structs.replace(shown, **changes)


def _grouped(steps: Sequence[StepInfo]) -> dict[str | int, list[StepInfo]]:
    """Return steps by their group; one without a group has a number instead."""
    groups: dict[str | int, list[StepInfo]] = {}
    for index, step in enumerate(steps):
        groups.setdefault(step.group or index, []).append(step)
    return groups


def arrows_of(step: WorkflowInfo | StepInfo) -> Iterator[tuple[StepInfo, StepInfo, str]]:
    """Yield the edges between a container's children: predecessor, successor and condition, which may be empty."""
    if step.type in ("chain", "saga") and getattr(step, "kind", None) != "flow":
        for before, after in itertools.pairwise(step.steps or ()):
            yield before, after, ""
    names = {child.id: child for child in step.steps or () if child.id}
    for child in step.steps or ():
        for name in child.depends_on or ():
            if name in names:
                yield names[name], child, child.when or ""


# Mermaid


class _Mermaid:
    """A flowchart in Mermaid's syntax."""

    def __init__(self, workflow: WorkflowInfo) -> None:
        self._workflow = workflow
        self._lines = ["flowchart LR"]
        self._names: dict[int, str] = {}
        self._groups = 0

    def text(self) -> str:
        workflow = self._workflow
        last = self._children(workflow, "  ")
        for branch, label in ((workflow.on_error, "on error"), (workflow.on_cancel, "on cancel")):
            if branch is not None:
                name = self._step(branch, "  ")
                self._lines += [f"  {previous} -. {label} .-> {name}" for previous in last[-1:]]
        states = sorted({step.state for step in workflow.walk()})
        for state in states:
            fill, stroke = COLOURS[state]
            self._lines.append(f"  classDef {state} fill:{fill},stroke:{stroke},color:#1c2430")
        return "\n".join(self._lines) + "\n"

    def _step(self, step: StepInfo, indent: str) -> str:
        """Draw a step; return its name in the diagram."""
        name = self._names[id(step)] = f"n{len(self._names)}"
        label = _quoted(f"{MARKS[step.state]} {step.label}")
        if not step.children:
            left, right = ("{{", "}}") if step.manual else ("[", "]")
            self._lines.append(f"{indent}{name}{left}{label}{right}:::{step.state}")
            return name
        self._lines.append(f"{indent}subgraph {name}[{label}]")
        self._children(step, indent + "  ")
        self._lines += [f"{indent}end", f"{indent}class {name} {step.state}"]
        return name

    def _children(self, container: WorkflowInfo | StepInfo, indent: str) -> list[str]:
        """Draw the children of a container; return the names of the main ones."""
        main = [*(container.steps or ()), *(container.jobs or ())]
        for group, members in _grouped(main).items():
            self._group(group, members, indent)
        names = [self._names[id(child)] for child in main]
        for before, after, label in arrows_of(container):
            arrow = f"-- {label} -->" if label else "-->"
            self._lines.append(f"{indent}{self._names[id(before)]} {arrow} {self._names[id(after)]}")
        for label, callback in container.callbacks.items():
            name = self._step(callback, indent)
            self._lines += [f"{indent}{box} -. {label} .-> {name}" for box in names]
        before_undoing = names[-1:]
        for step in container.compensations:
            name = self._step(step, indent)
            self._lines += [f"{indent}{box} -. compensate .-> {name}" for box in before_undoing]
            before_undoing = [name]
        if isinstance(container, StepInfo) and container.fallback is not None:
            name = self._step(container.fallback, indent)
            self._lines += [f"{indent}{box} -. fallback .-> {name}" for box in names]
        return names

    def _group(self, group: str | int, members: Sequence[StepInfo], indent: str) -> None:
        """Draw the steps of a group in a frame; a number stands for no group."""
        if isinstance(group, int):
            self._step(members[0], indent)
            return
        self._lines.append(f"{indent}subgraph g{self._groups}[{_quoted(group)}]")
        self._groups += 1
        for step in members:
            self._step(step, indent + "  ")
        self._lines.append(f"{indent}end")


def _quoted(text: str) -> str:
    return '"' + re.sub(r'["<>&]', lambda match: f"#{ord(match[0])};", printable(text)) + '"'


# SVG

_HEIGHT: Final = 34.0
_GAP_X: Final = 36.0
_GAP_Y: Final = 12.0
_PADDING: Final = 12.0
_TITLE: Final = 18.0
_LETTER: Final = 7.3
_LONGEST_LABEL: Final = 40


class _Box(msgspec.Struct):
    """A rectangle on the page. A container has others inside, with positions relative to its top left corner.

    ``group``: the name of the group of steps around which it is a frame.
    """

    width: float
    height: float
    step: StepInfo | None = None
    group: str | None = None
    inside: list[tuple[float, float, _Box]] = []
    arrows: list[tuple[_Box, _Box, str]] = []
    x: float = 0.0
    y: float = 0.0


class _Svg:
    """An SVG document."""

    def __init__(self, workflow: WorkflowInfo) -> None:
        self._workflow = workflow
        self._parts: list[str] = []

    def text(self) -> str:
        page = self._container(self._workflow)
        self._place(page, _PADDING, _PADDING + _TITLE)
        self._paint(page)
        width, height = page.width + 2 * _PADDING, page.height + 2 * _PADDING + _TITLE
        title = _safe(f"{self._workflow.label} ({self._workflow.state})")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" font-family="system-ui, sans-serif" font-size="12">\n'
            f"<title>{title}</title>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#5a6675"/></marker></defs>\n'
            f'<rect width="100%" height="100%" fill="#ffffff"/>\n'
            f'<text x="{_PADDING:g}" y="{_PADDING + 8:g}" font-weight="600" fill="#1c2430">{title}</text>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )

    # Sizes

    def _box(self, step: StepInfo) -> _Box:
        if not step.children:
            return _Box(max(80.0, (len(_label(step)) + 2) * _LETTER + 16), _HEIGHT, step)
        inner = self._container(step)
        width = max(inner.width + 2 * _PADDING, (len(_label(step)) + 2) * _LETTER + 2 * _PADDING)
        height = inner.height + 2 * _PADDING + _TITLE
        return _Box(width, height, step, inside=[(_PADDING, _PADDING + _TITLE, inner)])

    def _container(self, shown: WorkflowInfo | StepInfo) -> _Box:
        """Arrange the children of a container in columns."""
        boxes = {id(child): self._box(child) for child in shown.children}
        main = [*(shown.steps or ()), *(shown.jobs or ())]
        arrows = [(boxes[id(step)], boxes[id(other)], label) for step, other, label in arrows_of(shown)]
        columns = _columns([boxes[id(child)] for child in main], arrows)
        behind = [(boxes[id(step)], name) for name, step in shown.callbacks.items()]
        if isinstance(shown, StepInfo) and shown.fallback is not None:
            behind.append((boxes[id(shown.fallback)], "fallback"))
        if isinstance(shown, WorkflowInfo):
            branches = ((shown.on_error, "on error"), (shown.on_cancel, "on cancel"))
            behind += [(boxes[id(branch)], label) for branch, label in branches if branch is not None]
        last = columns[-1] if columns else []
        if behind:
            columns.append([box for box, _ in behind])
            arrows += [(before, box, label) for box, label in behind for before in (main and last)]
        before = last
        for step in shown.compensations:
            columns.append([boxes[id(step)]])
            arrows += [(box, boxes[id(step)], "undo") for box in before]
            before = columns[-1]
        return _arranged([_framed(column) for column in columns], arrows)

    # Places

    def _place(self, box: _Box, x: float, y: float) -> None:
        box.x, box.y = x, y
        for left, top, inner in box.inside:
            self._place(inner, x + left, y + top)

    # Paint

    def _paint(self, box: _Box) -> None:
        if box.step is not None:
            self._paint_step(box, box.step)
        if box.group is not None:
            self._paint_frame(box, box.group)
        for _, _, inner in box.inside:
            self._paint(inner)
        for before, after, label in box.arrows:
            self._paint_arrow(before, after, label)

    def _paint_step(self, box: _Box, step: StepInfo) -> None:
        fill, stroke = COLOURS[step.state]
        dash = ' stroke-dasharray="4 3"' if step.children else ""
        self._parts.append(
            f"<g><title>{_safe(f'{step.path}: {step.type}, {step.state}')}</title>"
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" '
            f'rx="{14 if step.manual else 6}" fill="{fill if not step.children else "none"}" stroke="{stroke}"{dash}/>'
            f'<text x="{box.x + 8:g}" y="{box.y + (15 if step.children else 21):g}" fill="#1c2430">'
            f"{MARKS[step.state]} {_safe(_label(step))}</text></g>"
        )

    def _paint_frame(self, box: _Box, group: str) -> None:
        self._parts.append(
            f"<g><title>{_safe(group)}</title>"
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="6" fill="none" '
            f'stroke="#8492a6" stroke-dasharray="1 3"/>'
            f'<text x="{box.x + 8:g}" y="{box.y + 15:g}" fill="#5a6675">{_safe(_shortened(group))}</text></g>'
        )

    def _paint_arrow(self, before: _Box, after: _Box, label: str) -> None:
        x1, y1 = before.x + before.width, before.y + before.height / 2
        x2, y2 = after.x, after.y + after.height / 2
        bend = max(16.0, (x2 - x1) / 2)
        dash = ' stroke-dasharray="3 3"' if label else ""
        self._parts.append(
            f'<path d="M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}" fill="none" '
            f'stroke="#5a6675"{dash} marker-end="url(#tip)"><title>{_safe(label)}</title></path>'
        )


def _safe(text: str) -> str:
    """Return a text for XML, which has no control characters."""
    return escape(printable(text))


def _label(step: StepInfo) -> str:
    return _shortened(step.label)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def _framed(column: Sequence[_Box]) -> list[_Box]:
    """Return a column in which the boxes of each group of steps have a frame around them."""
    boxes = {id(box.step): box for box in column if box.step is not None}
    framed: list[_Box] = []
    for group, steps in _grouped([box.step for box in column if box.step is not None]).items():
        members = [boxes[id(step)] for step in steps]
        if isinstance(group, int):
            framed += members
            continue
        inside, y = [], _PADDING + _TITLE
        for box in members:
            inside.append((_PADDING, y, box))
            y += box.height + _GAP_Y
        inner = max(*(box.width for box in members), len(_shortened(group)) * _LETTER)
        framed.append(_Box(inner + 2 * _PADDING, y - _GAP_Y + _PADDING, group=group, inside=inside))
    return framed


def _columns(boxes: Sequence[_Box], arrows: Sequence[tuple[_Box, _Box, str]]) -> list[list[_Box]]:
    """Put each box one column to the right of its rightmost predecessor."""
    before: dict[int, list[_Box]] = {}
    for tail, other, _ in arrows:
        before.setdefault(id(other), []).append(tail)
    ranks: dict[int, int] = {}
    waiting = list(boxes)
    while waiting:
        ready = [box for box in waiting if all(id(tail) in ranks for tail in before.get(id(box), ()))] or waiting
        for box in ready:
            ranks[id(box)] = 1 + max((ranks.get(id(tail), -1) for tail in before.get(id(box), ())), default=-1)
        waiting = [box for box in waiting if id(box) not in ranks]
    columns: list[list[_Box]] = [[] for _ in range(1 + max(ranks.values(), default=-1))]
    for box in boxes:
        columns[ranks[id(box)]].append(box)
    return columns


def _arranged(columns: Sequence[Sequence[_Box]], arrows: list[tuple[_Box, _Box, str]]) -> _Box:
    heights = [sum(box.height for box in column) + _GAP_Y * (len(column) - 1) for column in columns]
    height = max(heights, default=_HEIGHT)
    inside: list[tuple[float, float, _Box]] = []
    x = 0.0
    for column, own in zip(columns, heights, strict=True):
        y = (height - own) / 2
        for box in column:
            inside.append((x, y, box))
            y += box.height + _GAP_Y
        x += max(box.width for box in column) + _GAP_X
    return _Box(max(0.0, x - _GAP_X), height, inside=inside, arrows=arrows)
