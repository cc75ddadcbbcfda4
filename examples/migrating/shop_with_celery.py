"""The jobs of a shop: orders are checked, paid, packed and shipped, and a report is written every morning."""

import logging
import os

from celery import Celery, chain, chord
from celery.schedules import crontab

log = logging.getLogger(__name__)

app = Celery("shop", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.task_routes = {"shop.tell": {"queue": "mail"}}
app.conf.task_time_limit = 60
app.conf.result_expires = 86_400
app.conf.beat_schedule = {
    "report": {"task": "shop.report", "schedule": crontab(hour=6, minute=0), "args": ["daily"]},
}


class CardRefused(Exception):
    """No card is charged twice for this."""


@app.task(name="shop.check")
def check(order):
    return {"order": order, "cents": 12_500}


@app.task(
    name="shop.charge",
    autoretry_for=(ConnectionError,),
    max_retries=5,
    retry_backoff=2,
    retry_backoff_max=600,
)
def charge(checked):
    if checked["cents"] > 1_000_000:
        raise CardRefused(checked["order"])
    return checked["order"]


@app.task(name="shop.pack")
def pack(item):
    return f"{item} packed"


@app.task(name="shop.ship")
def ship(parcels, order):
    return f"order {order}: {len(parcels)} parcels"


@app.task(name="shop.tell", bind=True, max_retries=3)
def tell(self, text, to):
    try:
        log.info("mail to %s: %s", to, text)
    except OSError as error:
        raise self.retry(exc=error, countdown=60) from error
    return text


@app.task(name="shop.report", time_limit=600)
def report(kind):
    return f"{kind} report"


def place(order, items, to):
    """Start the work on an order; return what its result is read from."""
    packing = chord([pack.si(item) for item in items], ship.s(order))
    return chain(check.s(order), charge.s(), packing, tell.s(to)).apply_async()


def remind(order, to):
    """Tell somebody in an hour."""
    return tell.apply_async((f"order {order} waits", to), countdown=3600)
