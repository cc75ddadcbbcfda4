"""How large the house is, and where its arrows point (``python -m benchmarks.house``).

Statements are nodes of the syntax tree, without docstrings: joined lines are no saving. Arrows are imports between
folders, for types alone and late ones included. The order of folders is that of the layers contract in
``pyproject.toml``.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ojster"


def statements(tree: ast.Module) -> int:
    """Return the number of statements of a module, without docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = sum(
        isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None for node in ast.walk(tree)
    )
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - docstrings


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the folders of Ojster that a module imports, once for each statement."""
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("ojster."))


def layers() -> dict[str, int]:
    """Return the height of each folder, the lowest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = [re.split(r"\s*\|\s*", row) for row in contracts[0]["layers"]]
    return {name: height for height, row in enumerate(reversed(rows)) for name in row}


def main() -> None:
    """Print the statements of each folder, and the arrows that point up."""
    sizes: Counter[str] = Counter()
    arrows: Counter[tuple[str, str]] = Counter()
    for path in SOURCE.rglob("*.py"):
        folder = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text())
        sizes[folder] += statements(tree)
        arrows.update((folder, other) for other in imports(tree) if other != folder)
    heights = layers()
    for folder in sorted(sizes, key=lambda name: heights.get(name, len(heights))):
        print(f"{folder:<14} {sizes[folder]:>7,} statements")
    print(f"{'together':<14} {sum(sizes.values()):>7,} statements")
    up = {arrow: n for arrow, n in arrows.items() if heights.get(arrow[0], 99) < heights.get(arrow[1], 99)}
    print(f"{len(arrows)} arrows between folders, {sum(arrows.values())} imports; arrows that point up: {len(up)}")
    for (below, above), number in sorted(up.items()):
        print(f"  {below} -> {above}: {number}")


if __name__ == "__main__":
    main()
