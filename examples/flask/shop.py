"""A shop with Flask: a request enqueues a job, which runs in the context of the application.

SHOP_PASSWORD=… flask --app shop run       # with a dashboard at localhost:5000/ops/dashboard/
flask --app shop ojster worker
curl -X POST localhost:5000/orders/7
"""

import hmac
import os

from flask import Flask, Response, current_app, request

from ojster import App
from ojster.flask import Ojster, dashboard

PASSWORD = os.environ.get("SHOP_PASSWORD") or os.urandom(16).hex()  # nobody gets in unless one is set

jobs = App("sqlite:///shop.db")
extension = Ojster(jobs)


@jobs.job("order.ship")
def ship(order: int) -> str:
    """Ship an order."""
    return f"{current_app.config['SHOP']} ships {order}"


def only_operators() -> Response | None:
    """Ask who wants to see the dashboard; a real shop asks its own login."""
    known = request.authorization
    if (
        known is not None
        and known.password is not None
        and hmac.compare_digest(known.password.encode(), PASSWORD.encode())
    ):
        return None
    return Response("Log in.", 401, {"WWW-Authenticate": "Basic"})


def create_app() -> Flask:
    """Create the application, as 'flask --app shop' does."""
    app = Flask(__name__)
    app.config["SHOP"] = "the shop"
    extension.init_app(app)
    operations = dashboard(jobs)  # /ops/dashboard/
    operations.before_request(only_operators)
    app.register_blueprint(operations, url_prefix="/ops")

    @app.post("/orders/<int:order>")
    def place(order: int) -> tuple[dict[str, str], int]:
        return {"job": ship.enqueue(order).id}, 202

    return app
