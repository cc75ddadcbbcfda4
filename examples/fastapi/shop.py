"""A shop with FastAPI: a request enqueues a job, and the page follows it.

SHOP_PASSWORD=… fastapi dev shop.py       # the shop, with a worker in the same process, and the dashboard below /ops
curl -X POST localhost:8000/orders/7
"""

import asyncio
import hmac
import os

from fastapi import FastAPI, Request, Response
from fastapi.security import HTTPBasic
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection

from ojster import App, JobContext
from ojster.dashboard import asgi
from ojster.fastapi import job_router, lifespan

PASSWORD = os.environ.get("SHOP_PASSWORD") or os.urandom(16).hex()  # nobody gets in unless one is set

jobs = App("sqlite:///shop.db")


@jobs.job("order.ship")
async def ship(context: JobContext, order: int) -> str:
    """Ship an order, and say how far it is."""
    for step, what in enumerate(("picked", "packed", "posted"), 1):
        await asyncio.sleep(0.1)
        context.progress(step, 3, what)
    return f"parcel-{order}"


class Operators(AuthenticationBackend):
    """Those who may see the dashboard; a real shop asks its own login."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        """Return who it is, or refuse."""
        known = await HTTPBasic(auto_error=False)(Request(conn.scope))
        if known is None or not hmac.compare_digest(known.password.encode(), PASSWORD.encode()):
            raise AuthenticationError("Log in.")
        return AuthCredentials(["operator"]), SimpleUser(known.username)


def ask_for_password(conn: HTTPConnection, error: Exception) -> Response:
    """Refuse a caller who is no operator."""
    return Response(str(error), 401, {"WWW-Authenticate": "Basic"})


app = FastAPI(lifespan=lifespan(jobs, worker=True))
app.include_router(job_router(jobs, types={"order.ship"}), prefix="/jobs")
app.mount("/ops", AuthenticationMiddleware(asgi(jobs), Operators(), ask_for_password))  # /ops/dashboard/


@app.post("/orders/{order}", status_code=202)
async def place(order: int) -> dict[str, str]:
    """Place an order; the answer says where its progress is."""
    job = await ship.aenqueue(order)
    return {"job": f"/jobs/{job.id}", "events": f"/jobs/{job.id}/events"}
