"""The build hook: packages contain the built dashboard. An editable install builds nothing; ``make dashboard`` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardHook(BuildHookInterface):  # type: ignore[type-arg]  # its configuration has no type
    """Builds the dashboard into ``src/ojster/dashboard/assets`` before a package is made."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the dashboard, unless the package is editable, or a source package brought it along.

        Node is not in ``build-system.requires``: only the build from a repository needs it.
        """
        root = Path(self.root)
        assets = root / "src" / "ojster" / "dashboard" / "assets"
        if version == "editable":
            return
        if (root / "dashboard").is_dir() and not (root / "PKG-INFO").exists():
            lock, folder = root / "requirements" / "dashboard.txt", root / "dashboard"
            command = [sys.executable, folder / "with_node.py", lock, "python", folder / "build.py"]
            subprocess.run(command, check=True)
        if not (assets / "index.html").exists():
            raise FileNotFoundError(f"{assets} has no dashboard. Build it with: make dashboard")
        build_data["artifacts"].append("src/ojster/dashboard/assets/**")
