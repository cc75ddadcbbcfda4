"""Database URLs: any text is accepted or refused, and no password is shown."""

from __future__ import annotations

import pytest

from ojster.core.errors import InvalidRequest
from ojster.storage.database import without_password
from ojster.storage.postgres.url import parse_postgres_url


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user@host/db?connections={'1' * 5_000}",  # more digits than Python reads
        "postgresql://us%80er@host/db",  # no UTF-8
    ],
    ids=["connections", "encoding"],
)
def test_it_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_postgres_url(url)


def test_a_password_that_ends_with_a_line_break_is_not_shown() -> None:
    """As one is that was read from a file."""
    assert "hunter2" not in parse_postgres_url("postgresql://user:hunter2\n@host/db").shown


def test_the_password_of_a_user_with_an_at_sign_is_not_shown() -> None:
    """Some hosts of databases want ``user@server`` as the user."""
    shown = without_password("postgresql://ada@shop:hunter2@host:5432/db?application_name=web")
    assert shown == "postgresql://ada@shop:***@host:5432/db?application_name=web"
    assert without_password("postgresql://ada@host:5432/db") == "postgresql://ada@host:5432/db"
