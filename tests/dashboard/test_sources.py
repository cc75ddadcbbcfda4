"""What holds of all sources of the dashboard."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).parent.parent.parent / "dashboard" / "src"
FORMATS = SOURCES / "ui" / "format.tsx"
FORMATTING = re.compile(r"\bIntl\.|\.toLocale|\.toFixed\(|\.toISOString\(|\bnew Date\(|unit=\"|\} (ms|s|%)[`<\"]")


def test_only_one_module_makes_text_of_numbers_times_and_durations() -> None:
    """So that all pages speak the browser's language, in the zone that the viewer has chosen."""
    sources = [path for kind in ("*.ts", "*.tsx") for path in SOURCES.rglob(kind)]
    assert FORMATS in sources
    by_themselves = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in sources
        if path != FORMATS and path.name != "schema.d.ts"
        for line in path.read_text().splitlines()
        if FORMATTING.search(line)
    ]
    assert by_themselves == []
