"""The application of a shop whose payment provider fails: workers run it in processes of their own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ojster import App, current_job

app = App(os.environ.get("OJSTER_DATABASE_URL", "sqlite:///unused.db"))


class ProviderError(Exception):
    """The payment provider has refused a charge."""


def has_expired(order: int) -> bool:
    """Whether no charge of an order can succeed."""
    return order % 10 == 7


def is_unlucky(order: int) -> bool:
    """Whether a charge of an order fails while the provider is down: one of three."""
    return order % 3 == 0 and not has_expired(order)


class Shop:
    """What is outside of Ojster: a provider that is down or not, and lists of what was done, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failure = folder / "is-down"

    def charge(self, order: int) -> None:
        """Charge an order."""
        if has_expired(order):
            raise ProviderError(f"the card of order {order} has expired")
        if is_unlucky(order) and self.failure.exists():
            raise ProviderError(f"the provider answered 503 for order {order}")
        self.note("charges", order)

    def note(self, name: str, number: int) -> None:
        """Add a number to a list."""
        with (self.folder / name).open("a") as file:
            file.write(f"{number}\n")

    def noted(self, name: str) -> list[int]:
        """Return the numbers of a list, sorted; what was done twice is there twice."""
        path = self.folder / name
        return sorted(int(line) for line in path.read_text().split()) if path.exists() else []


def shop() -> Shop:
    """Return the shop of this process."""
    return Shop(Path(os.environ["SHOP"]))


@app.job("payments.charge", queue="payments")
def charge(order: int) -> None:
    """Charge an order."""
    shop().charge(order)


@app.job("report.build", queue="reports")
async def build_report(number: int) -> None:
    """Hang in the first attempt."""
    shop().note("reports", number)
    if current_job().attempt == 1:
        await asyncio.Event().wait()


@app.job("mail.send", queue="mail")
async def send_mail() -> None:
    """Hang: the mail server does not answer."""
    await asyncio.Event().wait()


@app.job("release.build", queue="releases")
def build_release() -> None:
    """Build a release."""


@app.job("release.deploy", queue="releases")
def deploy_release() -> None:
    """Deploy a release."""
