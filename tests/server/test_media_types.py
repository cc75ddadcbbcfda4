"""The media type of answers: that of Open Job Spec, unless the client reads only plain JSON.

For the official SDKs, which send ``OJS-Version``, it names plain JSON, too: one looks for that name in the header.
"""

from __future__ import annotations

import pytest

from tests.conftest import Http

pytestmark = pytest.mark.anyio

OURS = "application/openjobspec+json"
PLAIN = "application/json"
FOR_SDKS = f'{OURS}; alt="{PLAIN}"'

HEADERS = [
    ({}, OURS),
    ({"Accept": OURS}, OURS),
    ({"Accept": "*/*"}, OURS),
    ({"Accept": PLAIN}, PLAIN),
    ({"Accept": f"{PLAIN}; charset=utf-8, text/plain;q=0.5"}, PLAIN),
    ({"Accept": f"{OURS}, {PLAIN};q=0.5"}, OURS),
    ({"Accept": "text/html"}, OURS),
    ({"Content-Type": PLAIN}, PLAIN),
    ({"Content-Type": PLAIN, "Accept": "*/*"}, PLAIN),
    ({"Content-Type": PLAIN, "Accept": OURS}, OURS),
    ({"OJS-Version": "1.0", "Accept": OURS}, FOR_SDKS),
    ({"OJS-Version": "1.0", "Accept": PLAIN}, PLAIN),
]


@pytest.mark.parametrize(("headers", "expected"), HEADERS)
async def test_the_answer_has_the_media_type_that_the_client_reads(
    http: Http, headers: dict[str, str], expected: str
) -> None:
    for body, status in (({"type": "a", "args": []}, 201), ({"type": "not a type", "args": []}, 400)):
        answer = await http("POST", "/ojs/v1/jobs", body, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (status, expected)


async def test_what_is_no_json_keeps_its_media_type(http: Http) -> None:
    answer = await http("GET", "/metrics", headers={"Accept": PLAIN})
    assert answer.headers["content-type"].startswith("text/plain")
