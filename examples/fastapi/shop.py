"""A shop with FastAPI: a request enqueues a job, and the page follows it.

fastapi dev shop.py          # the shop, with a worker in the same process
curl -X POST localhost:8000/orders/7
"""

import asyncio

from fastapi import FastAPI

from ojster import App, JobContext
from ojster.fastapi import job_router, lifespan

jobs = App("sqlite:///shop.db")


@jobs.job("order.ship")
async def ship(context: JobContext, order: int) -> str:
    """Ship an order, and say how far it is."""
    for step, what in enumerate(("picked", "packed", "posted"), 1):
        await asyncio.sleep(0.1)
        context.progress(step, 3, what)
    return f"parcel-{order}"


app = FastAPI(lifespan=lifespan(jobs, worker=True))
app.include_router(job_router(jobs, types={"order.ship"}), prefix="/jobs")


@app.post("/orders/{order}", status_code=202)
async def place(order: int) -> dict[str, str]:
    """Place an order; the answer says where its progress is."""
    job = await ship.aenqueue(order)
    return {"job": f"/jobs/{job.id}", "events": f"/jobs/{job.id}/events"}
