"""Endpoints for access tokens."""

from __future__ import annotations

from typing import Final

from ojster.server.declared import endpoints_of
from ojster.tenancy.calls import TokenCalls

ROUTES: Final = endpoints_of(TokenCalls, lambda service: service.tokens)
