"""The pytest plugin: fixtures for the jobs of an application. It imports Ojster when a test uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ojster import App
    from ojster.testing import JobTester


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting ``ojster_app``."""
    parser.addini("ojster_app", "The application under test, as MODULE:NAME.", default="")


@pytest.fixture
def ojster_app(request: pytest.FixtureRequest) -> App:
    """The application under test: the setting ``ojster_app``, or a fixture of the same name in the tests."""
    where = str(request.config.getini("ojster_app"))
    if not where:
        raise pytest.UsageError(
            'Which application? Set ojster_app = "MODULE:NAME" in the section [tool.pytest.ini_options] of '
            "pyproject.toml, or define a fixture ojster_app."
        )
    from ojster.api.loading import load_app

    return load_app(where)


@pytest.fixture
def ojster_jobs(ojster_app: App) -> Iterator[JobTester]:
    """The jobs of the application, in a database in memory; see ``ojster.testing.JobTester``."""
    from ojster.testing import JobTester

    with JobTester(ojster_app) as jobs:
        yield jobs
