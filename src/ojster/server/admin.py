"""What the endpoints for operators have in common."""

from __future__ import annotations

from typing import Final

from ojster.server.route import BASE

ADMIN: Final = f"{BASE}/admin"

TAG: Final = "Operators"
