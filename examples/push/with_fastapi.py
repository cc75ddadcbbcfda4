"""A FastAPI application that runs jobs which an Ojster server pushes.

OJSTER_PUSH_SECRET=… uvicorn examples.push.with_fastapi:web
OJSTER_PUSH_SECRET=… ojster endpoints set shop https://shop.functions.example/jobs --type email.send
"""

import os
from typing import Any

from fastapi import FastAPI, HTTPException, Request

from ojster import InvalidSignature, verify_signature

web = FastAPI()


def send_email(to: str, subject: str) -> dict[str, str]:
    """Send an e-mail."""
    return {"sent": f"{subject} to {to}"}


HANDLERS = {"email.send": send_email}


@web.post("/jobs")
async def run_job(request: Request) -> dict[str, Any]:
    """Run one job. The answer completes it, or says why it failed."""
    try:
        pushed = verify_signature(os.environ["OJSTER_PUSH_SECRET"], request.headers, await request.body())
    except InvalidSignature as error:
        raise HTTPException(401, str(error)) from error
    job = pushed["job"]
    try:
        return {"status": "completed", "result": HANDLERS[job["type"]](*job["args"])}
    except ConnectionError as error:  # the job is tried again, as its retry policy says
        return {"status": "failed", "error": {"type": type(error).__name__, "message": str(error)}}
    except (KeyError, TypeError, ValueError) as error:
        return {
            "status": "failed",
            "error": {"type": type(error).__name__, "message": str(error), "retryable": False},
        }
