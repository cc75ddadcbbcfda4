"""The pages have short sentences, and begin with what a reader can do after them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
]

MEAN: Final = 18
"""Maximum mean of words in a sentence, for each page."""

LONGEST: Final = 40
"""Maximum number of words in a sentence."""

NO_PROSE: Final = re.compile(r"(?ms)^ *```.*?^ *```$|^ *(?:[#|!<]|:::).*?$")
"""Code, headings, tables, pictures, comments, and names whose docstrings stand in their place."""


def sentences(page: str) -> list[str]:
    """Return the sentences of three words and more; an item of a list ends one, and code in a sentence is one word."""
    prose = re.sub(r"(?s)(`+).+?\1|(?<=\])\([^)]*\)", "x", NO_PROSE.sub("", page))
    paragraphs = re.split(r"\n\s*\n", re.sub(r"(?m)^ *(?:[*-]|\d+\.) +", "\n", prose))
    every = (one.strip() for paragraph in paragraphs for one in re.split(r"(?<=[.!?])[*)\"]*\s", paragraph))
    return [one for one in every if len(one.split()) > 2]


def test_code_tables_and_headings_are_no_sentences() -> None:
    page = "# A title of a page\n\nIs `ojster serve` up? It\nis.\n\n| in a table |\n\n"
    page += "1. one two three\n* four `a b` five\n```console\n$ ojster top of it\n```\n"
    assert sentences(page) == ["Is x up?", "one two three", "four x five"]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_sentences_are_short(file: Path) -> None:
    words = {one: len(one.split()) for one in sentences(file.read_text())}
    assert [one for one, number in words.items() if number > LONGEST] == []
    assert sum(words.values()) / len(words) <= MEAN


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_a_page_begins_with_what_a_reader_can_do_after_it(file: Path) -> None:
    beginning = sentences(file.read_text())[0]
    assert file.name in ("README.md", "index.md") or re.match(r"(After|On|With) this page you ", beginning)
