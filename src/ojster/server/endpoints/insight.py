"""Endpoints about the work of the system: statistics, facets, failures in groups, and what needs attention.

Spec: ojs-admin-api, ojs-dead-letter 10.1
"""

from __future__ import annotations

from typing import Final

from ojster.insight.calls import InsightCalls
from ojster.server.declared import endpoints_of

ROUTES: Final = endpoints_of(InsightCalls, lambda service: service.insight)
