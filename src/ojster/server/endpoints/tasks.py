"""Endpoints for the task history: the last runs of each task, and statistics of all runs."""

from __future__ import annotations

from typing import Final

from ojster.insight.calls import TaskCalls
from ojster.server.declared import endpoints_of

ROUTES: Final = endpoints_of(TaskCalls, lambda service: service.tasks)
