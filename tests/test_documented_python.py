"""Programs in the documentation, run as they are printed: their output is what the page shows."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ojster
from tests import forked

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("cookbook.md", "flows.md", "migrating.md", "patterns.md")
"""Pages on which the blocks of a section are a whole program. Blocks of other libraries are called ``py``."""

_BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


def programs() -> Iterator[tuple[str, str, str, str | None]]:
    """Yield each program with its page, its section, and what it prints; ``None``: the page does not say."""
    for page in PAGES:
        for section in re.split(r"(?m)^## ", (DOCS / page).read_text())[1:]:
            blocks = _BLOCK.findall(section)
            program = "\n\n".join(text for kind, text in blocks if kind == "python")
            shown = [text for kind, text in blocks if kind == "text"]
            if program:
                yield page, section.partition("\n")[0], program, shown[0] if shown else None


PROGRAMS = list(programs())


def test_the_cookbook_has_twenty_recipes_that_show_what_they_print() -> None:
    recipes = [shown for page, _, _, shown in PROGRAMS if page == "cookbook.md"]
    assert len(recipes) >= 20
    assert None not in recipes


@pytest.mark.parametrize(
    ("page", "title", "program", "shown"), PROGRAMS, ids=[f"{one[0]}: {one[1]}" for one in PROGRAMS]
)
def test_a_documented_program_prints_what_is_shown(
    page: str, title: str, program: str, shown: str | None, tmp_path: Path
) -> None:
    done = forked.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if shown is not None:
        assert done.stdout == shown


def test_the_migration_from_celery_shows_the_difference_of_the_examples() -> None:
    folder = DOCS.parent / "examples" / "migrating"
    before, after = "shop_with_celery.py", "shop_with_ojster.py"
    old, new = ((folder / name).read_text().splitlines(keepends=True) for name in (before, after))
    difference = "".join(difflib.unified_diff(old, new, before, after, n=2))
    (shown,) = re.findall(r"```diff\n(.*?)```", (DOCS / "migrating.md").read_text(), re.DOTALL)
    assert shown == difference


def test_the_site_has_each_page_and_each_public_name() -> None:
    site = (DOCS.parent / "zensical.toml").read_text()
    assert {page.name for page in DOCS.glob("*.md")} == set(re.findall(r'= "([a-z-]+\.md)"', site))
    named = re.findall(r"(?m)^::: ojster\.(\w+)$", (DOCS / "reference.md").read_text())
    assert sorted(named) == sorted(set(ojster.__all__) - {"__version__"})


def test_the_calls_of_clients_in_sentences_exist() -> None:
    sentences = " ".join(page.read_text() for page in DOCS.glob("*.md"))
    calls = set(re.findall(r"`[^`\n]*client(?:\(\))?\.([a-z_]+)(?:\.(\w+))?\(", sentences))
    assert ("tasks", "runs") in calls
    with ojster.App("sqlite:///:memory:") as app:
        missing = [call for call in calls if not hasattr(getattr(app.client(), call[0], None), call[1] or "__call__")]
    assert missing == []


@pytest.mark.parametrize("index", ["README.md", "llms.txt"])
def test_an_index_names_each_page_and_only_what_exists(index: str) -> None:
    root = DOCS.parent
    linked = {target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", (root / index).read_text())}
    local = {target for target in linked if "://" not in target}
    assert [target for target in sorted(local) if not (root / target).exists()] == []
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= local
