"""The build hook: packages contain the built dashboard. An editable install builds nothing; ``make dashboard`` does."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardHook(BuildHookInterface):  # type: ignore[type-arg]  # its configuration has no type
    """Builds the dashboard into ``src/ojster/dashboard/assets`` before a package is made."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the dashboard, unless the package is editable, or a source package brought it along."""
        root = Path(self.root)
        assets = root / "src" / "ojster" / "dashboard" / "assets"
        if version == "editable":
            return
        if (root / "dashboard").is_dir() and not (root / "PKG-INFO").exists():
            runpy.run_path(str(root / "dashboard" / "build.py"))["build"]()
        if not (assets / "index.html").exists():
            raise FileNotFoundError(f"{assets} has no dashboard. Build it with: make dashboard")
        build_data["artifacts"].append("src/ojster/dashboard/assets/**")
