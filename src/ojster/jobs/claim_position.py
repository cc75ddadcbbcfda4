"""Where the last claim of this process stopped looking, so that the next one begins there."""

from __future__ import annotations

from typing import Final

from ojster.storage.memory import Local

last_places: Final = Local[dict[object, str]](dict)
"""The last key of a limit, tenant or kind of requirements that a claim looked at, by what it looked through."""
