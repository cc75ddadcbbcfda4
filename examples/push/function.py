"""A function without a framework that runs jobs which an Ojster server pushes: a handler of AWS Lambda with a URL.

It needs nothing but Python: the check of the signature is written out. With Ojster in the bundle, call
``ojster.verify_signature`` instead.
"""

import base64
import hashlib
import hmac
import json
import os
import time
from typing import Any


def is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Return whether the server has sent a request, within the last five minutes."""
    timestamp = headers.get("x-ojs-timestamp", "")
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > 300:
        return False
    expected = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    sent = headers.get("x-ojs-signature", "").split(",")
    return any(hmac.compare_digest(f"sha256={expected}".encode(), one.encode()) for one in sent)


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Run one job. The answer completes it, or says why it failed."""
    text = event.get("body") or ""
    body = base64.b64decode(text) if event.get("isBase64Encoded") else text.encode()
    if not is_signed(os.environ["OJSTER_PUSH_SECRET"], event["headers"], body):
        return {"statusCode": 401, "body": "wrong signature"}
    job = json.loads(body)["job"]
    try:
        answer = {"status": "completed", "result": sum(job["args"])}
    except TypeError as error:
        answer = {"status": "failed", "error": {"type": "TypeError", "message": str(error), "retryable": False}}
    return {"statusCode": 200, "headers": {"Content-Type": "application/json"}, "body": json.dumps(answer)}
