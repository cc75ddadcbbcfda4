"""A shop with Flask: a request enqueues a job, which runs in the context of the application.

flask --app shop run
flask --app shop ojster worker
curl -X POST localhost:5000/orders/7
"""

from flask import Flask, current_app

from ojster import App
from ojster.flask import Ojster

jobs = App("sqlite:///shop.db")
extension = Ojster(jobs)


@jobs.job("order.ship")
def ship(order: int) -> str:
    """Ship an order."""
    return f"{current_app.config['SHOP']} ships {order}"


def create_app() -> Flask:
    """Create the application, as 'flask --app shop' does."""
    app = Flask(__name__)
    app.config["SHOP"] = "the shop"
    extension.init_app(app)

    @app.post("/orders/<int:order>")
    def place(order: int) -> tuple[dict[str, str], int]:
        return {"job": ship.enqueue(order).id}, 202

    return app
