"""A shop with Starlette: a request enqueues a job, and operators with a token of Ojster see the dashboard.

uvicorn shop:app             # the shop, with a dashboard at localhost:8000/ops/dashboard/
ojster worker shop:jobs
ojster tokens create ada --role owner --url sqlite:///shop.db
curl -X POST localhost:8000/orders/7
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from ojster import App
from ojster.dashboard import asgi

jobs = App("sqlite:///shop.db")


@jobs.job("order.ship")
def ship(order: int) -> str:
    """Ship an order."""
    return f"parcel-{order}"


async def place(request: Request) -> JSONResponse:
    """Place an order."""
    job = await ship.aenqueue(request.path_params["order"])
    return JSONResponse({"job": job.id}, 202)


app = Starlette(
    routes=[
        Route("/orders/{order:int}", place, methods=["POST"]),
        Mount("/ops", asgi(jobs, guarded=True)),  # the page asks for a token
    ]
)
