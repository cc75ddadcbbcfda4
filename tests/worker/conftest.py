"""An application on the database of each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ojster import App


@pytest.fixture
async def app(shared_url: str) -> AsyncIterator[App]:
    made = App(shared_url)
    yield made
    await made.aclose()
