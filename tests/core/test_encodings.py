"""Bodies that look like UTF-16 or UTF-32 are malformed JSON, and no internal error."""

from __future__ import annotations

import pytest

from ojster.core.errors import InvalidPayload
from ojster.core.json_objects import read_members
from tests.conftest import Http

BODIES = [b"\x01\x00\x00\x00abc\\u0000", b'{\x00"a":"\\u', b'\x00\x00\x00{"\\u']


@pytest.mark.parametrize("body", BODIES)
def test_a_body_in_another_encoding_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidPayload):
        read_members(body)


@pytest.mark.anyio
@pytest.mark.parametrize("body", BODIES)
async def test_it_is_refused_over_http(http: Http, body: bytes) -> None:
    assert (await http("POST", "/ojs/v1/jobs", body)).status_code == 400
