"""PostgreSQL: values that are sent as one array."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ojster.core.errors import InvalidRequest
from ojster.storage.open import open_database
from ojster.storage.postgres.pipeline import texts
from ojster.storage.transaction import Transaction

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("values", [["ä"] * 3, ["", "ä", ""], [None, "b", None], [None, None], []])
async def test_an_array_is_what_it_was_made_of_whether_its_texts_are_alike_or_not(
    postgres_url: str, values: list[str | None]
) -> None:
    def read(tx: Transaction, requests: Sequence[None]) -> list[list[str | None]]:
        rows = tx.execute("SELECT t FROM unnest(CAST(? AS text[])) AS t", (texts(values),))
        return [[text for (text,) in rows] for _ in requests]

    database = open_database(postgres_url)
    expected = values if any(value is not None for value in values) else []
    assert await database.read(read, None) == expected
    database.close()


def test_alike_texts_that_the_database_cannot_store_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"U\+0000"):
        texts(["a\0b"] * 2).encode()
