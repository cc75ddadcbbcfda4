"""Tests of libraries whose import takes seconds are left to thorough runs, with the import."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

SLOW_TO_IMPORT: Final = ("test_openai_agents.py", "test_pydantic_ai.py")
"""Files with thorough tests alone: each test process would import what they import."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these files out where their tests would be deselected."""
    return True if collection_path.name in SLOW_TO_IMPORT and "not thorough" in config.option.markexpr else None
