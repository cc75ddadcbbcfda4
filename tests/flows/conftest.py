"""An application on the database of each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ojster import App


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    made = App(url)
    yield made
    await made.aclose()
