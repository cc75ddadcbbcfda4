"""An application with the usual jobs: retries, priorities, schedules, uniqueness, progress, cron.

ojster worker examples.shop:app            # in one terminal
python -m examples.shop                    # in another
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta

from ojster import App, DeadLetter, JobContext, Retry, Unique

app = App("sqlite:///shop.db")


@app.job("email.send", retry=Retry(max_attempts=8, give_up_on=[ValueError]))
async def send_email(to: str, subject: str) -> None:
    """An asynchronous handler, retried when it fails, except after a ``ValueError``."""
    if "@" not in to:
        raise ValueError(f"{to!r} is no address")
    await asyncio.sleep(0.1)


@app.job("payment.charge", retry=Retry(max_attempts=5, dead_letter=True), timeout=30)
def charge(order: int, cents: int) -> str:
    """A plain function, which runs in a thread; it dead-letters on ``DeadLetter`` or when retries are exhausted."""
    if cents < 0:
        raise DeadLetter(f"order {order} has a negative amount")
    time.sleep(0.1)
    return f"charge-{order}"


@app.job("index.rebuild", unique=Unique(keys=[], on_conflict="ignore"))
async def rebuild_index(context: JobContext) -> int:
    """A unique job, at most one of which is waiting or running; it reports its progress."""
    for shard in range(10):
        if context.cancelled:
            break
        await asyncio.sleep(0.2)
        context.progress(shard + 1, 10, f"shard {shard + 1}")
    return 10


@app.job("image.resize", process=True, timeout=60)
def resize(path: str, width: int) -> str:
    """CPU-bound work, which runs in a child process that is killed at the timeout."""
    return f"{path}@{width}"


@app.cron("0 3 * * *", timezone="Europe/Berlin")
@app.job("report.daily")
async def daily_report() -> None:
    """A cron job that runs once every night at three, regardless of the number of workers."""


if __name__ == "__main__":
    send_email.enqueue("ada@example.com", "Welcome")
    send_email.using(delay=3600).enqueue("ada@example.com", "How is it going?")
    send_email.using(scheduled_at=datetime.now(UTC) + timedelta(days=7)).enqueue("ada@example.com", "A week later")
    rebuild_index.enqueue()
    paid = charge.using(priority=10).enqueue(7, 4999)
    resize.enqueue_many([(f"photo-{n}.jpg", 800) for n in range(20)])
    print(paid.result(timeout=30))
    app.close()
