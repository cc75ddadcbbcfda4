"""The job handlers of ``ojster demo``."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from ojster.api.app import App
from ojster.handlers.context import JobContext
from ojster.handlers.job_options import Retry

app = App(eager=False)


@app.job("email.send")
async def send_email(to: str) -> str:
    """Succeed after a moment."""
    await asyncio.sleep(0.4)
    return f"sent to {to}"


@app.job("thumbnail.make")
def make_thumbnail(number: int) -> int:
    """Succeed, in a thread."""
    time.sleep(0.05)
    return number


@app.job("report.build")
async def build_report(context: JobContext, pages: int) -> dict[str, int]:
    """Report progress, and succeed after a while."""
    for page in range(pages):
        context.progress(page + 1, pages, f"page {page + 1} of {pages}")
        await asyncio.sleep(0.25)
    return {"pages": pages}


@app.job("payment.charge", retry=Retry(max_attempts=5, initial_interval=0.6, jitter=False))
async def charge(context: JobContext, cents: int) -> str:
    """Fail twice, then succeed."""
    await asyncio.sleep(0.3)
    if context.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"charged {cents / 100:.2f}"


@app.job("reminder.send")
async def remind(whom: str) -> str:
    """Succeed at the scheduled time."""
    await asyncio.sleep(0.2)
    return f"reminded {whom}"


@app.job("video.encode", timeout=60)
async def encode_video(context: JobContext, name: str) -> str:
    """Run long enough to be cancelled."""
    for step in range(600):
        context.progress(step, 600, name)
        await asyncio.sleep(0.1)
    return name


@app.job("invoice.import", retry=Retry(max_attempts=2, initial_interval=0.5, jitter=False, dead_letter=True))
def import_invoice(path: str) -> str:
    """Fail until the file exists."""
    time.sleep(0.2)
    return Path(path).read_text().strip()
