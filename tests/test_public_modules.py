"""What documentation and examples import is public, and what is public can be imported."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

IMPORT = re.compile(r"^\s*(?:>>> |\.\.\. )?(?:from|import) (ojster(?:\.\w+)*)", re.MULTILINE)

PUBLIC = re.findall(
    r"`(ojster[.\w]*)`",
    "".join(re.findall(r"^\| `ojster.*?\|", (ROOT / "docs/stability.md").read_text(), re.MULTILINE)),
)


def shown() -> list[Path]:
    """Return the pages and programs that users read."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "adr" not in path.parts]
    return [*pages, *(ROOT / "examples").rglob("*.py"), ROOT / "README.md", ROOT / "llms.txt"]


def test_what_is_shown_imports_public_modules_alone() -> None:
    imported = {module: path for path in shown() for module in IMPORT.findall(path.read_text())}
    assert {module: path.name for module, path in imported.items() if module not in PUBLIC} == {}


@pytest.mark.parametrize("module", [name for name in PUBLIC if "django" not in name])
def test_a_public_module_can_be_imported(module: str) -> None:
    assert import_module(module).__doc__
