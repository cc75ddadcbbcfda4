"""Each example of a request in the documents is accepted as it is written."""

from __future__ import annotations

from typing import Final

import pytest

from tests.conftest import Http
from tests.faithful.examples import ROOT, Example, examples

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not ROOT.is_dir(), reason=f"the documents are not at {ROOT}"),
]

NO_TEMPLATE = "the body stands in another block"
NO_REQUEST = "a request to others, or what an answer shows"
WRONG = "the document shows a request that is to be refused"
NO_UUID = "ojs-core requires a UUIDv7"
NO_SUCH_SETTING = "default_timeout, dead_letter_queue and policies for all queues are not settings of a queue"

EXCEPTIONS: Final[dict[str, str]] = {
    "ojs-admin-api:431": NO_TEMPLATE,
    "ojs-admin-api:470": NO_TEMPLATE,
    "ojs-admin-api:478": NO_TEMPLATE,
    "ojs-admin-api:671": NO_TEMPLATE,
    "ojs-admin-api:690": NO_TEMPLATE,
    "ojs-ai-agents:813": "the job that delegates does not exist",
    "ojs-ai-agents:838": "the context window is larger than the maximum of tokens, which ojs-ai-agents 3.2 forbids",
    "ojs-cloudevents-interop:404": "a CloudEvent, not a job",
    "ojs-cloudevents-interop:592": "args must be an array (ojs-core 5.2)",
    "ojs-cloudevents-interop:621": "a CloudEvent, not a job",
    "ojs-core:959": "its arguments lack the one that is to make it unique",
    "ojs-encryption:238": "an endpoint of a codec server, not of a job server",
    "ojs-encryption:278": "an endpoint of a codec server, not of a job server",
    "ojs-errors:643": WRONG,
    "ojs-events:1027": NO_UUID,
    "ojs-job-versioning:305": "canary rules are not supported",
    "ojs-ml-extensions:691": NO_UUID,
    "ojs-ml-extensions:725": NO_UUID,
    "ojs-payload-limits:187": "a compressed body, which is not shown",
    "ojs-progress:341": NO_REQUEST,
    "ojs-progress:541": NO_UUID,
    "ojs-queue-config:152": NO_SUCH_SETTING,
    "ojs-queue-config:265": NO_SUCH_SETTING,
    "ojs-queue-config:359": NO_SUCH_SETTING,
    "ojs-schema-registry:461": WRONG,
    "ojs-security:557": "a job without a type",
    "ojs-security:601": "a job without a type",
    "ojs-security:608": WRONG,
    "ojs-serverless:63": NO_REQUEST,
    "ojs-webhooks:182": NO_REQUEST,
}
"""Examples that are refused, by their place, and why."""


@pytest.mark.parametrize("example", [pytest.param(one, id=one.place) for one in examples()])
async def test_an_example_is_accepted(http: Http, example: Example) -> None:
    answer = await http(example.method, example.path, example.body)
    shown = answer.json() if answer.content else {}
    missing = answer.status_code == 404 and "The path" not in shown["error"]["message"]
    nothing_done = answer.status_code == 422 and "total_matched" in shown
    accepted = answer.is_success or missing or nothing_done
    if example.place in EXCEPTIONS:
        assert not accepted, "it is accepted: remove it from the exceptions"
    else:
        assert accepted, f"{example.method} {example.path} {answer.status_code}: {answer.text[:500]}"
