"""The jobs of a shop: orders are checked, paid, packed and shipped, and a report is written every morning."""

import logging
import os

from ojster import App, JobHandle, Retry, Run, chain, group, result_of

log = logging.getLogger(__name__)

app = App(os.environ.get("OJSTER_DATABASE_URL", "sqlite:///shop.db"))


class CardRefused(Exception):
    """No card is charged twice for this."""


@app.job("shop.check", timeout=60)
def check(order: int) -> dict[str, int]:
    return {"order": order, "cents": 12_500}


@app.job(
    "shop.charge",
    timeout=60,
    retry=Retry(max_attempts=6, initial_interval=2, max_interval=600, give_up_on=[CardRefused]),
)
def charge(checked: dict[str, int]) -> int:
    if checked["cents"] > 1_000_000:
        raise CardRefused(checked["order"])
    return checked["order"]


@app.job("shop.pack", timeout=60)
def pack(item: str) -> str:
    return f"{item} packed"


@app.job("shop.ship", timeout=60)
def ship(parcels: dict[str, str], order: int) -> str:
    return f"order {order}: {len(parcels)} parcels"


@app.job("shop.tell", queue="mail", timeout=60, retry=Retry(max_attempts=4, initial_interval=60, backoff="constant"))
def tell(text: str, to: str) -> str:
    log.info("mail to %s: %s", to, text)
    return text


@app.cron("0 6 * * *", "daily")
@app.job("shop.report", timeout=600)
def report(kind: str) -> str:
    return f"{kind} report"


def place(order: int, items: list[str], to: str) -> Run:
    """Start the work on an order; return what its result is read from."""
    packing = group(*(pack.s(item) for item in items)).set(id="packing")
    return app.start(
        chain(
            check.s(order).set(id="check"),
            charge.s(result_of("check")),
            packing,
            ship.s(result_of("packing"), order).set(id="shipping"),
            tell.s(result_of("shipping"), to),
        )
    )


def remind(order: int, to: str) -> JobHandle[str]:
    """Tell somebody in an hour."""
    return tell.using(delay=3600).enqueue(f"order {order} waits", to)
